"""outlines-core (0.2) behind the room's interface, for regexes and choices that ask for it.

Its index is a plain automaton over tokens, built whole beforehand, so a mask is a look-up. Of some regexes it is wrong:
it stops at the first text that matches (`yes|yes please` stops at yes). So each index is compared, state by state, with
llguidance's masks, and the constraint is refused where they differ.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from radixrt.errors import ConstraintError
from radixrt.grammar.limits import Limits
from radixrt.grammar.llguidance_backend import Compiler, literal_regex
from radixrt.grammar.sources import Source, proven, source_bytes
from radixrt.grammar.tables import Bits, Tables, pack, words
from radixrt.grammar.token_matcher import TokenGrammar
from radixrt.params import Constraint

if TYPE_CHECKING:
    from outlines_core import Index

log = logging.getLogger(__name__)

MAX_BUILD_S = 0.5
"""CPU seconds for an index: the process that serves builds it once more, without a worker's protection."""
MAX_STATES = 2000
"""States that are compared; an index of more is refused."""


class OutlinesCompiler:
    """See `backends.Backend`. `judge` is the back end that each index is compared with."""

    name = "outlines"

    def __init__(self, tables: Tables, limits: Limits, judge: Compiler) -> None:
        from outlines_core import Vocabulary

        self.tables = tables
        self.limits = limits
        self._judge = judge
        by_bytes: dict[str | bytes, list[int]] = {}
        for token, text in enumerate(tables.bytes):
            if text:
                by_bytes.setdefault(text, []).append(token)
        # The library wants an end token that is no text: one id beyond all that can be sampled.
        self._vocabulary = Vocabulary(tables.width, by_bytes)

    def prepare(self, constraint: Constraint) -> Source:
        """The regex, after the gates of regexes and the comparison. Raises ConstraintError."""
        judged = self._judge.compile(constraint)
        if constraint.kind == "choice":
            source = Source("(?:" + "|".join(map(literal_regex, constraint.choices)) + ")")
        else:
            source = Source(constraint.value)
        start = time.thread_time()
        index = self._index(constraint, source)
        if time.thread_time() - start > MAX_BUILD_S:
            raise self._refusal(constraint, f"its index takes more than {MAX_BUILD_S:g} s to build")
        self._compare(constraint, index, judged)
        return source

    def build(self, constraint: Constraint, source: Source) -> TokenGrammar:
        """The grammar from what `prepare` returned."""
        steps = _Steps(self._index(constraint, source), self.tables.width)
        size = source_bytes(constraint)
        grammar = TokenGrammar(
            self.tables, self.limits, steps, backend=self.name, source_bytes=size, passed=source.passed
        )
        return proven(grammar, constraint)

    def _index(self, constraint: Constraint, source: Source) -> Index:
        from outlines_core import Index

        try:
            return Index(source.text, self._vocabulary)
        except (ValueError, RuntimeError) as error:
            log.info("outlines-core refuses a %s: %s", constraint.kind, error)
            raise self._refusal(constraint, "it is not taken (anchors, for one, are not)") from error

    def _compare(self, constraint: Constraint, index: Index, judged: TokenGrammar) -> None:
        """Every state, reached by one path, must allow the tokens that the other back end allows after that path."""
        transitions = index.get_transitions()
        if len(transitions) > MAX_STATES:
            raise self._refusal(constraint, f"its index has more than {MAX_STATES} states")
        steps = _Steps(index, self.tables.width)
        mask = np.zeros((1, words(self.tables.vocab_size)), dtype=np.int32)
        seen = {steps.state}
        todo = deque([(steps, judged.matcher(any_spelling=True))])
        while todo:
            here, matcher = todo.popleft()
            matcher.fill(mask, 0)
            mine = np.zeros(words(self.tables.width), dtype=np.int32)
            here.fill(mine)
            text = self.tables.text_tokens
            ours = (mine & text)[: mask.shape[1]]
            if (ours != (mask[0] & text[: mask.shape[1]])).any() or here.accepting() is not matcher.may_stop:
                raise self._refusal(constraint, "outlines-core would not allow all that it matches")
            for token, following in transitions.get(here.state, {}).items():
                if following in seen or token >= self.tables.vocab_size:
                    continue
                seen.add(following)
                there, twin = here.copy(), matcher.fork()
                there.accept(token)
                twin.accept(token)
                todo.append((there, twin))

    def _refusal(self, constraint: Constraint, why: str) -> ConstraintError:
        return ConstraintError(
            f"{constraint.kind} with backend outlines: {why}; leave backend out", param=constraint.kind
        )


class _Steps:
    """A state of the index; see `token_matcher.Steps`."""

    failure = None

    def __init__(self, index: Index, width: int, masks: dict[int, Bits] | None = None) -> None:
        self._index = index
        self._width = width
        self._masks: dict[int, Bits] = {} if masks is None else masks
        self._path: list[int] = [index.get_initial_state()]

    @property
    def state(self) -> int:
        return self._path[-1]

    def fill(self, mask: Bits) -> None:
        found = self._masks.get(self.state)
        if found is None:
            plain = np.zeros(words(self._width) * 32, dtype=np.uint8)
            plain[[token for token in self._index.get_allowed_tokens(self.state) or () if token < self._width]] = 1
            found = self._masks[self.state] = pack(plain)
        mask[:] = found

    def accept(self, token: int) -> bool:
        following = self._index.get_next_state(self.state, token)
        if following is None:
            return False
        self._path.append(following)
        return True

    def accepting(self) -> bool:
        return bool(self._index.is_final_state(self.state))

    def stopped(self) -> bool:
        return all(token >= self._width for token in self._index.get_allowed_tokens(self.state) or ())

    def rollback(self, n: int) -> None:
        del self._path[len(self._path) - n :]

    def copy(self) -> _Steps:
        twin = _Steps(self._index, self._width, self._masks)
        twin._path = list(self._path)
        return twin

    def forced(self, before: Sequence[int]) -> Sequence[int]:
        return []
