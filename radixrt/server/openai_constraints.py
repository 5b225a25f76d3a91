"""The many spellings of a constraint, read into the one `Constraint`; two at once are refused."""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw, UnsetType

from radixrt.errors import ConstraintError, InvalidRequest
from radixrt.params import Constraint
from radixrt.server.openai_types import (
    CommonRequest,
    FormatJsonObject,
    FormatJsonSchema,
    OptionalRaw,
    ResponseFormat,
    StructuredOutputs,
)

_SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def constraint_of(request: CommonRequest) -> Constraint | None:
    """The request's constraint. InvalidRequest names the fields when there are several."""
    found: dict[str, Constraint] = {}
    if (formatted := _of_format(request.response_format)) is not None:
        found["response_format"] = formatted
    if request.structured_outputs is not None:
        found["structured_outputs"] = _of_structured_outputs(request.structured_outputs)
    if (schema := _given(request.json_schema)) is not None:
        found["json_schema"] = _schema(schema, "json_schema")
    if request.regex is not None:
        found["regex"] = Constraint(kind="regex", value=request.regex)
    if request.choice is not None:
        found["choice"] = Constraint(kind="choice", choices=tuple(request.choice))
    return _only(found)


def _of_format(form: ResponseFormat | None) -> Constraint | None:
    if isinstance(form, FormatJsonObject):
        return Constraint(kind="json_object")
    if not isinstance(form, FormatJsonSchema):
        return None
    spec = form.json_schema
    if _SCHEMA_NAME.fullmatch(spec.name) is None:
        raise InvalidRequest(
            "response_format.json_schema.name must be 1 to 64 of the characters a-z, A-Z, 0-9, _ and -",
            param="response_format.json_schema.name",
        )
    if (schema := _given(spec.schema)) is None:
        raise InvalidRequest(
            "response_format.json_schema.schema is required", param="response_format.json_schema.schema"
        )
    return _schema(schema, "response_format.json_schema.schema")


def _of_structured_outputs(spec: StructuredOutputs) -> Constraint:
    where = "structured_outputs"
    if _given(spec.structural_tag) is not None:
        raise InvalidRequest("structural tags are not available yet", param=f"{where}.structural_tag")
    found: dict[str, Constraint] = {}
    loose = spec.disable_any_whitespace is False
    if (schema := _given(spec.json)) is not None:
        found[f"{where}.json"] = _schema(schema, f"{where}.json", loose)
    if spec.json_object:
        found[f"{where}.json_object"] = Constraint(kind="json_object", any_whitespace=loose)
    if spec.disable_any_whitespace is not None and not found:
        raise InvalidRequest("disable_any_whitespace is for JSON only", param=f"{where}.disable_any_whitespace")
    if spec.regex is not None:
        found[f"{where}.regex"] = Constraint(kind="regex", value=spec.regex)
    if spec.choice is not None:
        found[f"{where}.choice"] = Constraint(kind="choice", choices=tuple(spec.choice))
    if spec.grammar is not None:
        found[f"{where}.grammar"] = Constraint(kind="grammar", value=spec.grammar)
    constraint = _only(found)
    if constraint is None:
        raise InvalidRequest("structured_outputs needs one of json, json_object, regex, choice, grammar", param=where)
    return constraint


def _only(found: dict[str, Constraint]) -> Constraint | None:
    if len(found) > 1:
        names = " and ".join(found)
        raise InvalidRequest(f"one constraint at a time, but there are {names}", param=list(found)[1])
    return next(iter(found.values()), None)


def _schema(raw: Raw, param: str, any_whitespace: bool = False) -> Constraint:
    """A schema as the client wrote it: the text counts, for the order of properties does. A string holds the text."""
    text = bytes(raw)
    if text[:1] == b'"':
        text = msgspec.json.decode(text, type=str).encode()
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ConstraintError(f"{param} is a string that does not hold JSON: {error}", param=param) from error
    if text.lstrip()[:1] not in (b"{", b"t", b"f"):
        raise ConstraintError(f"{param} must be a JSON Schema: an object, or true or false", param=param)
    return Constraint(kind="json_schema", value=text.decode(), any_whitespace=any_whitespace)


def _given(raw: OptionalRaw) -> Raw | None:
    return None if isinstance(raw, UnsetType) or bytes(raw) == b"null" else raw
