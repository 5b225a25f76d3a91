"""The many spellings of a constraint, read into the one `Constraint`; two at once are refused."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType, structs

from radixrt.errors import ConstraintError, InvalidRequest
from radixrt.params import Constraint
from radixrt.server.faults import short, spelled
from radixrt.server.openai_types import (
    CommonRequest,
    FormatJsonObject,
    FormatJsonSchema,
    FormatStructuralTag,
    OptionalRaw,
    ResponseFormat,
    StructuredOutputs,
)

_ABSENT = (None, False, UNSET, Raw(b"null"))
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
        found["regex"] = _made("regex", kind="regex", value=request.regex)
    if request.choice is not None:
        found["choice"] = _made("choice", kind="choice", choices=tuple(request.choice))
    if request.ebnf is not None:
        found["ebnf"] = _made("ebnf", kind="grammar", value=request.ebnf)
    if (tag := _given(request.structural_tag)) is not None:
        found["structural_tag"] = _tag(tag, "structural_tag")
    return _with_options(_only(found), request)


def place_of(request: CommonRequest) -> str | None:
    """The field that the request's constraint stands in."""
    form, spec = request.response_format, request.structured_outputs
    if isinstance(form, FormatJsonSchema):
        return "response_format.json_schema.schema"
    if isinstance(form, FormatJsonObject | FormatStructuralTag):
        return "response_format"
    kinds = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
    if spec is not None:
        return next((f"structured_outputs.{name}" for name in kinds if getattr(spec, name) not in _ABSENT), None)
    flat = ("json_schema", "regex", "choice", "ebnf", "structural_tag")
    return next((name for name in flat if getattr(request, name) not in _ABSENT), None)


def _with_options(constraint: Constraint | None, request: CommonRequest) -> Constraint | None:
    """The constraint with the request's `backend` and `lax`, which stand beside every spelling of one."""
    options = {"backend": request.backend, "lax": request.lax or None}
    given = {name: value for name, value in options.items() if value is not None}
    if constraint is not None:
        return structs.replace(constraint, **given)
    if given:
        raise InvalidRequest(f"{next(iter(given))} needs a constraint", param=next(iter(given)))
    return None


def _of_format(form: ResponseFormat | None) -> Constraint | None:
    if isinstance(form, FormatJsonObject):
        return Constraint(kind="json_object")
    if isinstance(form, FormatStructuralTag):
        raw = {name: value for name in ("structures", "triggers", "format") if (value := _given(getattr(form, name)))}
        return Constraint(kind="structural_tag", value=msgspec.json.encode(raw).decode())
    if not isinstance(form, FormatJsonSchema):
        return None
    spec = form.json_schema
    if _SCHEMA_NAME.fullmatch(spec.name) is None:
        raise InvalidRequest(
            f"response_format.json_schema.name must be 1 to 64 of the characters a-z, A-Z, 0-9, _ and -, "
            f"but is {short(spec.name)}",
            param="response_format.json_schema.name",
        )
    if (schema := _given(spec.schema)) is None:
        raise InvalidRequest(
            "response_format.json_schema.schema is required", param="response_format.json_schema.schema"
        )
    return _schema(schema, "response_format.json_schema.schema")


def _of_structured_outputs(spec: StructuredOutputs) -> Constraint:
    where = "structured_outputs"
    found: dict[str, Constraint] = {}
    spaces = _whitespace(spec, where)
    if (schema := _given(spec.json)) is not None:
        found[f"{where}.json"] = structs.replace(_schema(schema, f"{where}.json"), **spaces)
    if spec.json_object:
        found[f"{where}.json_object"] = Constraint(kind="json_object", **spaces)
    if (tag := _given(spec.structural_tag)) is not None:
        found[f"{where}.structural_tag"] = structs.replace(_tag(tag, f"{where}.structural_tag"), **spaces)
    if not found:
        for name in ("disable_any_whitespace", "whitespace_pattern"):
            if getattr(spec, name) is not None:
                raise InvalidRequest(f"{name} is for JSON only", param=f"{where}.{name}")
    if spec.regex is not None:
        found[f"{where}.regex"] = _made(f"{where}.regex", kind="regex", value=spec.regex)
    if spec.choice is not None:
        found[f"{where}.choice"] = _made(f"{where}.choice", kind="choice", choices=tuple(spec.choice))
    if spec.grammar is not None:
        found[f"{where}.grammar"] = _made(f"{where}.grammar", kind="grammar", value=spec.grammar)
    constraint = _only(found)
    if constraint is None:
        raise InvalidRequest(
            "structured_outputs needs one of json, json_object, regex, choice, grammar, structural_tag", param=where
        )
    return constraint


def _whitespace(spec: StructuredOutputs, where: str) -> dict[str, Any]:
    """The constraint's fields about white space. Whether a pattern can be kept to is the grammar room's to say."""
    if spec.whitespace_pattern is not None:
        if spec.disable_any_whitespace is not None:
            raise InvalidRequest(
                "whitespace_pattern and disable_any_whitespace exclude each other", param=f"{where}.whitespace_pattern"
            )
        return {"whitespace_pattern": spec.whitespace_pattern}
    return {"any_whitespace": spec.disable_any_whitespace is False}


def _made(param: str, **values: Any) -> Constraint:
    """A constraint; what is wrong with it at a glance is wrong with `param`, which its kind need not be called."""
    with spelled({values["kind"]: param}):
        return Constraint(**values)


def _only(found: dict[str, Constraint]) -> Constraint | None:
    if len(found) > 1:
        names = " and ".join(found)
        raise InvalidRequest(f"one constraint at a time, but there are {names}", param=list(found)[1])
    return next(iter(found.values()), None)


def _schema(raw: Raw, param: str) -> Constraint:
    """A schema as the client wrote it: the text counts, for the order of properties does."""
    text = _text(raw, param)
    if text.lstrip()[:1] not in (b"{", b"t", b"f"):
        raise ConstraintError(f"{param} must be a JSON Schema: an object, or true or false", param=param)
    return Constraint(kind="json_schema", value=text.decode())


def _tag(raw: Raw, param: str) -> Constraint:
    text = _text(raw, param)
    if text.lstrip()[:1] != b"{":
        raise ConstraintError(f"{param} must be an object", param=param)
    return Constraint(kind="structural_tag", value=text.decode())


def _text(raw: Raw, param: str) -> bytes:
    """The JSON that a client sent, as it is or inside a string."""
    text = bytes(raw)
    if text[:1] == b'"':
        text = msgspec.json.decode(text, type=str).encode()
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ConstraintError(
                f"{param} is a string that does not hold JSON: {short(text.decode())}: {error}", param=param
            ) from error
    return text


def _given(raw: OptionalRaw) -> Raw | None:
    return None if isinstance(raw, UnsetType) or bytes(raw) == b"null" else raw
