"""Reading a request's body: bounded, JSON only, typed, and every fault a 400 that names the field."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
from typing import Any, TypeVar

import msgspec
import numpy as np
from starlette.requests import Request

from radixrt.errors import InvalidRequest
from radixrt.prompts import token_array
from radixrt.server import faults
from radixrt.server.errors import with_status
from radixrt.server.hints import hint

T = TypeVar("T")

LARGE_BODY = 2**20
"""Bytes from which on a body is parsed in a thread, so that other requests are not held up."""

_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")
_AT = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`$")

_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
"""Escapes of a JSON text one after the other: whole pairs, halves of one, and others."""

OLD_FIELDS = {".function_call": "a call belongs into tool_calls"}
"""What to do instead of fields of messages that only old clients fill."""


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """A JSON decoder for request bodies; token ids may be of numpy's type, from a plain list."""
    return msgspec.json.Decoder(kind, dec_hook=_from_json)


async def read_body(request: Request, decode: msgspec.json.Decoder[T], limit: int) -> T:
    """The request's body as `decode`'s type. Raises InvalidRequest: 400, or 413 beyond `limit` bytes."""
    raw = await read_bytes(request, limit)
    if len(raw) < LARGE_BODY:
        return parse(raw, decode)
    return await asyncio.to_thread(parse, raw, decode)


async def read_bytes(request: Request, limit: int) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise with_status(
            InvalidRequest(
                f"content-encoding is {encoding[:40]!r}: a compressed body is not accepted; send it as it is",
                param="content-encoding",
            ),
            415,
        )
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def parse(raw: bytes, decode: msgspec.json.Decoder[T]) -> T:
    """Typed JSON; InvalidRequest names the field at fault and refuses a field that is there twice."""
    try:
        value = decode.decode(raw)
        json.loads(raw, object_pairs_hook=_refuse_duplicates)
    except _Repeated as error:
        path = _place(raw)
        raise InvalidRequest(f"{path} is given twice", param=path, code="duplicate_parameter") from error
    except msgspec.ValidationError as error:
        raise named(str(error), raw, decode.type) from error
    except (msgspec.DecodeError, ValueError) as error:
        words = _strange(raw) or error
        raise InvalidRequest(f"the body is not valid JSON: {words}", code="invalid_json") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply", code="invalid_json") from error
    return value


def named(message: str, raw: bytes = b"", kind: Any = None) -> InvalidRequest:
    """An error from msgspec's words: `param` is the path of the field, as a client would write it. With the body and
    its type the message says what was there, and which words may be."""
    at = _AT.search(message)
    path = pattern = at["path"] if at else ""
    if "[...]" in path and kind is not None:
        path = faults.keyed(raw, path, lambda body: _message(body, kind) == message)
    text = message[: at.start()] if at else message
    unknown, missing = _UNKNOWN.match(text), _MISSING.match(text)
    if unknown:
        param = _join(path, unknown["name"])
        advice = hint(unknown["name"], pattern, kind)
        return InvalidRequest(f"unknown parameter {param}: {advice}", param=param, code="unknown_parameter")
    if missing:
        param = _join(path, missing["name"])
        return InvalidRequest(f"{param} is required", param=param, code="missing_parameter")
    if not path:
        return InvalidRequest(f"the body must be a JSON object: {text[:1].lower()}{text[1:]}", code="invalid_json")
    text = faults.cut(text)
    old = "".join(f"; {words}" for name, words in OLD_FIELDS.items() if path.startswith("messages") and name in path)
    told = faults.told(raw, kind, pattern, text)
    of = "of each key " if at and at["key"] else ""
    return InvalidRequest(f"{path}: {of}{text[:1].lower()}{text[1:]}{told}{old}", param=path)


def _message(body: Any, kind: Any) -> str | None:
    """What msgspec finds wrong with a body."""
    try:
        msgspec.json.decode(json.dumps(body), type=kind, dec_hook=_from_json)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def _strange(raw: bytes) -> str | None:
    """What to say where msgspec's words would mislead: of nothing, of other encodings, and of an escape such as \\ud800
    without its other half."""
    if not raw.strip():
        return "it is empty"
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "it is UTF-16: send UTF-8"
    if raw.startswith(codecs.BOM_UTF8):
        return "it begins with a byte order mark: leave it out"
    for found in _SURROGATE.finditer(raw):
        if found["half"]:
            return f"{found['half'].decode()} at byte {found.start()} is half a surrogate pair, which is no character"
    return None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise _Repeated


class _Repeated(Exception):
    """An object of the body has two members of one name."""


class _Members(list[tuple[str, Any]]):
    """An object of the body as it was written: its members in order, repeated ones too."""


def _place(raw: bytes) -> str:
    """The path of the first member whose name its object has already."""
    todo: list[tuple[str, Any]] = [("", json.loads(raw, object_pairs_hook=_Members))]
    while todo:
        path, value = todo.pop()
        inner: list[tuple[str, Any]] = []
        if isinstance(value, _Members):
            seen: set[str] = set()
            for name, member in value:
                if name in seen:
                    return _join(path, name)
                seen.add(name)
                inner.append((_join(path, name), member))
        elif isinstance(value, list):
            inner = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        todo += reversed(inner)
    return ""


def _from_json(kind: type, value: Any) -> Any:
    if kind is np.ndarray and isinstance(value, list) and all(type(item) is int for item in value):
        return token_array(value)
    raise ValueError("expected a list of token ids")


def _too_large(limit: int) -> InvalidRequest:
    message = f"the body is larger than this server accepts ({limit} bytes)"
    return with_status(InvalidRequest(message, code="body_too_large"), 413)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
