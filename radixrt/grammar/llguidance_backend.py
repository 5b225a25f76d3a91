"""llguidance (1.9) behind the room's interface. It never raises: every call here is followed by a look at its error.

`prepare` turns a constraint into the library's grammar source, through the gates; `Compiler` turns that into a
`Grammar` for one vocabulary. The library is imported when it is first needed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from radixrt.errors import ConstraintError, ModelError
from radixrt.grammar.cfg import check_lark, gbnf_to_lark, is_gbnf
from radixrt.grammar.errors import GrammarDeadEnd, MatcherFailed, TokenRefused
from radixrt.grammar.gate import check_schema, locate
from radixrt.grammar.interface import Bitmask
from radixrt.grammar.limits import Limits
from radixrt.grammar.patterns import check_pattern
from radixrt.params import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_WHITESPACE = 32
"""Most whitespace characters in a row between JSON tokens, with `any_whitespace`."""
_CONTEXT = 8
"""Tokens before forced text that its tokenization may depend on."""
_REGEX_META = frozenset("\\.+*?()|[]{}^$#&-~")
_JSON_OPTIONS: dict[str, Any] = {
    "lenient": False,
    "coerce_one_of": False,
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": False,
    # With \uXXXX a declared key could be spelt in a second way and escape its own schema.
    "json_allowed_escapes": 'nrbtf\\"',
    "json_allow_general_unicode_escapes": False,
}
"""Options that override whatever a schema says of itself."""


class VocabularySource(Protocol):
    """What the room needs of a tokenizer (`radixrt.checkpoint.Vocabulary` is one)."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    def tokenizer_json(self) -> str: ...


def prepare(constraint: Constraint, limits: Limits) -> str:
    """The llguidance grammar for a constraint, after the gates.

    Raises ConstraintError for what is malformed, above a limit, or known not to be enforced.
    """
    from llguidance import LLMatcher

    kind = constraint.kind
    check_size(constraint, limits)
    if kind == "regex":
        check_pattern(
            constraint.value,
            json_string=False,
            max_depth=limits.max_depth,
            max_repetition=limits.max_repetition,
            param=kind,
            what=kind,
        )
        return _unforced(LLMatcher.grammar_from_regex(constraint.value))
    if kind == "choice":
        return _unforced(LLMatcher.grammar_from_regex("|".join(map(_literal, constraint.choices))))
    if kind == "grammar":
        text = constraint.value
        lark = gbnf_to_lark(text, limits) if is_gbnf(text) else check_lark(text, limits)
        return LLMatcher.grammar_from_lark(f"{lark}\n{_NO_FORCING}\n")
    source = '{"type":"object"}' if kind == "json_object" else check_schema(constraint.value, limits).source
    options = dict(_JSON_OPTIONS)
    if constraint.any_whitespace:
        options["whitespace_pattern"] = rf"[\x20\x0A\x0D\x09]{{1,{MAX_WHITESPACE}}}"
    try:
        return _unforced(LLMatcher.grammar_from_json_schema(source, overrides=options))  # type: ignore[arg-type]
    except ValueError as error:
        raise ConstraintError(f"the schema cannot be read: {error}", param=kind) from error


def check_size(constraint: Constraint, limits: Limits) -> None:
    """Raises ConstraintError when the constraint's source is too large or no UTF-8 text; costs next to nothing."""
    kind = constraint.kind
    if len(constraint.choices) > limits.max_choices:
        raise ConstraintError(
            f"choice holds {len(constraint.choices)} strings; the limit is {limits.max_choices}", param=kind
        )
    try:
        size = source_bytes(constraint)
    except UnicodeEncodeError as error:
        raise ConstraintError(f"{kind} holds a lone surrogate, which no text can contain", param=kind) from error
    if size > limits.max_source_bytes:
        raise ConstraintError(f"{kind} is {size} bytes long; the limit is {limits.max_source_bytes}", param=kind)


def source_bytes(constraint: Constraint) -> int:
    """UTF-8 bytes of a constraint's source."""
    return len(constraint.value.encode()) + sum(len(choice.encode()) for choice in constraint.choices)


class Compiler:
    """Compiles for one vocabulary and one width of logits; building it takes 0.2-0.5 s."""

    def __init__(
        self, tokenizer_json: str, *, size: int, eos_ids: Sequence[int], vocab_size: int, limits: Limits
    ) -> None:
        """
        Args:
            tokenizer_json: a tokenizer.json as text.
            size: of the tokenizer's vocabulary; ids from here on are never allowed.
            eos_ids: the model's end tokens.
            vocab_size: V, the width of the logits, which may be above or below the tokenizer's size.
            limits: of one constraint.

        Raises ModelError when the library cannot use the tokenizer.
        """
        from llguidance import LLParserLimits, LLTokenizer

        self.vocab_size = vocab_size
        self.limits = limits
        self.end_ids = tuple(token for token in dict.fromkeys(eos_ids) if 0 <= token < vocab_size)
        if not self.end_ids:
            raise ModelError("the model has no end token: constraints need one")
        self.width = max(vocab_size, size)
        try:
            self.tokenizer = LLTokenizer(tokenizer_json, n_vocab=self.width, eos_token=list(self.end_ids))
        except ValueError as error:
            raise ModelError(f"the tokenizer cannot be used for constraints: {error}") from error
        self.parser_limits = LLParserLimits(verbose_errors=False, max_lexer_states=limits.max_lexer_states)
        plain = np.zeros(_words(self.width) * 32, dtype=np.uint8)
        is_special, decode = self.tokenizer.is_special_token, self.tokenizer.decode_bytes
        for token in range(min(vocab_size, size)):
            plain[token] = not is_special(token) and bool(decode([token]))
        plain[list(self.end_ids)] = 0
        self.text_tokens = _pack(plain)
        self.ends = _Ends.of(self, ())

    def compile(self, constraint: Constraint) -> LLGuidanceGrammar:
        """The grammar of a constraint, its first mask proven not empty. Raises ConstraintError."""
        return self.build(constraint, prepare(constraint, self.limits))

    def build(self, constraint: Constraint, source: str) -> LLGuidanceGrammar:
        """The same from what `prepare` returned."""
        from llguidance import LLMatcher

        inner = LLMatcher(self.tokenizer, source, log_level=0, limits=self.parser_limits)
        if inner.is_error():
            raise self._refusal(constraint, inner.get_error())
        warnings = inner.get_grammar_warnings()
        if warnings:
            raise self._refusal(constraint, "; ".join(warnings))
        try:
            # On the original, so that copies start with the lexer states that the first mask builds.
            LLGuidanceMatcher(self, inner, self.ends).fill(np.zeros((1, _words(self.vocab_size)), dtype=np.int32), 0)
        except (GrammarDeadEnd, MatcherFailed) as error:
            raise ConstraintError(
                f"nothing satisfies this {constraint.kind}, or it is too complex: {error.message}",
                param=constraint.kind,
            ) from error
        return LLGuidanceGrammar(self, inner, source_bytes(constraint))

    def _refusal(self, constraint: Constraint, error: str) -> ConstraintError:
        kind = constraint.kind
        words = _first_words(error)
        place = locate(constraint.value, words, self.limits) if kind == "json_schema" else None
        return ConstraintError(f"this {kind} cannot be enforced: {words}", param=place or kind)


class LLGuidanceGrammar:
    """A compiled constraint: a matcher at the start, whose copies share nothing that changes."""

    def __init__(self, compiler: Compiler, start: LLMatcher, size: int) -> None:
        self.compiler = compiler
        self.source_bytes = size
        self._start = start

    def matcher(self, end_ids: Sequence[int] = ()) -> LLGuidanceMatcher:
        ends = _Ends.of(self.compiler, end_ids) if end_ids else self.compiler.ends
        return LLGuidanceMatcher(self.compiler, self._start.deep_copy(), ends)


class _Ends:
    """The end tokens of a row, and what may be text beside them, as bits."""

    def __init__(self, ids: frozenset[int], bits: NDArray[np.int32], text: NDArray[np.int32]) -> None:
        self.ids = ids
        self.bits = bits
        self.text = text

    @staticmethod
    def of(compiler: Compiler, extra: Sequence[int]) -> _Ends:
        ids = frozenset(compiler.end_ids) | {token for token in extra if 0 <= token < compiler.vocab_size}
        plain = np.zeros(_words(compiler.width) * 32, dtype=np.uint8)
        plain[list(ids)] = 1
        bits = _pack(plain)
        return _Ends(ids, bits, compiler.text_tokens & ~bits)


class LLGuidanceMatcher:
    """One row's state. End tokens are kept out of the library: it does not take them back."""

    def __init__(self, compiler: Compiler, inner: LLMatcher, ends: _Ends) -> None:
        self._compiler = compiler
        self._inner = inner
        self._ends = ends
        self._tokens: list[int] = []
        self._ended = False
        self._failure: str | None = None

    @property
    def may_stop(self) -> bool:
        return not self._failure and (self._ended or bool(self._inner.is_accepting()))

    @property
    def must_stop(self) -> bool:
        return self._ended or (self.may_stop and bool(self._inner.is_stopped()))

    def fill(self, bitmask: Bitmask, row: int) -> None:
        target = bitmask[row]
        words = _words(self._compiler.vocab_size)
        if bitmask.dtype != np.int32 or target.shape != (words,):
            raise ValueError(f"the bitmask must be int32[rows, {words}]")
        target[:] = 0
        self._check()
        if self.must_stop:
            mask = self._ends.bits
        else:
            mask = np.zeros(_words(self._compiler.width), dtype=np.int32)
            start = time.thread_time()
            self._inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            self._clock(start)
            # A matcher that gave up still sets the bits of end tokens.
            self._check()
            mask &= self._ends.text
            if self.may_stop:
                mask |= self._ends.bits
        target[:] = mask[:words]
        if not target.any():
            raise GrammarDeadEnd("no token can follow within the constraint")

    def accept(self, token: int) -> None:
        self._check()
        if self._ended:
            raise TokenRefused(f"token {token} comes after the end")
        if token in self._ends.ids:
            if not self.may_stop:
                raise TokenRefused(f"the end token {token} comes before the text is complete")
            self._ended = True
        else:
            start = time.thread_time()
            taken = self._is_text(token) and self._inner.try_consume_tokens([token]) == 1
            self._clock(start)
            self._check()
            if not taken:
                raise TokenRefused(f"token {token} is not allowed by the constraint here")
        self._tokens.append(token)

    def rollback(self, n: int) -> None:
        if not 0 <= n <= len(self._tokens):
            raise ValueError(f"cannot take back {n} of {len(self._tokens)} tokens")
        self._check()
        del self._tokens[len(self._tokens) - n :]
        if n and self._ended:
            self._ended = False
            n -= 1
        if n:
            self._inner.rollback(n)
            self._check()

    def fork(self) -> LLGuidanceMatcher:
        self._check()
        twin = LLGuidanceMatcher(self._compiler, self._inner.deep_copy(), self._ends)
        twin._tokens, twin._ended = list(self._tokens), self._ended
        return twin

    def forced(self) -> list[int]:
        self._check()
        if self.must_stop:
            return []
        text = bytes(self._inner.compute_ff_bytes())
        self._check()
        # The last bytes may belong to a token that goes on beyond what is forced: those are left to the model.
        tokens, _ = self._compiler.tokenizer.tokenize_partial(text, self._tokens[-_CONTEXT:])
        sure = self._inner.validate_tokens(tokens)
        self._check()
        return list(takewhile(self._is_text, tokens[:sure]))

    def _is_text(self, token: int) -> bool:
        words = self._ends.text
        return 0 <= token < self._compiler.vocab_size and bool(words[token >> 5] >> (token & 31) & 1)

    def _clock(self, start: float) -> None:
        """Fail when the step since `start` cost too much: the next one would cost more, and everybody waits for it."""
        used, limit = time.thread_time() - start, self._compiler.limits.max_step_s
        if used > limit:
            self._failure = f"one step took {used:.2f} s, the limit is {limit:g} s"

    def _check(self) -> None:
        if self._failure is None and self._inner.is_error():
            self._failure = _first_words(self._inner.get_error())
        if self._failure is None:
            return
        if self._failure.startswith("NoExtension"):
            raise GrammarDeadEnd("no token can follow within the constraint")
        raise MatcherFailed(f"the constraint became too complex to follow: {self._failure}")


def compile_constraint(
    constraint: Constraint, vocabulary: VocabularySource, vocab_size: int, limits: Limits | None = None
) -> LLGuidanceGrammar:
    """A constraint compiled here and now, without a worker's protection: for tools and tests."""
    used = limits or Limits()
    compiler = Compiler(
        vocabulary.tokenizer_json(),
        size=vocabulary.size,
        eos_ids=vocabulary.eos_ids,
        vocab_size=vocab_size,
        limits=used,
    )
    return compiler.compile(constraint)


_NO_FORCING = '%llguidance {"no_forcing": true}'
"""Else, where the next bytes are certain, a mask holds only the library's own tokens for them, while it accepts any."""


def _unforced(source: str) -> str:
    """A JSON Schema or regex grammar of the library, without forcing."""
    grammars = msgspec.json.decode(source)
    first = grammars["grammars"][0]
    if first.get("lark_grammar") is not None:
        first["lark_grammar"] += f"\n{_NO_FORCING}\n"
    else:
        first["name"] = "json"
        grammars["grammars"].insert(0, {"name": "start", "lark_grammar": f"{_NO_FORCING}\nstart: @json\n"})
    return msgspec.json.encode(grammars).decode()


def _literal(text: str) -> str:
    """A regex that matches exactly this text."""
    return "".join(f"\\{char}" if char in _REGEX_META else char for char in text)


def _first_words(error: str) -> str:
    """A library's message without its state dump, at most 300 characters."""
    words = error.split("\n<state>")[0].strip()
    return words if len(words) <= 300 else words[:297] + "..."


def _words(size: int) -> int:
    return (size + 31) // 32


def _pack(bits: NDArray[np.uint8]) -> NDArray[np.int32]:
    return np.packbits(bits, bitorder="little").view(np.int32)
