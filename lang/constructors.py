"""`gen`, `select` and the roles: every argument is checked here, where it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, get_args

import msgspec
import regex as regexes

from radixrt.choosing import check_distinct
from radixrt.errors import InvalidRequest
from radixrt.healing import healable
from radixrt.lang.expressions import ExprLike, Gen, Role, RoleBlock, Select, as_expr
from radixrt.lang.spans import here
from radixrt.lang.tools import toolbox
from radixrt.lang.typed import codec_for
from radixrt.params import ChoicesMethod, Constraint, SamplingParams

MAX_CHOICES = 1024


def gen(
    name: str | None = None,
    *,
    max_tokens: int | None = None,
    min_tokens: int = 0,
    n: int = 1,
    stop: str | Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    ignore_eos: bool = False,
    seed: int | None = None,
    logit_bias: Mapping[int, float] | None = None,
    logprobs: int | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
    type: Any = None,
    heal: bool | None = None,
    append: bool = False,
    stop_regex: str | Sequence[str] = (),
    return_cache_report: bool = False,
    tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None = None,
    tool_choice: str = "auto",
    parallel_tool_calls: bool | None = None,
) -> Gen:
    """Generate text here and keep it under `name`.

    The sampling parameters are those of `SamplingParams`. Without `max_tokens` the text goes on until the model, a stop
    string or the constraint ends it, or the context is full: give one wherever a text may not end.

    At most one of `regex`, `json_schema`, `choices`, `grammar` and `type` may be given; the text is held to it, whole.
    With `type` (int, float, bool, str, a Literal, an Enum, a pydantic model, a dataclass or any other that pydantic
    knows) the value that is read has that type; with the others it is the text. With n > 1 the value is the list of the
    samples and the program goes on from the first.
    With `append` the name stands for a list, which this adds an item to.

    `heal`: the last token of the text before may be written anew, longer, where the model would ("http:" -> "http://").
    None: wherever that is exact, as `healing.py` has it; True: refused here where it would not be; False: never.

    `stop_regex`: patterns (of the `regex` library) that end the text where their match begins, as a stop string does.

    `return_cache_report`: `state.meta(name).usage.cache` says what the prefix tree had of the text before, and why not
    more (`radixrt.results.CacheReport`).

    `tools`: what the model may call: Python functions, or dicts as OpenAI's API has them. The model's chat template
    shows them, and calls are held to their schemas as by /v1/chat/completions. The value is a `Reply`: `.text`, and
    `.tool_calls`, each with `.id`, `.name`, `.arguments`, and `call()` for a Python function; answer each by
    `tool(result, tool_call_id=call.id)`. `tool_choice`: auto, required (some tool) or a tool's name;
    `parallel_tool_calls`: several in one answer (None: where nothing is required). Only in an assistant's turn.

    Raises InvalidRequest for a value out of range, of the wrong type, or for two constraints at once.
    """
    fields = {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "n": n,
        "stop": (stop,) if isinstance(stop, str) else _strings("stop", stop),
        "stop_regex": _patterns(stop_regex),
        "stop_token_ids": tuple(stop_token_ids),
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "repetition_penalty": repetition_penalty,
        "ignore_eos": ignore_eos,
        "seed": seed,
        "logit_bias": dict(logit_bias or {}),
        "logprobs": logprobs,
        "return_cache_report": return_cache_report,
    }
    given = {
        key: value
        for key, value in {
            "regex": regex, "json_schema": json_schema, "choices": choices, "grammar": grammar, "type": type,
        }.items()
        if value is not None
    }  # fmt: skip
    box = None
    if tools is not None:
        if given or n > 1 or ignore_eos:
            raise InvalidRequest("tools cannot go with another constraint, n > 1 or ignore_eos", param="tools")
        box = toolbox(tools, tool_choice, parallel_tool_calls)
    elif tool_choice != "auto" or parallel_tool_calls is not None:
        raise InvalidRequest("tool_choice and parallel_tool_calls need tools", param="tools")
    if len(given) > 1:
        raise InvalidRequest(f"give at most one of {', '.join(given)}", param=next(iter(given)))
    try:
        sampling = msgspec.convert(fields, SamplingParams)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"gen: {error}") from error
    codec = codec_for(type) if type is not None else None
    constraint = codec.constraint if codec else _constraint(given)
    if ignore_eos and constraint is not None:
        raise InvalidRequest("ignore_eos cannot go with a constraint, whose end is an end token", param="ignore_eos")
    made = Gen(_name(name), sampling, constraint, codec, heal, _appends(name, append), here(), box)
    if heal is not None and not isinstance(heal, bool):
        raise InvalidRequest(f"heal must be True, False or None, but is {heal!r}", param="heal")
    if heal and not healable(made.sampling, made.constraint):
        raise InvalidRequest(
            "heal=True cannot go with a constraint, n > 1, ignore_eos, stop_regex, frequency or presence penalties or "
            "max_tokens=0",
            param="heal",
        )
    return made


def select(
    name: str | None = None,
    choices: Sequence[str] = (),
    *,
    choices_method: ChoicesMethod = "token_length_normalized",
    append: bool = False,
    return_cache_report: bool = False,
) -> Select:
    """Choose the best of `choices` here by exact token scores, append it, and keep it under `name`.

    How each `choices_method` compares is said in `radixrt.choosing`; `return_cache_report` is as in `gen`. Raises
    InvalidRequest for an empty list, an empty or repeated choice, or an unknown method.
    """
    texts = _strings("choices", choices)
    if not texts or not all(texts):
        raise InvalidRequest("choices must hold at least one string, and no empty one", param="choices")
    check_distinct(texts, "choices")
    if len(texts) > MAX_CHOICES:
        raise InvalidRequest(
            f"choices must hold at most {MAX_CHOICES} strings, but holds {len(texts)}", param="choices"
        )
    if choices_method not in get_args(ChoicesMethod):
        known = ", ".join(get_args(ChoicesMethod))
        raise InvalidRequest(
            f"choices_method must be one of {known}, but is {choices_method!r}", param="choices_method"
        )
    if not isinstance(return_cache_report, bool):
        raise InvalidRequest("return_cache_report must be True or False", param="return_cache_report")
    return Select(_name(name), texts, choices_method, _appends(name, append), return_cache_report, here())


def image(source: object) -> NoReturn:
    """Refused: InvalidRequest."""
    raise InvalidRequest("image: no model that radixrt runs takes images yet", param="image")


def system(body: ExprLike) -> RoleBlock:
    """A turn that instructs the model."""
    return _role("system", body)


def user(body: ExprLike) -> RoleBlock:
    """A turn of the user."""
    return _role("user", body)


def assistant(body: ExprLike) -> RoleBlock:
    """A turn of the model: constant text, generated text, or both."""
    return _role("assistant", body)


def tool(body: ExprLike, *, tool_call_id: str | None = None, name: str | None = None) -> RoleBlock:
    """A tool's answer."""
    return RoleBlock("tool", as_expr(body), name, tool_call_id)


def _role(role: Role, body: ExprLike) -> RoleBlock:
    return RoleBlock(role, as_expr(body))


def _constraint(given: Mapping[str, Any]) -> Constraint | None:
    if not given:
        return None
    ((key, value),) = given.items()
    if key == "choices":
        return Constraint(kind="choice", choices=_strings("choices", value))
    if key == "json_schema":
        return Constraint(kind="json_schema", value=_schema_text(value))
    if not isinstance(value, str):
        raise InvalidRequest(f"{key} must be a string, but is {value!r}", param=key)
    return Constraint(kind="regex" if key == "regex" else "grammar", value=value)


def _schema_text(schema: object) -> str:
    if isinstance(schema, str):
        try:
            json.loads(schema)
        except ValueError as error:
            raise InvalidRequest(f"json_schema is not JSON: {error}", param="json_schema") from error
        return schema
    if isinstance(schema, Mapping):
        try:
            return json.dumps(schema, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"json_schema cannot be written as JSON: {error}", param="json_schema") from error
    raise InvalidRequest(
        "json_schema must be JSON text or a dict (a Python type or a pydantic model goes into type=)",
        param="json_schema",
    )


def _strings(param: str, values: Iterable[object]) -> tuple[str, ...]:
    """A copy: the caller's list is neither kept nor changed."""
    if isinstance(values, str):
        raise InvalidRequest(f"{param} must be a list of strings, not one string", param=param)
    texts = tuple(values)
    strings = tuple(text for text in texts if isinstance(text, str))
    if len(strings) != len(texts):
        raise InvalidRequest(f"{param} must hold strings only, but is {list(texts)!r}: write str(...)", param=param)
    return strings


def _patterns(given: str | Sequence[str]) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else _strings("stop_regex", given)
    for pattern in patterns:
        try:
            regexes.compile(pattern)
        except regexes.error as error:
            raise InvalidRequest(
                f"stop_regex {pattern!r} is no regular expression: {error}", param="stop_regex"
            ) from error
    return patterns


def _appends(name: str | None, append: object) -> bool:
    if not isinstance(append, bool):
        raise InvalidRequest(f"append must be True or False, but is {append!r}", param="append")
    if append and name is None:
        raise InvalidRequest("append=True needs the name of the list", param="append")
    return append


def _name(name: str | None) -> str | None:
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidRequest(f"a variable's name must be a non-empty string, but is {name!r}", param="name")
    return name
