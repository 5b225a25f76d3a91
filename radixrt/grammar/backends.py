"""The back ends together: which one takes a constraint, in what order they are asked, and what lax mode leaves out.

`plan` decides and proves (compile and first mask), which may be any amount of work: it is for a worker process. `build`
does what a plan says, for a process that trusts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from radixrt.errors import ConstraintError
from radixrt.grammar.lax import MAX_LEFT_OUT, leave_out
from radixrt.grammar.limits import Limits
from radixrt.grammar.llguidance_backend import Compiler, VocabularySource
from radixrt.grammar.sources import Source
from radixrt.grammar.token_matcher import TokenGrammar
from radixrt.params import Constraint


class Backend(Protocol):
    """One library."""

    def prepare(self, constraint: Constraint) -> Source:
        """The gates, and the library's source. Raises ConstraintError for what it would not enforce."""
        ...

    def build(self, constraint: Constraint, source: Source) -> TokenGrammar:
        """Compile and fill a first mask. Raises ConstraintError."""
        ...


class Plan(msgspec.Struct, frozen=True):
    """Which back end takes a constraint, and what it is given."""

    backend: str
    source: Source


class Backends:
    """For one vocabulary and one width of logits."""

    def __init__(
        self, tokenizer_json: str, *, size: int, eos_ids: Sequence[int], vocab_size: int, limits: Limits
    ) -> None:
        """See `llguidance_backend.Compiler`, which is built at once; other libraries when they are first needed."""
        self.limits = limits
        self._llguidance = Compiler(tokenizer_json, size=size, eos_ids=eos_ids, vocab_size=vocab_size, limits=limits)
        self.tables = self._llguidance.tables
        self._made: dict[str, Backend] = {"llguidance": self._llguidance}

    def compile(self, constraint: Constraint) -> TokenGrammar:
        """The grammar of a constraint, here and now. Raises ConstraintError."""
        return self._decide(constraint)[1]

    def plan(self, constraint: Constraint) -> Plan:
        """Raises ConstraintError; of several back ends that refuse, the first one's."""
        return self._decide(constraint)[0]

    def build(self, constraint: Constraint, plan: Plan) -> TokenGrammar:
        """The grammar of a constraint that was planned."""
        return self._backend(plan.backend).build(constraint, plan.source)

    def _decide(self, constraint: Constraint) -> tuple[Plan, TokenGrammar]:
        ignored: list[str] = []
        current = constraint
        while True:
            try:
                return self._first(constraint, current, tuple(ignored))
            except ConstraintError as error:
                if not constraint.lax or len(ignored) >= MAX_LEFT_OUT:
                    raise
                found = leave_out(current.value, error, self.limits)
                if found is None:
                    raise
                text, place = found
                ignored.append(place)
                current = msgspec.structs.replace(constraint, value=text)

    def _first(
        self, constraint: Constraint, current: Constraint, ignored: tuple[str, ...]
    ) -> tuple[Plan, TokenGrammar]:
        refused: ConstraintError | None = None
        for name in candidates(constraint):
            backend = self._backend(name)
            try:
                source = msgspec.structs.replace(backend.prepare(current), ignored=ignored)
                return Plan(name, source), backend.build(current, source)
            except ConstraintError as error:
                refused = refused or error
            except RecursionError as error:
                raise ConstraintError(
                    f"this {constraint.kind} refers too deeply into itself to be enforced", param=constraint.kind
                ) from error
        raise refused or ConstraintError("no back end takes this constraint", param="backend")

    def _backend(self, name: str) -> Backend:
        if name == "outlines" and name not in self._made:
            from radixrt.grammar.outlines_backend import OutlinesCompiler

            self._made[name] = OutlinesCompiler(self.tables, self.limits, self._llguidance)
        return self._made[name]


TAKES: dict[str, tuple[str, ...]] = {
    "llguidance": ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"),
    "outlines": ("regex", "choice"),
}
"""Back end -> kinds of constraint that it may be asked for. `auto` asks llguidance, which takes all of them: of the
others each is right only for some constraints of a kind, and slower to build."""


def candidates(constraint: Constraint) -> tuple[str, ...]:
    """Back ends to ask, first to last. ConstraintError (`backend`) where the one named takes no such kind."""
    if constraint.backend == "auto":
        return ("llguidance",)
    kinds = TAKES.get(constraint.backend, ())
    if not kinds:
        raise ConstraintError(
            f"the back end {constraint.backend} is not available here; there are {', '.join(TAKES)}", param="backend"
        )
    if constraint.kind not in kinds:
        raise ConstraintError(
            f"the back end {constraint.backend} takes no {constraint.kind}; it takes {', '.join(kinds)}",
            param="backend",
        )
    return (constraint.backend,)


def compile_constraint(
    constraint: Constraint, vocabulary: VocabularySource, vocab_size: int, limits: Limits | None = None
) -> TokenGrammar:
    """A constraint compiled here and now, without a worker's protection: for tools and tests."""
    return Backends(
        vocabulary.tokenizer_json(),
        size=vocabulary.size,
        eos_ids=vocabulary.eos_ids,
        vocab_size=vocab_size,
        limits=limits or Limits(),
    ).compile(constraint)
