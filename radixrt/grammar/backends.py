"""The back ends together: which one takes a constraint, in what order they are asked, and what lax mode leaves out.

`plan` decides and proves (compile and first mask), which may be any amount of work: it is for a worker process. `build`
does what a plan says, for a process that trusts it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from radixrt.errors import ConstraintError
from radixrt.grammar.keywords import ELSEWHERE, NOT_ENFORCED
from radixrt.grammar.lax import MAX_LEFT_OUT, leave_out
from radixrt.grammar.limits import Limits
from radixrt.grammar.llguidance_backend import Compiler, VocabularySource
from radixrt.grammar.sources import Plan, Source
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


class Backends:
    """For one vocabulary and one width of logits."""

    def __init__(
        self,
        tokenizer_json: str,
        *,
        size: int,
        eos_ids: Sequence[int],
        vocab_size: int,
        limits: Limits,
        preferred: str = "auto",
        loading: Callable[[bool], None] | None = None,
    ) -> None:
        """See `llguidance_backend.Compiler`, which is built at once; other libraries when they are first needed.

        Args:
            preferred: the back end that `auto` asks first, for the kinds that it takes.
            loading: called with True before a library is imported that takes long, with False afterwards.
        """
        self.limits = limits
        self._preferred = preferred
        self._loading = loading or (lambda _: None)
        self._lock = threading.Lock()
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
        backend = self._backend(plan.backend)
        self._load(backend)
        return _placed(constraint, backend.build(constraint, plan.source))

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
        passed: list[str] = []
        for name in candidates(constraint, self._preferred):
            backend = self._backend(name)
            try:
                source = msgspec.structs.replace(backend.prepare(current), ignored=ignored, passed=tuple(passed))
                self._load(backend)
                return Plan(name, source), _placed(constraint, backend.build(current, source))
            except ConstraintError as error:
                if refused is None or refused.code == ELSEWHERE:
                    refused = error
                passed.append(f"{name}: {error.message}")
                if error.code not in (NOT_ENFORCED, ELSEWHERE) and name != self._preferred:
                    break  # a fault of the constraint's own
            except RecursionError as error:
                raise ConstraintError(
                    f"this {constraint.kind} refers too deeply into itself to be enforced", param=constraint.kind
                ) from error
        raise refused or ConstraintError("no back end takes this constraint", param="backend")

    def _backend(self, name: str) -> Backend:
        with self._lock:
            if name == "outlines" and name not in self._made:
                from radixrt.grammar.outlines_backend import OutlinesCompiler

                self._made[name] = OutlinesCompiler(self.tables, self.limits, self._llguidance)
            if name == "xgrammar" and name not in self._made:
                from radixrt.grammar.xgrammar_backend import XgrammarCompiler

                self._made[name] = XgrammarCompiler(self.tables, self.limits)
            return self._made[name]

    def _load(self, backend: Backend) -> None:
        from radixrt.grammar.xgrammar_backend import XgrammarCompiler

        if not isinstance(backend, XgrammarCompiler) or backend.is_loaded:
            return
        with self._lock:
            self._loading(True)
            backend.load()
            self._loading(False)


def _placed(constraint: Constraint, grammar: TokenGrammar) -> TokenGrammar:
    if not constraint.behind:
        return grammar
    return grammar.behind(constraint.behind.encode(), constraint.think.encode(), constraint.think_tokens)


TAKES: dict[str, tuple[str, ...]] = {
    "llguidance": ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"),
    "xgrammar": ("json_schema", "grammar", "structural_tag"),
    "outlines": ("regex", "choice"),
}
"""Back end -> kinds of constraint that it may be asked for. `auto` asks llguidance, which takes all of them, and then
xgrammar for what llguidance does not enforce: integers between bounds of 64 bits, formats of structural tags. outlines
is asked where it is named: whatever it enforces llguidance does too, and is quicker to build."""
_AUTO = ("llguidance", "xgrammar")


def candidates(constraint: Constraint, preferred: str = "auto") -> tuple[str, ...]:
    """Back ends to ask, first to last. ConstraintError (`backend`) where the one named takes no such kind."""
    if constraint.backend == "auto":
        order = dict.fromkeys([preferred, *_AUTO])
        able = [name for name in order if constraint.kind in TAKES.get(name, ())]
        return tuple(name for name in able if name == "llguidance" or not constraint.controls)
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
    if constraint.controls and constraint.backend != "llguidance":
        raise ConstraintError(
            f"the back end {constraint.backend} writes no control tokens, with which this model opens its calls; leave "
            "backend out",
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
