"""What a step sampled becomes output of its rows: tokens of the tree, ends where they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from radixrt.cache import PrefixCache
from radixrt.errors import GenerationFailed, RadixrtError
from radixrt.grammar import MatcherFailed, TokenRefused
from radixrt.messages import StepResult, TokenDelta
from radixrt.scheduler.batch import PlannedRow, Step
from radixrt.scheduler.drafts.certain import foretell
from radixrt.scheduler.drafts.drafter import Drafter
from radixrt.scheduler.drafts.lines import Counted
from radixrt.scheduler.ends import Ends
from radixrt.scheduler.requests import Limits, Row, State
from radixrt.scheduler.rows import RowTable
from radixrt.scheduler.specs import token_delta
from radixrt.scheduler.stats import Stats

log = logging.getLogger(__name__)

_NOT_FINITE = "the model's outputs are not finite numbers: its weights may be damaged; check the checkpoint's files"
_REFUSES = (
    "the constraint cannot be followed further: its library refuses what it allowed before; write it in other words, "
    "or name another backend"
)


@dataclass(eq=False)
class Settler:
    """Gives sampled tokens to their rows."""

    rows: RowTable
    limits: Limits
    drafter: Drafter
    stats: Stats
    clock: Callable[[], float]
    ends: Ends

    @property
    def cache(self) -> PrefixCache:
        return self.rows.cache

    def take_tokens(self, row: Row, item: PlannedRow, result: StepResult, lines: list[Counted]) -> None:
        """A row's sampled tokens, as far as its guesses held; slots of the others are its next ones."""
        ahead = not item.drafts
        row.pending -= 1
        if row.foreword and row.state is not State.FINISHED:
            self._tell_certain(row, row.foreword)
            row.foreword = []
        if item.drafts and row.state is not State.FINISHED:
            self.drafter.verified(row, item.guess, len(lines) - 1)
        for counted in lines:
            if row.state is not State.FINISHED:
                slot = row.own[0] if ahead and row.own else counted.slot
                self._take_token(row, result, counted.line, slot, forced=counted.forced)
        if item.drafts and row.drafting:
            self.rows.settle_guesses(row)

    def _take_token(self, row: Row, result: StepResult, k: int, slot: int | None, *, forced: bool) -> None:
        """A sampled token: an end, or the next token of the output.

        `slot`: the one of the row's own that holds this token, or will once a step under way is done.
        """
        request, sampling, token = row.request, row.request.sampling, int(result.tokens[k])
        if token < 0:
            self.ends.fail(request, self._why_nothing(row))
            return
        self.drafter.sampled(row)
        now = self.clock()
        self.stats.token(now - row.last_token_at if row.last_token_at else None)
        row.last_token_at = now
        if request.first_token is None:
            request.first_token = now
        if token in sampling.stop_token_ids:
            self.ends.finish(row, "stop", stop_token=token)
            return
        if token in self.limits.eos_token_ids and not sampling.ignore_eos:
            self.ends.finish(row, "stop")
            return
        if row.matcher is not None:
            try:
                row.matcher.accept(token)
            except TokenRefused:
                log.exception("a constraint refuses the token that its mask allowed")
                self.ends.fail(request, MatcherFailed(_REFUSES))
                return
            except RadixrtError as error:
                self.ends.fail(request, error)
                return
        self._append(row, token, slot, certain=forced)
        self.ends.deltas.append(token_delta(row, token, result, k, forced))
        self._finish_if_over(row)

    def _why_nothing(self, row: Row) -> RadixrtError:
        """Nothing could be sampled: the constraint may leave nothing behind a guess; else logits are no numbers."""
        if row.matcher is not None:
            mask = np.zeros((1, -(-self.limits.vocab_size // 32)), dtype=np.int32)
            try:
                row.matcher.fill(mask, 0)
            except RadixrtError as error:
                return error
        return GenerationFailed(_NOT_FINITE)

    def jump(self, row: Row, steps: Iterable[Step]) -> None:
        """Take the tokens that come next whatever is sampled; samples under way in `steps` bring nothing new."""
        if row.state is State.FINISHED:
            return
        try:
            tokens = self.drafter.certain(row)
        except RadixrtError as error:
            self.ends.fail(row.request, error)
            return
        if tokens:
            row.pending -= foretell(steps, row, tokens)
            for token in tokens:
                self._append(row, token, row.own[0] if row.own else None, certain=True)
            self._tell_certain(row, tokens)
            self._finish_if_over(row)

    def _append(self, row: Row, token: int, slot: int | None, *, certain: bool) -> None:
        """`token` is the row's next one; `slot`: see `_take_token`."""
        row.tokens.append(token)
        row.kept += 1
        self.drafter.learn(row, token, certain=certain)
        if slot is not None and row.node is not None:
            # Its slot was planned before its id was known; now it is a token of the tree.
            row.node, duplicates = self.cache.tree.extend(row.node, [token], [slot], row.request.priority)
            row.own.remove(slot)
            if duplicates:
                self.cache.release([slot])
            row.in_tree += 1

    def _tell_certain(self, row: Row, tokens: list[int]) -> None:
        now = self.clock()
        if row.request.first_token is None:
            row.request.first_token = now
        for _ in tokens:
            self.stats.token(now - row.last_token_at if row.last_token_at else None)
            row.last_token_at = now
        self.ends.deltas.append(TokenDelta(request_id=row.request.id, index=row.index, ids=tokens, forced=True))

    def _finish_if_over(self, row: Row) -> None:
        if row.matcher is not None and row.matcher.must_stop:
            self.ends.finish(row, "stop")
        elif row.output >= row.request.max_tokens:
            self.ends.finish(row, "length")
