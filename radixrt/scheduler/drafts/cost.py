"""What a step costs by its tokens, measured while it runs: from it follows when a guess does not pay."""

from __future__ import annotations

from dataclasses import dataclass

NARROW = 96
"""Steps of more tokens are prefill: they say nothing about the price of a guess."""
FIRST_SLOPE = 0.12
"""Cost of one more token over that of an empty step, before anything is measured (`benchmarks/step.py`)."""
KEEP = 0.98
STEADY = 2.0
"""Variance of tokens a step, in tokens squared, at which measurement and first guess count alike."""


@dataclass
class StepCost:
    """Least squares of seconds over tokens, c = a + b * tokens, old steps fading; drawn to FIRST_SLOPE while all steps
    are alike."""

    measuring: bool = True
    """Otherwise the first guess holds for ever, and what is guessed does not depend on how busy the machine is."""
    weight: float = 0.0
    tokens: float = 0.0
    squares: float = 0.0
    seconds: float = 0.0
    products: float = 0.0
    draft_step_s: float = 0.0
    """One forward pass of the draft model, for all rows that ask."""

    def measured(self, tokens: int, seconds: float) -> None:
        """A step of so many new tokens took so long."""
        if not self.measuring or not 0 < tokens <= NARROW or seconds <= 0:
            return
        self.weight = self.weight * KEEP + 1
        self.tokens = self.tokens * KEEP + tokens
        self.squares = self.squares * KEEP + tokens * tokens
        self.seconds = self.seconds * KEEP + seconds
        self.products = self.products * KEEP + tokens * seconds

    def drafted(self, passes: int, seconds: float) -> None:
        """The draft model ran so many times."""
        if self.measuring and passes > 0 and seconds > 0:
            each = seconds / passes
            self.draft_step_s = each if not self.draft_step_s else 0.9 * self.draft_step_s + 0.1 * each

    def line(self) -> tuple[float, float]:
        """(a, b): seconds of an empty step, and of each token more; in arbitrary units before the first measurement."""
        if not self.weight:
            return 1.0, FIRST_SLOPE
        tokens, seconds = self.tokens / self.weight, self.seconds / self.weight
        first = seconds * FIRST_SLOPE / (1 + FIRST_SLOPE * tokens)
        variance = max(self.squares / self.weight - tokens * tokens, 0.0)
        covariance = self.products / self.weight - tokens * seconds
        slope = (covariance + STEADY * first) / (variance + STEADY)
        slope = min(max(slope, 0.0), seconds / tokens)
        return seconds - slope * tokens, slope

    def price(self, rows: int) -> float:
        """Cost of one more token in each of `rows` rows, in steps of so many rows: 0.1 for one row, near 1 for many."""
        a, b = self.line()
        whole = a + b * rows
        return b * rows / whole if whole > 0 else 1.0

    def draft_price(self, rows: int) -> float:
        """Cost of one pass of the draft model, in steps of so many rows."""
        a, b = self.line()
        return self.draft_step_s / (a + b * rows) if self.weight and a + b * rows > 0 else 0.2
