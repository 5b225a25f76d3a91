"""What a source guesses for a row: a small token tree, of which one path is the chain."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from radixrt.scheduler.requests import Row


@dataclass(frozen=True)
class Branch:
    """Another continuation: `tokens` instead of what the chain holds from its `fork`-th token on."""

    fork: int
    tokens: list[int]
    odds: float
    """How likely it is that all before it holds and that its first token comes next."""


@dataclass(frozen=True)
class Guess:
    """Tokens that a row may sample next. `odds`: how likely each of the chain is where all before it held."""

    source: str = ""
    chain: list[int] = field(default_factory=list)
    odds: float = 0.0
    branches: tuple[Branch, ...] = ()

    @property
    def size(self) -> int:
        """Tokens to compute."""
        return len(self.chain) + sum(len(branch.tokens) for branch in self.branches)

    def cut(self, most: int) -> Guess:
        """At most `most` tokens: branches go first."""
        if self.size <= most:
            return self
        branches: list[Branch] = []
        left = most - len(self.chain)
        for branch in self.branches:
            if len(branch.tokens) <= left:
                branches.append(branch)
                left -= len(branch.tokens)
        return replace(self, chain=self.chain[:most], branches=tuple(branches))


NOTHING = Guess()


class DraftSource(Protocol):
    """Where guesses come from. A guess is a hint: whatever is proposed, the row's tokens are the same."""

    name: str

    def admitted(self, row: Row) -> None:
        """The row runs, for the first time or again after a retraction."""

    def learn(self, row: Row, token: int, *, certain: bool = False) -> None:
        """`token` is the last of the row's tokens since now; `certain`: its constraint left nothing else."""

    def ended(self, row: Row) -> None:
        """The row is over: forget what is kept of it."""

    def propose(self, row: Row, most: int) -> Guess:
        """What comes behind the row's known tokens: a chain of at most `most`, and branches of it."""

    def expect(self, row: Row) -> tuple[float, int]:
        """(odds, length) of the guess that may be had once the token under way is known; (0, 0): none."""

    def verified(self, row: Row, proposed: int, accepted: int) -> None:
        """Of a guess of this source so many tokens were verified, and so many held."""
