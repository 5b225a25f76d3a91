"""What a caller asks for: `SamplingParams` and `Constraint`; validated where they are made, early."""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from radixrt.errors import InvalidRequest
from radixrt.surface import written

MAX_N = 128
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_STOP_REGEXES = 8
MAX_LOGPROBS = 20
MAX_OPTIONS = 1024
EMBED_BATCH = 32
"""Texts of one message to the engine: nobody waits long for a process that reads one. Longer lists are several."""
MAX_EMBED_TEXTS = 2048
"""Texts of one call that embeds."""
LARGEST = 2**31 - 1
"""Largest count, token id or priority: they travel as 32-bit numbers."""


ChoicesMethod = Literal["token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"]
"""How a select compares its options; the formulas are in `radixrt.choosing`."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are chosen and when a generation ends. Names and defaults are those of vLLM and OpenAI.

    Raises InvalidRequest, naming the parameter, when a value is out of range.
    """

    max_tokens: int | None = None
    """Most tokens to generate; None: whatever is left of the context; 0: none (only score the prompt)."""
    min_tokens: int = 0
    """End tokens and stop strings are impossible before this many tokens."""
    n: int = 1
    """Independent samples of one prompt, which is computed once."""
    temperature: float = 1.0
    """0 is greedy: the most likely token, the lowest id where several are equal."""
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1: all."""
    min_p: float = 0.0
    """Keep tokens at least min_p times as likely as the most likely one."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time it was generated (OpenAI)."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of a token that was generated at all (OpenAI)."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output (CTRL, arXiv 1909.05858, 4.1)."""
    seed: int | None = None
    """With a seed the random stream depends on seed, sample index and position alone; None: a fresh seed."""
    stop: tuple[str, ...] = ()
    """Strings that end the generation at their earliest match; cut off unless include_stop_str_in_output."""
    stop_regex: tuple[str, ...] = ()
    """Regular expressions (of the `regex` library) that end the generation where their match begins, looked for after
    each token; a match is cut off as a stop string is."""
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    """Go on past the model's end tokens. Refused with a constraint, whose end is an end token."""
    skip_special_tokens: bool = True
    logit_bias: dict[int, float] = {}
    """Added to the logits of the given token ids, -100 to 100; -100: never, unless a constraint leaves nothing else."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Nothing but these tokens is generated: exactly so, whatever logit_bias says. The text ends by itself only at an
    end token that is one of them. Not beside a constraint."""
    logprobs: int | None = None
    """None: none. k in 0..20: log-probability of each chosen token, and of the k most likely ones. They are the
    model's own (log-softmax of its logits in float32), before temperature, penalties, bias and constraint."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens from `prompt_logprobs_start` on."""
    prompt_logprobs_start: int = 0
    """Index of the first prompt token that is scored (0 is given as None: nothing comes before it)."""
    return_cache_report: bool = False
    """The usage says what the prefix tree had of the prompt, and why not more (`results.CacheReport`)."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str | list):
            stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
            msgspec.structs.force_setattr(self, "stop", stops)
        if isinstance(self.stop_regex, str | list):
            patterns = (self.stop_regex,) if isinstance(self.stop_regex, str) else tuple(self.stop_regex)
            msgspec.structs.force_setattr(self, "stop_regex", patterns)
        if isinstance(self.stop_token_ids, list):
            msgspec.structs.force_setattr(self, "stop_token_ids", tuple(self.stop_token_ids))
        if isinstance(self.allowed_token_ids, list):
            msgspec.structs.force_setattr(self, "allowed_token_ids", tuple(self.allowed_token_ids))
        self._check_integers()
        self._check_numbers()
        self._check_stops()
        bias = self.logit_bias
        _check(
            isinstance(bias, dict) and len(bias) <= 65536, "logit_bias", "must map at most 65,536 token ids to numbers"
        )
        for token, value in bias.items():
            _check(_is_integer(token, 0, LARGEST), "logit_bias", "must have token ids as keys", token)
            _check(
                _is_number(value, -100, 100), "logit_bias", "must have numbers between -100 and 100 as values", value
            )

    def _check_integers(self) -> None:
        for name, low, high in (
            ("min_tokens", 0, LARGEST),
            ("n", 1, MAX_N),
            ("top_k", -1, LARGEST),
            ("prompt_logprobs_start", 0, LARGEST),
        ):
            value = getattr(self, name)
            _check(_is_integer(value, low, high), name, f"must be an integer between {low} and {high}", value)
        for name, low, high in (
            ("max_tokens", 0, LARGEST),
            ("seed", -(2**63), 2**64 - 1),
            ("logprobs", 0, MAX_LOGPROBS),
            ("prompt_logprobs", 0, MAX_LOGPROBS),
        ):
            value = getattr(self, name)
            _check(
                value is None or _is_integer(value, low, high),
                name, f"must be an integer between {low} and {high}, or {written(None)}", value,
            )  # fmt: skip
        _check(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens", "must not be above max_tokens", self.min_tokens,
        )  # fmt: skip

    def _check_numbers(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_p", 1e-6, 1.0),
            ("min_p", 0.0, 1.0),
            ("frequency_penalty", -2.0, 2.0),
            ("presence_penalty", -2.0, 2.0),
            ("repetition_penalty", 0.01, 10.0),
        ):
            value = getattr(self, name)
            _check(_is_number(value, low, high), name, f"must be a number between {low:g} and {high:g}", value)

    def _check_stops(self) -> None:
        stops = self.stop
        _check(
            isinstance(stops, tuple) and all(isinstance(stop, str) for stop in stops),
            "stop", "must be a string or a list of strings", stops,
        )  # fmt: skip
        _check(len(stops) <= MAX_STOPS, "stop", f"must hold at most {MAX_STOPS} strings, but holds {len(stops)}")
        _check(all(stops), "stop", "must not hold an empty string", list(stops))
        _check(
            all(len(stop) <= MAX_STOP_CHARS for stop in stops),
            "stop", f"must hold strings of at most {MAX_STOP_CHARS} characters",
        )  # fmt: skip
        patterns = self.stop_regex
        _check(
            isinstance(patterns, tuple) and all(isinstance(pattern, str) for pattern in patterns),
            "stop_regex", "must be a string or a list of strings", patterns,
        )  # fmt: skip
        _check(
            len(patterns) <= MAX_STOP_REGEXES and all(0 < len(pattern) <= MAX_STOP_CHARS for pattern in patterns),
            "stop_regex", f"must hold at most {MAX_STOP_REGEXES} patterns of 1 to {MAX_STOP_CHARS} characters",
        )  # fmt: skip
        ids = self.stop_token_ids
        _check(
            isinstance(ids, tuple) and len(ids) <= MAX_STOPS and all(_is_integer(token, 0, LARGEST) for token in ids),
            "stop_token_ids", f"must hold at most {MAX_STOPS} token ids",
        )  # fmt: skip
        among = self.allowed_token_ids
        _check(
            among is None
            or (isinstance(among, tuple) and bool(among) and all(_is_integer(token, 0, LARGEST) for token in among)),
            "allowed_token_ids", "must hold token ids, and at least one",
        )  # fmt: skip


ConstraintKind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
_KINDS: tuple[str, ...] = get_args(ConstraintKind)


class Constraint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the generated text must match, whole. Enforced or refused, never ignored.

    `kind` json_schema: `value` is the schema as JSON text (property order counts). json_object: `value` is "".
    regex: a regular expression, matched whole. choice: `choices` holds the strings; exactly one is generated.
    grammar: a Lark or GBNF grammar. structural_tag: `value` is JSON text that names triggers and tags; the text is free
    until a trigger, and inside a tag it is JSON of the tag's schema (the shapes of vLLM and SGLang).
    """

    kind: ConstraintKind
    value: str = ""
    choices: tuple[str, ...] = ()
    any_whitespace: bool = False
    """JSON only: allow (bounded) whitespace between tokens; the default is compact JSON."""
    whitespace_pattern: str | None = None
    """JSON only: a regex of what may stand between tokens, at most once in each place; whitespace and nothing else."""
    spaced: bool = False
    """Structural tags only: JSON with a space behind each comma and colon, as Python and chat templates write it."""
    lax: bool = False
    """JSON Schema only: enforce what can be; the answer lists the keywords that were left out."""
    behind: str = ""
    """The constraint begins behind this marker, which ends a thought, and an empty line; the text before is free."""
    think: str = ""
    """With `behind`: the text begins with this mark, which opens a thought, or at once with what the constraint says;
    without it a thought is open already."""
    think_tokens: int | None = None
    """With `behind`: the thought may have so many tokens; then the marker is all that may come."""
    controls: tuple[str, ...] = ()
    """Structural tags only: control tokens of the vocabulary. Where the tag's own words (begin, end, separator,
    const_string) hold one of these texts, they mean the token; free text never spells one. Bodies of HTTP requests may
    give those alone with which the served model writes its calls (`ModelInfo.tool_controls`)."""
    backend: Literal["auto", "llguidance", "xgrammar", "outlines"] = "auto"
    """Library that enforces the constraint; auto: the first that can enforce all of it."""

    def __post_init__(self) -> None:
        self._check_types()
        if self.kind == "choice":
            _check(
                not self.value or bool(self.choices),
                "choice", "takes its strings in choices, not in value", self.value,
            )  # fmt: skip
            _check(bool(self.choices), "choice", "must hold at least one string", [])
            _check(all(self.choices), "choice", "must not hold an empty string", list(self.choices))
        elif self.kind != "json_object":
            _check(bool(self.value.strip()), self.kind, "must not be empty", self.value)
        is_json = self.kind in ("json_schema", "json_object", "structural_tag")
        _check(is_json or not self.any_whitespace, "any_whitespace", "is for JSON", self.any_whitespace)
        _check(
            self.whitespace_pattern is None or (is_json and not self.any_whitespace),
            "whitespace_pattern", "is for JSON, and not beside any_whitespace", self.whitespace_pattern,
        )  # fmt: skip
        _check(
            not self.spaced or (self.kind == "structural_tag" and not (self.any_whitespace or self.whitespace_pattern)),
            "spaced", "is for structural_tag, without whitespace of its own", self.spaced,
        )  # fmt: skip
        _check(len(self.behind) <= MAX_STOP_CHARS, "behind", f"must have at most {MAX_STOP_CHARS} characters")
        _check(
            not self.think or (bool(self.behind) and len(self.think) <= MAX_STOP_CHARS),
            "think", f"needs `behind`, and has at most {MAX_STOP_CHARS} characters",
        )  # fmt: skip
        _check(
            self.think_tokens is None or (bool(self.behind) and _is_integer(self.think_tokens, 1, 2**31 - 1)),
            "think_tokens", "needs `behind`, and must be 1 or more", self.think_tokens,
        )  # fmt: skip
        _check(
            not self.controls
            or (
                self.kind == "structural_tag"
                and len(self.controls) <= MAX_STOPS
                and all(0 < len(text) <= MAX_STOP_CHARS for text in self.controls)
            ),
            "controls", f"is for structural_tag, and holds texts of 1 to {MAX_STOP_CHARS} characters",
        )  # fmt: skip
        _check(self.kind == "json_schema" or not self.lax, "lax", "is for json_schema", self.lax)

    def _check_types(self) -> None:
        """Constructors of Python check none, and what is wrong here would fail somewhere far away."""
        _check(
            isinstance(self.kind, str) and self.kind in _KINDS,
            "kind", f"must be one of {', '.join(_KINDS)}", self.kind,
        )  # fmt: skip
        if self.kind == "choice" and isinstance(self.value, list | tuple):
            _check(False, "choice", "takes its strings in choices, not in value", self.value)
        schema = self.kind in ("json_schema", "structural_tag")
        advice = ": give json.dumps(...) of it" if schema and isinstance(self.value, dict | list | bool) else ""
        _check(isinstance(self.value, str), "value", f"must be text{advice}", self.value)
        _check(
            isinstance(self.choices, list | tuple) and all(isinstance(choice, str) for choice in self.choices),
            "choices", "must be a tuple of strings", self.choices,
        )  # fmt: skip


def as_constraint(value: object) -> Constraint | None:
    """What a caller gave as `constraint`; raises InvalidRequest where it is something else."""
    if value is None or isinstance(value, Constraint):
        return value
    raise InvalidRequest(
        f"constraint must be a Constraint, but is {repr(value)[:100]}: use Constraint(kind='regex', value=...) "
        "or another of its kinds",
        param="constraint",
    )


def _is_integer(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: object, low: float, high: float) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high
    )


_UNSAID = object()


def _check(ok: bool, param: str, rule: str, got: object = _UNSAID) -> None:
    if not ok:
        raise InvalidRequest(f"{param} {rule}" + ("" if got is _UNSAID else f", but is {written(got)}"), param=param)
