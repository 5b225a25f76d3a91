"""What would become of a constraint and of texts under it, measured: the work behind `radixrt grammar check`.

Constraints go through the same compile service as in the engine, so that one that is too expensive is refused here too.
"""

from __future__ import annotations

import json
import select
import statistics
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias

import msgspec
import numpy as np

from radixrt.errors import RadixrtError
from radixrt.grammar.child import UNABLE
from radixrt.grammar.errors import GrammarError
from radixrt.grammar.instances import Encode, Verdict, verdict
from radixrt.grammar.interface import Grammar
from radixrt.grammar.limits import Limits
from radixrt.grammar.llguidance_backend import VocabularySource
from radixrt.grammar.service import CompileService
from radixrt.params import Constraint

Status: TypeAlias = Literal["enforced", "refused", "error"]
"""`error`: the compile worker passed a limit, crashed or could not start."""
_ERRORS = frozenset({"constraint_too_expensive", "constraints_unavailable", UNABLE})


class Tokenizer(VocabularySource, Protocol):
    """A vocabulary that also encodes (`radixrt.checkpoint.Vocabulary`)."""

    def encode(self, text: str) -> list[int]: ...


class Report(msgspec.Struct, kw_only=True):
    """What became of a constraint."""

    status: Status
    backend: str | None = None
    pointer: str | None = None
    """Where a refusal points."""
    message: str | None = None
    added: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    compile_ms: float = 0.0
    """From asking until the grammar is there."""


class CaseReport(msgspec.Struct, kw_only=True, omit_defaults=False):
    """One line of output for one case of `--cases`."""

    id: str
    status: Status
    backend: str | None = None
    pointer: str | None = None
    message: str | None = None
    added: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    compile_ms: float = 0.0
    valid_accepted: int = 0
    valid_order: int = 0
    """Valid instances that are accepted with their keys in another order, and not counted as accepted."""
    valid_total: int = 0
    invalid_accepted: int = 0
    invalid_total: int = 0
    mask_us_p50: float | None = None
    mask_us_max: float | None = None


class Checker:
    """A compile service for one vocabulary; a context manager. Its worker is up before anything is measured."""

    def __init__(self, vocabulary: Tokenizer, limits: Limits | None = None) -> None:
        self._encode: Encode = vocabulary.encode
        self._service = CompileService(vocabulary, vocabulary.size, limits)
        self._words = (vocabulary.size + 31) // 32
        self._answer(Constraint(kind="regex", value="a"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._service.close()

    def compile(self, constraint: Constraint) -> tuple[Report, Grammar | None]:
        """The constraint's report, and its grammar where it is enforced."""
        start = time.perf_counter()
        answer = self._answer(constraint)
        took_ms = round((time.perf_counter() - start) * 1000, 3)
        if isinstance(answer, RadixrtError):
            status: Status = "error" if answer.code in _ERRORS else "refused"
            return Report(status=status, pointer=answer.param, message=answer.message, compile_ms=took_ms), None
        return (
            Report(
                status="enforced",
                backend=answer.backend,
                added=answer.added,
                ignored=answer.ignored,
                compile_ms=took_ms,
            ),
            answer,
        )

    def _answer(self, constraint: Constraint) -> Grammar | RadixrtError:
        while (answer := self._service.request(constraint)) is None:
            select.select([self._service.fileno()], [], [])
            self._service.completed()
        return answer

    def verdict(self, grammar: Grammar, value: Any, schema: Any, *, loose: bool = False) -> Verdict:
        """What becomes of a JSON value."""
        return verdict(grammar, self._encode, value, schema, loose=loose)

    def follow(self, grammar: Grammar, text: str) -> tuple[str | None, list[float]]:
        """Go through a text token by token: (why it is not accepted, microseconds of each mask)."""
        matcher = grammar.matcher()
        mask = np.zeros((1, self._words), dtype=np.int32)
        times: list[float] = []
        tokens = self._encode(text)
        for i, token in enumerate(tokens):
            start = time.perf_counter()
            try:
                matcher.fill(mask, 0)
                times.append((time.perf_counter() - start) * 1e6)
                matcher.accept(token)
            except GrammarError as error:
                return f"refused at token {i} of {len(tokens)}: {error.message}", times
        return None if matcher.may_stop else "the text is not complete", times

    def case(self, case: dict[str, Any], options: dict[str, Any]) -> CaseReport:
        """A case {id, schema, valid: [...], invalid: [...]}; `options` are fields of its Constraint."""
        schema = case["schema"]
        loose = bool(options.get("any_whitespace"))
        constraint = Constraint(kind="json_schema", value=json.dumps(schema, ensure_ascii=False), **options)
        report, grammar = self.compile(constraint)
        made = CaseReport(id=str(case["id"]), **msgspec.structs.asdict(report))
        if grammar is None:
            return made
        times: list[float] = []
        for instance in case.get("valid", ()):
            found = {self.verdict(grammar, instance, schema, loose=form) for form in _forms(loose)}
            made.valid_total += 1
            made.valid_accepted += found == {"accepted"}
            made.valid_order += found != {"accepted"} and "refused" not in found
            times += self.follow(grammar, _compact(instance))[1]
        for instance in case.get("invalid", ()):
            made.invalid_total += 1
            made.invalid_accepted += any(
                self.verdict(grammar, instance, schema, loose=form) != "refused" for form in _forms(loose)
            )
            times += self.follow(grammar, _compact(instance))[1]
        if times:
            made.mask_us_p50, made.mask_us_max = round(statistics.median(times), 1), round(max(times), 1)
        return made


def summary(reports: list[CaseReport]) -> dict[str, Any]:
    """The last line of `--cases`."""
    enforced = [one for one in reports if one.status == "enforced"]
    totals = ("valid_accepted", "valid_order", "valid_total", "invalid_accepted", "invalid_total")
    compiles = sorted(one.compile_ms for one in enforced)
    masks = [one.mask_us_max for one in enforced if one.mask_us_max is not None]
    return {
        "summary": True,
        "cases": len(reports),
        **{status: sum(one.status == status for one in reports) for status in ("enforced", "refused", "error")},
        **{name: sum(getattr(one, name) for one in reports) for name in totals},
        "compile_ms_p50": round(statistics.median(compiles), 3) if compiles else None,
        "compile_ms_max": compiles[-1] if compiles else None,
        "mask_us_max": max(masks) if masks else None,
    }


def _forms(loose: bool) -> Iterator[bool]:
    """Whether to write instances with spaces: compact always, `json.dumps` form too where whitespace is flexible."""
    yield False
    if loose:
        yield True


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
