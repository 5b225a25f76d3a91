"""Python types as constraints: what text a type allows, and the value that such a text stands for."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

from radixrt.errors import InvalidRequest
from radixrt.params import Constraint

# Bounded, so that a weak model cannot write digits for ever.
INT_PATTERN = r"-?(0|[1-9][0-9]{0,17})"
FLOAT_PATTERN = r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][-+]?[0-9]{1,3})?"


@dataclasses.dataclass(frozen=True, slots=True)
class Codec:
    """A type's constraint, and the way back from text; `decode` raises ValueError for a text that is none of it."""

    type: Any
    constraint: Constraint | None
    decode: Callable[[str], Any]
    whole: bool
    """A text that was cut by max_tokens is never a value (for a choice it is, when it equals one of the options)."""

    @property
    def label(self) -> str:
        return getattr(self.type, "__name__", None) or str(self.type)


def codec_for(type_: Any) -> Codec:
    """The codec of a type.

    int and float become a regex, bool, Literal and Enum a choice (bool is written True or False), str is free text,
    and everything else the JSON schema that pydantic gives for it, with objects closed: no properties but its own.
    InvalidRequest for a type that has none.
    """
    if type_ is str:
        return Codec(str, None, str, False)
    if type_ is int:
        return Codec(int, Constraint(kind="regex", value=INT_PATTERN), _matched(INT_PATTERN, int), True)
    if type_ is float:
        return Codec(float, Constraint(kind="regex", value=FLOAT_PATTERN), _matched(FLOAT_PATTERN, float), True)
    if type_ is bool:
        return _choice(bool, {"True": True, "False": False})
    if typing.get_origin(type_) is Literal:
        return _choice(type_, _by_text(type_, typing.get_args(type_)))
    if isinstance(type_, type) and issubclass(type_, enum.Enum):
        members = list(type_)
        texts = _by_text(type_, [member.value for member in members])
        return _choice(type_, dict(zip(texts, members, strict=True)))
    return _json_codec(type_)


def _matched(pattern: str, make: Callable[[str], Any]) -> Callable[[str], Any]:
    def decode(text: str) -> Any:
        if not re.fullmatch(pattern, text.strip()):
            raise ValueError(f"{text!r} is not written as {make.__name__}")
        return make(text)

    return decode


def _by_text(type_: Any, values: typing.Iterable[Any]) -> dict[str, Any]:
    texts: dict[str, Any] = {}
    for value in values:
        text = value if isinstance(value, str) else str(value)
        if text in texts:
            raise InvalidRequest(f"{type_}: two values are written {text!r}", param="type")
        texts[text] = value
    return texts


def _choice(type_: Any, values: dict[str, Any]) -> Codec:
    def decode(text: str) -> Any:
        if text not in values:
            raise ValueError(f"{text!r} is none of {', '.join(map(repr, values))}")
        return values[text]

    return Codec(type_, Constraint(kind="choice", choices=tuple(values)), decode, False)


def _json_codec(type_: Any) -> Codec:
    try:
        return _cached_json_codec(type_)
    except TypeError:  # not hashable: made anew each time
        return _make_json_codec(type_)


def _make_json_codec(type_: Any) -> Codec:
    from pydantic import PydanticUserError, TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(type_)
        schema = close_objects(adapter.json_schema())
    except (PydanticUserError, PydanticInvalidForJsonSchema) as error:
        raise InvalidRequest(f"type {type_!r} has no JSON schema: {error}", param="type") from error
    constraint = Constraint(kind="json_schema", value=json.dumps(schema, ensure_ascii=False))
    return Codec(type_, constraint, adapter.validate_json, True)  # pydantic's ValidationError is a ValueError


_cached_json_codec = lru_cache(maxsize=256)(_make_json_codec)


def close_objects(schema: Any) -> Any:
    """A copy in which every object that lists its properties allows no others, unless it says so itself.

    A type names all the fields it has; without this a model could write fields that no reader expects.
    """
    if isinstance(schema, list):
        return [close_objects(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: close_objects(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed
