"""xgrammar (0.2) behind the room's interface: GBNF, structural tags, and JSON Schema behind a gate of its own.

Importing it imports torch and transformers (2 s, 265 MB, and once a third of a second without the interpreter's lock),
so that is left to the first constraint that needs it. Its grammars go character by character, without llguidance's
greedy terminals. Its errors are RuntimeErrors; compile and fill release the interpreter's lock.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from radixrt.errors import ConstraintError
from radixrt.grammar import xgrammar_gate
from radixrt.grammar.cfg import check_gbnf, is_gbnf, wide_escapes
from radixrt.grammar.gate import Gated, check_schema
from radixrt.grammar.limits import Limits
from radixrt.grammar.sources import MAX_WHITESPACE, Source, check_size, proven, source_bytes
from radixrt.grammar.tables import Bits, Tables, pack, words
from radixrt.grammar.token_matcher import TokenGrammar
from radixrt.grammar.wording import UNSATISFIABLE, grammar_words
from radixrt.grammar.xgrammar_tags import check_tag
from radixrt.params import Constraint

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, Grammar, GrammarMatcher

log = logging.getLogger(__name__)

MAX_BUILD_S = 2.0
"""CPU seconds for a compile: the process that serves compiles once more, without a worker's protection."""
_ROOT = "radixrt-root"
"""A rule in front of the grammar's own: the masks of a root rule that is recursive are wrong in 0.2.9."""


class XgrammarCompiler:
    """See `backends.Backend`. Built without the library, which the first `build` imports."""

    name = "xgrammar"

    def __init__(self, tables: Tables, limits: Limits) -> None:
        self.tables = tables
        self.limits = limits
        self._compiler: Any = None
        controls = np.zeros(words(tables.width) * 32, dtype=np.uint8)
        controls[: tables.width] = [any(byte < 0x20 for byte in text) for text in tables.bytes]
        self._without_controls = ~pack(controls)
        """All tokens but those with a control character in them."""

    def prepare(self, constraint: Constraint) -> Source:
        """The gates; ConstraintError for what the library would not enforce."""
        kind = constraint.kind
        check_size(constraint, self.limits)
        if constraint.whitespace_pattern is not None:
            raise ConstraintError(
                "whitespace_pattern is not enforced by xgrammar: give any_whitespace, or leave backend out",
                param="whitespace_pattern",
            )
        if kind == "grammar":
            if not is_gbnf(constraint.value):
                raise ConstraintError("xgrammar takes GBNF (name ::= ...), not Lark: leave backend out", param=kind)
            return Source(check_gbnf(constraint.value, self.limits))
        if kind == "structural_tag":
            return Source(*check_tag(constraint.value, self.limits))
        lengths = not constraint.any_whitespace
        gated: Gated = check_schema(
            constraint.value, self.limits, also=lambda tree: xgrammar_gate.check(tree, lengths=lengths)
        )
        return Source(gated.source, added=gated.added)

    def build(self, constraint: Constraint, source: Source) -> TokenGrammar:
        """The grammar from what `prepare` returned."""
        start = time.thread_time()
        try:
            compiled = self._compile(constraint, source.text)
        except (RuntimeError, ValueError) as error:
            raise _refusal(constraint, _words(error)) from error
        if time.thread_time() - start > MAX_BUILD_S:
            raise ConstraintError(
                f"xgrammar takes more than {MAX_BUILD_S:g} s to compile this {constraint.kind}; leave backend out",
                param=constraint.kind,
            )
        compact = constraint.kind == "json_schema" and not constraint.any_whitespace
        steps = XgrammarSteps.start(compiled, self.tables, self._without_controls if compact else None)
        return proven(
            TokenGrammar(
                self.tables,
                self.limits,
                steps,
                backend=self.name,
                source_bytes=source_bytes(constraint),
                added=source.added,
                ignored=source.ignored,
                passed=source.passed,
            ),
            constraint,
        )

    @property
    def is_loaded(self) -> bool:
        return self._compiler is not None

    def load(self) -> None:
        """Import the library and give it the vocabulary; once. ConstraintError where it is not installed."""
        if self.is_loaded:
            return
        try:
            from xgrammar import GrammarCompiler, TokenizerInfo, VocabType
        except ImportError as error:
            raise ConstraintError(
                "the back end xgrammar cannot be imported: pip install xgrammar, or leave backend out", param="backend"
            ) from error

        # Tokens that are empty are special to the library, and never allowed as text.
        info = TokenizerInfo(
            self.tables.bytes,
            VocabType.RAW,
            vocab_size=self.tables.width,
            stop_token_ids=list(self.tables.end_ids),
        )
        self._compiler = GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def _compile(self, constraint: Constraint, text: str) -> CompiledGrammar:
        """Behind `load`."""
        from xgrammar import Grammar

        if constraint.kind == "grammar":
            grammar = _wrapped(text)
        elif constraint.kind == "structural_tag":
            grammar = Grammar.from_structural_tag(_with_json(json.loads(text), constraint))
        else:
            grammar = _wrapped(as_text(schema_grammar(text, constraint)))
        compiled: CompiledGrammar = self._compiler.compile_grammar(grammar)
        return compiled


def _refusal(constraint: Constraint, words: str) -> ConstraintError:
    kind = constraint.kind
    if kind == "grammar":
        return ConstraintError(f"{grammar_words(words, constraint.value)} (backend xgrammar)", param=kind)
    if "greater than" in words or "nsatisfiable" in words:
        code = UNSATISFIABLE if kind == "json_schema" else None
        return ConstraintError(f"nothing satisfies this {kind}", param=kind, code=code)
    log.info("xgrammar refuses a %s: %s", kind, words)
    return ConstraintError(f"this {kind} is not taken by xgrammar: leave backend out", param=kind)


def schema_grammar(text: str, constraint: Constraint) -> Grammar:
    """The library's grammar of a schema, with the whitespace that the constraint allows."""
    from xgrammar import Grammar

    loose = constraint.any_whitespace
    return Grammar.from_json_schema(
        text,
        any_whitespace=loose,
        max_whitespace_cnt=MAX_WHITESPACE if loose else None,
        separators=None if loose else (", ", ": ") if constraint.spaced else (",", ":"),
        strict_mode=False,
    )


def as_text(grammar: Grammar) -> str:
    """A grammar as text that the library reads back as the same one (see `cfg.wide_escapes`)."""
    return wide_escapes(str(grammar))


def _wrapped(ebnf: str) -> Grammar:
    from xgrammar import Grammar

    return Grammar.from_ebnf(f"{ebnf}\n{_ROOT} ::= root\n", root_rule_name=_ROOT)


def _with_json(form: Any, constraint: Constraint) -> Any:
    """The tag with each schema as a grammar, since the library's own way allows whitespace without end."""
    if isinstance(form, list):
        return [_with_json(one, constraint) for one in form]
    if not isinstance(form, dict):
        return form
    if form.get("type") == "json_schema":
        text = msgspec.json.encode(form["json_schema"]).decode()
        return {"type": "grammar", "grammar": as_text(schema_grammar(text, constraint))}
    return {name: _with_json(value, constraint) for name, value in form.items()}


def _words(error: Exception) -> str:
    """The library's message without its time and source line."""
    return re.sub(r"^\[[\d:]+\] \S+: ", "", str(error).strip())[:300]


class XgrammarSteps:
    """The library's matcher; see `token_matcher.Steps`. End tokens never reach it."""

    def __init__(self, tables: Tables, kept: Bits | None, inner: GrammarMatcher) -> None:
        self._tables = tables
        self._kept = kept
        self._inner = inner
        self.failure: str | None = None

    @classmethod
    def start(cls, compiled: CompiledGrammar, tables: Tables, kept: Bits | None) -> XgrammarSteps:
        """At the start of the text; of the tokens that the library allows only those in `kept` are."""
        from xgrammar import GrammarMatcher

        return cls(tables, kept, GrammarMatcher(compiled))

    def fill(self, mask: Bits) -> None:
        try:
            self._inner.fill_next_token_bitmask(mask.reshape(1, -1), 0)
        except RuntimeError as error:
            self.failure = _words(error)
            return
        if self._kept is not None:
            mask &= self._kept

    def accept(self, token: int) -> bool:
        if self._kept is not None and not self._kept[token >> 5] >> (token & 31) & 1:
            return False
        try:
            return bool(self._inner.accept_token(token))
        except RuntimeError as error:
            self.failure = _words(error)
            return False

    def accepting(self) -> bool:
        return bool(self._inner.is_completed())

    def stopped(self) -> bool:
        if not self.accepting():
            return False
        mask = np.zeros(words(self._tables.width), dtype=np.int32)
        self.fill(mask)
        return not (mask & self._tables.text_tokens).any()

    def rollback(self, n: int) -> None:
        self._inner.rollback(n)

    def copy(self) -> XgrammarSteps:
        return XgrammarSteps(self._tables, self._kept, self._inner.fork())

    def forced(self, before: Sequence[int]) -> Sequence[int]:
        del before  # the library spells what is forced without looking back
        try:
            return list(self._inner.find_jump_forward_tokens())
        except RuntimeError as error:
            self.failure = _words(error)
            return []
