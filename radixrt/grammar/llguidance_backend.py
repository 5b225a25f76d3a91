"""llguidance (1.9) behind the room's interface. It never raises: every call is followed by a look at its error.

`prepare` turns a constraint into the library's grammar source, through the gates; `Compiler` turns that into a
`Grammar` for one vocabulary. The library is imported when it is first needed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from radixrt.errors import ConstraintError, ModelError
from radixrt.grammar.cfg import check_lark, gbnf_to_lark, is_gbnf
from radixrt.grammar.few_keys import few_keys
from radixrt.grammar.gate import Gated, check_schema, locate
from radixrt.grammar.keys import Quotes, Reader, UniqueKeys, may_repeat
from radixrt.grammar.keywords import NOT_ENFORCED
from radixrt.grammar.limits import Limits
from radixrt.grammar.llguidance_steps import LlguidanceSteps
from radixrt.grammar.patterns import check_pattern
from radixrt.grammar.sources import MAX_WHITESPACE, Source, check_size, proven, source_bytes
from radixrt.grammar.stores import Stores
from radixrt.grammar.structural import StructuralTag, lark, read_structural_tag
from radixrt.grammar.tables import Tables, usable_ends
from radixrt.grammar.tag_places import TagPlace, texts_of
from radixrt.grammar.token_matcher import Steps, TokenGrammar
from radixrt.grammar.wording import first_words, grammar_words, regex_words, schema_words
from radixrt.params import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher

AGAIN_S = 0.02
"""CPU seconds that a grammar may take to be made if it may be made again while rows wait (usually 0.001)."""
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


def prepare(constraint: Constraint, limits: Limits, controls: Mapping[str, int] | None = None) -> Source:
    """The llguidance grammar for a constraint, after the gates; `controls`: the ids of those that it names.

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
        return Source(_unforced(LLMatcher.grammar_from_regex(constraint.value)))
    if kind == "choice":
        return Source(_unforced(LLMatcher.grammar_from_regex("|".join(map(literal_regex, constraint.choices)))))
    if kind == "grammar":
        text = constraint.value
        lark = gbnf_to_lark(text, limits) if is_gbnf(text) else check_lark(text, limits)
        return Source(LLMatcher.grammar_from_lark(f"{lark}\n{_NO_FORCING}\n"))
    if kind == "structural_tag":
        return structural_source(read_structural_tag(constraint.value, limits), constraint, limits, controls or {})
    gated = Gated('{"type":"object"}') if kind == "json_object" else check_schema(constraint.value, limits)
    options = json_options(constraint)
    try:
        made = LLMatcher.grammar_from_json_schema(gated.source, overrides=options)  # type: ignore[arg-type]
    except ValueError as error:
        raise ConstraintError("the schema cannot be read", param=kind) from error
    document = msgspec.json.decode(gated.source)
    return Source(_unforced(made), added=gated.added, unique_keys=may_repeat(document), few_keys=few_keys(document))


def json_options(constraint: Constraint) -> dict[str, Any]:
    """The library's options for JSON: strict, and the whitespace that the constraint allows."""
    options = dict(_JSON_OPTIONS)
    if constraint.whitespace_pattern is not None:
        check_whitespace(constraint.whitespace_pattern)
        options["whitespace_pattern"] = constraint.whitespace_pattern
    elif constraint.spaced:
        options |= {"item_separator": ", ", "key_separator": ": "}
    elif constraint.any_whitespace:
        options["whitespace_pattern"] = rf"[\x20\x0A\x0D\x09]{{1,{MAX_WHITESPACE}}}"
    return options


class Compiler:
    """Compiles for one vocabulary and one width of logits; building it takes 0.2-0.5 s."""

    name = "llguidance"

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

        self.limits = limits
        end_ids = usable_ends(eos_ids, vocab_size)
        try:
            tokenizer = LLTokenizer(tokenizer_json, n_vocab=max(vocab_size, size), eos_token=list(end_ids))
        except ValueError as error:
            raise ModelError(f"the tokenizer cannot be used for constraints: {error}") from error
        self.tokenizer = tokenizer
        self.tables = Tables(
            size=size,
            vocab_size=vocab_size,
            end_ids=end_ids,
            is_special=tokenizer.is_special_token,
            bytes_of=lambda token: tokenizer.decode_bytes([token]),
        )
        self._quotes: Quotes | None = None
        self._parser_limits = LLParserLimits(
            verbose_errors=False, max_lexer_states=limits.max_lexer_states, max_items_in_row=10_000
        )

    def prepare(self, constraint: Constraint) -> Source:
        """See `prepare`. ConstraintError too where the vocabulary lacks a control token that the constraint names."""
        return prepare(constraint, self.limits, self._controls(constraint))

    def _controls(self, constraint: Constraint) -> dict[str, int]:
        found = {}
        for text in constraint.controls:
            token = self.tables.controls.get(text.encode())
            if token is None:
                raise ConstraintError(f"the vocabulary has no control token {text!r}", param="controls")
            found[text] = token
        return found

    def compile(self, constraint: Constraint) -> TokenGrammar:
        """The grammar of a constraint, its first mask proven not empty. Raises ConstraintError."""
        return self.build(constraint, self.prepare(constraint))

    def build(self, constraint: Constraint, source: Source) -> TokenGrammar:
        """The same from what `prepare` returned."""
        from llguidance import LLMatcher

        def make() -> LLMatcher:
            return LLMatcher(self.tokenizer, source.text, log_level=0, limits=self._parser_limits)

        begun = time.thread_time()
        inner = make()
        if inner.is_error():
            raise self._refusal(constraint, inner.get_error())
        warnings = inner.get_grammar_warnings()
        if warnings:
            raise self._refusal(constraint, "; ".join(warnings))
        is_cheap = time.thread_time() - begun < AGAIN_S
        steps: Steps = LlguidanceSteps.at_start(self.tokenizer, Stores(inner, make if is_cheap else None))
        if source.unique_keys:
            if self._quotes is None:
                self._quotes = Quotes(self.tables)
            start: list[Reader] | None = None
            if constraint.kind == "structural_tag":
                tag = read_structural_tag(constraint.value, self.limits)
                start = [TagPlace.start(texts_of(tag, constraint.controls))]
            texts = {token: text.encode() for text, token in self._controls(constraint).items()}
            steps = UniqueKeys(steps, self.tables, self._quotes, start, few=source.few_keys, controls=texts)
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
                canonical=constraint.kind in ("json_schema", "json_object", "choice") or constraint.spaced,
                controls=frozenset(self._controls(constraint).values()),
            ),
            constraint,
        )

    def _refusal(self, constraint: Constraint, error: str) -> ConstraintError:
        kind = constraint.kind
        words = first_words(error)
        if kind == "structural_tag":
            return self._refused_tag(constraint, words)
        if kind == "json_schema":
            said = schema_words(words)
            place = locate(constraint.value, said, self.limits)
            code = said.code if place or said.code != NOT_ENFORCED else None
            return ConstraintError(said.text, param=place or kind, code=code)
        if kind == "grammar":
            return ConstraintError(
                grammar_words(words, constraint.value, own_lines=not is_gbnf(constraint.value)), param=kind
            )
        return ConstraintError(f"{kind}: {regex_words(words)}", param=kind)

    def _refused_tag(self, constraint: Constraint, words: str) -> ConstraintError:
        """The first of its schemas that is refused alone."""
        for tag in read_structural_tag(constraint.value, self.limits).all_tags:
            try:
                self.compile(Constraint(kind="json_schema", value=tag.schema))
            except ConstraintError as error:
                inside = error.param if error.param and error.param.startswith("/") else ""
                return ConstraintError(error.message, param=f"{tag.place}{inside}", code=error.code)
        said = schema_words(words)
        return ConstraintError(f"structural_tag: {said.text}", param=constraint.kind)


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


def structural_source(
    tag: StructuralTag, constraint: Constraint, limits: Limits, controls: Mapping[str, int]
) -> Source:
    """The library's grammar of a structural tag; `controls`: control tokens that it may hold, by their texts."""
    from llguidance import LLMatcher

    names = [f"tag_{i}" for i in range(len(tag.all_tags))]
    grammars: list[Any] = [{"name": "start", "lark_grammar": f"{_NO_FORCING}\n{lark(tag, names, controls)}"}]
    added: list[str] = []
    unique, few = False, list[int]()
    for name, one in zip(names, tag.all_tags, strict=True):
        try:
            gated = check_schema(one.schema, limits)
        except ConstraintError as error:
            inside = error.param if error.param and error.param.startswith("/") else ""
            raise ConstraintError(error.message, param=f"{one.place}{inside}", code=error.code) from error
        behind = one.end if one is tag.instead else f"{one.end}{tag.after}"
        nothing_follows = not behind and (tag.stop_after_first or one is tag.instead)
        if one.end[:1] in _NUMBER_GOES_ON and not nothing_follows and not _is_closed_by_itself(gated.source):
            raise ConstraintError(
                f"after {one.begin!r} a number could go on into what follows it: give the schema the type object, "
                "or an end that no number can hold",
                param="structural_tag",
            )
        made = LLMatcher.grammar_from_json_schema(gated.source, overrides=json_options(constraint))  # type: ignore[arg-type]
        grammars.append({**msgspec.json.decode(made)["grammars"][0], "name": name})
        added += gated.added
        document = msgspec.json.decode(gated.source)
        unique = unique or may_repeat(document)
        few += [] if (least := few_keys(document)) is None else [least]
    text = msgspec.json.encode({"grammars": grammars}).decode()
    return Source(text, added=tuple(added), unique_keys=unique, few_keys=min(few, default=None))


_NUMBER_GOES_ON = ("", *"0123456789.eE+-")


def _is_closed_by_itself(schema: str) -> bool:
    named = msgspec.json.decode(schema).get("type")
    return set(named if isinstance(named, list) else [named]) <= {"object", "array", "string", "boolean", "null"}


def check_whitespace(pattern: str) -> None:
    """Raises ConstraintError unless the pattern can match nothing but whitespace of JSON."""
    if not _WHITESPACE.fullmatch(pattern):
        raise ConstraintError(
            "whitespace_pattern may hold spaces, \\n, \\r, \\t, [classes] of them and quantifiers, nothing else",
            param="whitespace_pattern",
        )


_SPACE = r"(?: |\n|\r|\t|\\[nrt]|\\x20|\\x09|\\x0[aAdD])"
_WHITESPACE = re.compile(rf"(?:(?:{_SPACE}|\[{_SPACE}+\])(?:[*+?]|\{{\d{{1,4}}(?:,\d{{0,4}})?\}})?)+")


def literal_regex(text: str) -> str:
    """A regex that matches exactly this text."""
    return "".join(f"\\{char}" if char in _REGEX_META else char for char in text)
