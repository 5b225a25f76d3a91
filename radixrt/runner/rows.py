"""What the runner remembers of each open row between steps, in flat arrays indexed by row id.

A row's life: unknown -> open (RowOpen) -> unknown (closes). The token it sampled last stays on the device; whether
there is one is known here:

    FRESH    nothing sampled yet: a plan that asks for its last token is malformed
    SAMPLED  `last` holds its token
    LOST     the step that should have sampled failed, or nothing could be sampled: what is planned on it gives -1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from radixrt.messages import RowOpen
from radixrt.runner.adjust import Penalized, bounded_bias
from radixrt.runner.penalties import TokenCounts
from radixrt.runner.randoms import seed64, uniforms
from radixrt.runner.sampler import GREEDY_BELOW, Draw
from radixrt.runner.verify import Standing

FRESH, SAMPLED, LOST = 0, 1, 2
LARGEST_ROW_ID = 1 << 16
_NOTHING = np.zeros(0, np.int64)


class PlanError(ValueError):
    """A plan that contradicts itself or what the runner knows; the message names the field at fault."""


@dataclass(frozen=True)
class Rules:
    """What a row asks for beyond temperature and cuts; most rows have none."""

    bias_ids: np.ndarray  # int64
    bias: np.ndarray  # float32
    suppress_ids: np.ndarray  # int64
    min_length: int
    end_ids: np.ndarray  # int64
    counts: TokenCounts | None
    repetition: float
    presence: float
    frequency: float


@dataclass(frozen=True)
class Adjustments:
    """The rules of a step's sampled rows, as `adjust` takes them. Empty arrays: nothing to do."""

    bias_rows: np.ndarray
    bias_ids: np.ndarray
    bias: np.ndarray
    penalized: Penalized
    forbidden_rows: np.ndarray
    forbidden_ids: np.ndarray


class Rows:
    """All open rows. `vocab_size` is the width of the logits: rules about ids beyond it have no effect."""

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu", capacity: int = 256) -> None:
        self._vocab_size = vocab_size
        self._capacity = capacity
        self._rules: dict[int, Rules] = {}
        self.last = torch.zeros(capacity, dtype=torch.int64, device=device)
        """int64[capacity]: the token each row sampled last, where `state` is SAMPLED."""
        self.is_open = np.zeros(capacity, bool)
        self.opened = np.zeros(capacity, np.int64)
        """Changes whenever a row of this id is opened or closed."""
        self.state = np.zeros(capacity, np.uint8)
        self.logprobs = np.full(capacity, -1, np.int64)
        self._ruled = np.zeros(capacity, bool)
        self._temperature = np.ones(capacity, np.float32)
        self._top_k = np.zeros(capacity, np.int64)
        self._top_p = np.ones(capacity, np.float64)
        self._min_p = np.zeros(capacity, np.float64)
        self._seed = np.zeros(capacity, np.uint64)

    def __len__(self) -> int:
        return int(self.is_open.sum())

    def clear(self) -> None:
        """Forget every row."""
        self.opened += self.is_open
        self.is_open[:] = False
        self._ruled[:] = False
        self._rules.clear()

    def close(self, row: int) -> None:
        """Forget a row; one that is not known is none the worse for it."""
        if 0 <= row < self._capacity:
            self.opened[row] += int(self.is_open[row])
            self.is_open[row] = False
            self._ruled[row] = False
            self._rules.pop(row, None)

    def open(self, opened: RowOpen) -> None:
        """Know a row from now on. PlanError where its description contradicts itself."""
        row = opened.row
        if not 0 <= row < LARGEST_ROW_ID:
            raise PlanError(f"row id {row} is not in 0..{LARGEST_ROW_ID - 1}")
        if len(opened.bias_ids) != len(opened.bias):
            raise PlanError(f"row {row} has {len(opened.bias_ids)} bias_ids and {len(opened.bias)} bias values")
        self._grow(row + 1)
        self.close(row)
        self.is_open[row] = True
        self.opened[row] += 1
        self.state[row] = FRESH
        self.logprobs[row] = min(opened.logprobs, self._vocab_size)
        self._temperature[row] = opened.temperature
        self._top_k[row] = opened.top_k
        self._top_p[row] = opened.top_p
        self._min_p[row] = opened.min_p
        self._seed[row] = seed64(opened.seed)
        rules = self._rules_of(opened)
        if rules is not None:
            self._rules[row] = rules
            self._ruled[row] = True

    def draw(self, rows: np.ndarray, positions: np.ndarray) -> Draw:
        """How `rows` (int64[K]) draw the tokens at `positions` (int64[K])."""
        return Draw(
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            uniforms=uniforms(self._seed[rows], positions),
        )

    def plain(self, rows: np.ndarray) -> np.ndarray:
        """bool[K]: those of `rows` that take their most likely token, without log-probabilities: logits are needed for
        nothing else."""
        greedy = (self._temperature[rows] < GREEDY_BELOW) | (self._top_k[rows] == 1)
        plain: np.ndarray = greedy & ~self._ruled[rows] & (self.logprobs[rows] < 0)
        return plain

    def adjustments(
        self,
        rows: np.ndarray,
        positions: np.ndarray,
        standing: Standing | None = None,
        lines: np.ndarray | None = None,
    ) -> Adjustments | None:
        """The rules of `rows`, entry i for row i of the logits; None where no row has any.

        `standing`: on which guesses the step's lines stand, which count as generated for these lines alone; `lines`
        (int64[K]): which of these lines the rows are of, where not of all.
        """
        places = np.flatnonzero(self._ruled[rows])
        if not places.size:
            return None
        at = places.tolist()
        rules = [self._rules[row] for row in rows[places].tolist()]
        forbidden = [
            np.concatenate([rule.suppress_ids, rule.end_ids]) if positions[i] < rule.min_length else rule.suppress_ids
            for i, rule in zip(at, rules, strict=True)
        ]
        counted = [
            (i, rule, *_seen(rule.counts, i if lines is None else int(lines[i]), standing))
            for i, rule in zip(at, rules, strict=True)
            if rule.counts is not None
        ]
        lengths = [len(ids) for _, _, ids, _ in counted]
        return Adjustments(
            bias_rows=np.repeat(places, [len(rule.bias_ids) for rule in rules]),
            bias_ids=np.concatenate([rule.bias_ids for rule in rules]),
            bias=np.concatenate([rule.bias for rule in rules]),
            penalized=Penalized(
                rows=np.repeat(np.array([i for i, _, _, _ in counted], np.int64), lengths),
                ids=np.concatenate([_NOTHING, *(ids for _, _, ids, _ in counted)]),
                counts=np.concatenate([np.zeros(0, np.float32), *(counts for _, _, _, counts in counted)]),
                repetition=np.repeat(np.array([rule.repetition for _, rule, _, _ in counted], np.float32), lengths),
                presence=np.repeat(np.array([rule.presence for _, rule, _, _ in counted], np.float32), lengths),
                frequency=np.repeat(np.array([rule.frequency for _, rule, _, _ in counted], np.float32), lengths),
            ),
            forbidden_rows=np.repeat(places, [len(ids) for ids in forbidden]),
            forbidden_ids=np.concatenate(forbidden),
        )

    def sampled(self, rows: np.ndarray, tokens: torch.Tensor, standing: Standing | None = None) -> np.ndarray:
        """Remember the tokens (int64[K], on the device; -1: none) that `rows` sampled, of guessed lines those that
        count. Returns all of them, int32[K].
        """
        on_host = tokens.cpu().numpy().astype(np.int32)
        counts = np.ones(len(rows), bool) if standing is None else standing.counting(on_host)
        last = slice(None) if standing is None else standing.last(counts)
        self.last[torch.from_numpy(rows[last]).to(self.last.device)] = tokens[last]
        self.state[rows[last]] = np.where(on_host[last] < 0, LOST, SAMPLED)
        self._count(rows, on_host, counts)
        return on_host

    def settled(
        self, rows: np.ndarray, tokens: np.ndarray, standing: Standing | None, sure: np.ndarray, current: np.ndarray
    ) -> np.ndarray:
        """`sampled` for tokens (int32[K]) of which `last` has those of `sure` lines already, and for `current` lines.

        The state of sure lines' rows is SAMPLED since their step began; what began since then is not undone. Returns
        the lines, int64[n], whose tokens are yet to be put into `last`: of guessed lines those that count.
        """
        counts = current.copy() if standing is None else standing.counting(tokens) & current
        self.state[rows[sure & current & (tokens < 0)]] = LOST
        lines = _NOTHING
        if standing is not None:
            lines = standing.last(counts)
            lines = lines[~sure[lines]]
            self.state[rows[lines]] = np.where(tokens[lines] < 0, LOST, SAMPLED)
        self._count(rows, tokens, counts)
        return lines

    def _count(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> None:
        """Penalties look at these tokens from now on, of lines that count."""
        for i in np.flatnonzero(self._ruled[rows] & (tokens >= 0) & counts).tolist():
            seen = self._rules[int(rows[i])].counts
            if seen is not None:
                seen.add(int(tokens[i]))

    def lose(self, rows: np.ndarray) -> np.ndarray:
        """The tokens that open `rows` (of any ids) should have sampled do not exist. Returns those that are open."""
        known = rows[(rows >= 0) & (rows < self._capacity)]
        lost: np.ndarray = known[self.is_open[known]].astype(np.int64)
        self.state[lost] = LOST
        return lost

    def _rules_of(self, opened: RowOpen) -> Rules | None:
        penalizes = (
            opened.repetition_penalty != 1.0 or opened.presence_penalty != 0.0 or opened.frequency_penalty != 0.0
        )
        if not (penalizes or opened.bias_ids or opened.suppress_ids or (opened.end_ids and opened.min_length > 0)):
            return None
        bias = dict(zip(opened.bias_ids, opened.bias, strict=True))
        bias_ids = self._known(list(bias))
        counts = None
        if penalizes:
            prompt = self._known(opened.prompt_ids) if opened.repetition_penalty != 1.0 else _NOTHING
            counts = TokenCounts(prompt, self._known(opened.output_ids))
        return Rules(
            bias_ids=bias_ids,
            bias=bounded_bias(np.array([bias[i] for i in bias_ids.tolist()], np.float64)),
            suppress_ids=self._known(opened.suppress_ids),
            min_length=opened.min_length,
            end_ids=self._known(opened.end_ids),
            counts=counts,
            repetition=opened.repetition_penalty,
            presence=opened.presence_penalty,
            frequency=opened.frequency_penalty,
        )

    def _known(self, ids: np.ndarray | list[int] | None) -> np.ndarray:
        """int64[n]: those of `ids` that the logits have."""
        if ids is None:
            return _NOTHING
        array = np.asarray(ids, np.int64).reshape(-1)
        return array[(array >= 0) & (array < self._vocab_size)]

    def _grow(self, least: int) -> None:
        """Make room for row ids below `least`."""
        if least <= self._capacity:
            return
        room = 1 << (least - 1).bit_length()
        more = room - self._capacity
        for name in (
            "is_open",
            "opened",
            "state",
            "logprobs",
            "_ruled",
            "_temperature",
            "_top_k",
            "_top_p",
            "_min_p",
            "_seed",
        ):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros(more, array.dtype)]))
        self.last = torch.cat([self.last, self.last.new_zeros(more)])
        self._capacity = room


def _seen(counts: TokenCounts, line: int, standing: Standing | None) -> tuple[np.ndarray, np.ndarray]:
    """(ids, counts) that a line's penalties speak of: what its row has generated, and the guesses before the line."""
    guessed = standing.guessed(line) if standing is not None else []
    return counts.with_more(guessed) if guessed else (counts.ids, counts.counts)
