"""Bytes that nobody meant, at every decoder: messages between processes, bodies, headers of model files.

Whatever comes, a decoder gives a value or raises its room's own error, and holds little more memory than it was given.
"""

from __future__ import annotations

import functools
import json
import struct
import tracemalloc
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixrt import messages
from radixrt.called import CallText
from radixrt.checkpoint import read_gguf
from radixrt.checkpoint.safetensors_file import read_safetensors_header
from radixrt.errors import InvalidRequest, ModelError
from radixrt.params import Constraint, SamplingParams
from radixrt.server.app import ROUTES
from radixrt.server.body import decoder, parse
from radixrt.transport import Codec, DecodeError

FAMILIES = {
    name: getattr(messages, name)
    for name in ("FromClient", "ToClient", "ToScheduler", "FromScheduler", "ToRunner", "FromRunner")
}
ROOM = 4 << 20
"""Bytes that a decoder may take beside a multiple of what it was given."""

st.register_type_strategy(np.ndarray, st.lists(st.integers(0, 2**31 - 1), max_size=3).map(lambda x: np.array(x, "<i4")))
st.register_type_strategy(SamplingParams, st.just(SamplingParams(max_tokens=3, stop=("x",))))
st.register_type_strategy(Constraint, st.just(Constraint(kind="regex", value="a")))
st.register_type_strategy(CallText, st.just(CallText(dialect="hermes", names=["f"])))


@functools.cache
def message(kind: type) -> st.SearchStrategy[Any]:
    """Values of a message type, made from the types of its fields."""
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: value(hints[name]) for name in kind.__struct_fields__})


def value(hint: Any) -> st.SearchStrategy[Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return st.recursive(
            st.none() | st.integers(-9, 9) | st.text(max_size=3), lambda x: st.lists(x, max_size=2), max_leaves=3
        )
    if hint is np.ndarray or origin is np.ndarray:
        return st.from_type(np.ndarray)
    if hint in (SamplingParams, Constraint, CallText):  # they refuse values that make no sense when they are made
        return st.from_type(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return st.deferred(lambda: message(hint))
    if origin in (list, tuple) and args:
        if origin is list or args[-1] is Ellipsis:
            items = st.lists(value(args[0]), max_size=2)
            return items if origin is list else items.map(tuple)
        return st.tuples(*map(value, args))
    if origin is dict:
        return st.dictionaries(value(args[0]), value(args[1]), max_size=2)
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is typing.Annotated:
        return value(args[0])
    if args:
        return st.one_of(*map(value, args))
    simple = {
        int: st.integers(-(2**31), 2**31), float: st.floats(allow_nan=False), str: st.text(max_size=5),
        bytes: st.binary(max_size=5), bool: st.booleans(), type(None): st.none(),
    }  # fmt: skip
    return simple[hint]


def mutated(draw: Callable[..., Any], data: bytes) -> bytes:
    """The same bytes with some of them overwritten, taken out, doubled, or followed by others."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(out) - 1)))
        match draw(st.integers(0, 3)):
            case 0:
                out[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case 1:
                del out[at : at + draw(st.integers(1, 9))]
            case 2:
                out[at:at] = out[at : at + draw(st.integers(1, 40))]
            case _:
                out[at : at + 8] = draw(st.sampled_from([b"\xff" * 8, b"\x00" * 8, (2**40).to_bytes(8, "little")]))
    return bytes(out)


def bounded(run: Callable[[], Any], given_bytes: int) -> None:
    """Call it, and refuse a peak of memory that what it was given does not explain."""
    tracemalloc.start()
    try:
        run()
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < ROOM + 200 * given_bytes, f"{peak} bytes for {given_bytes}"


@pytest.mark.parametrize(
    ("family", "kind"), [(name, kind) for name, family in FAMILIES.items() for kind in typing.get_args(family)]
)
def test_messages(family: str, kind: type, long: bool) -> None:
    codec: Codec[Any, Any] = Codec(FAMILIES[family])

    @settings(max_examples=500 if long else 8, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        made = data.draw(message(kind))
        frames = [bytes(frame) for frame in codec.encode(made)]
        assert type(codec.decode(frames)) is type(made)
        at = data.draw(st.integers(0, len(frames) - 1))
        frames[at] = mutated(data.draw, frames[at])
        if data.draw(st.booleans()):
            del frames[-1]
        try:
            codec.decode(frames)
        except DecodeError:
            return

    check()


@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_messages(family: str) -> None:
    codec: Codec[Any, Any] = Codec(FAMILIES[family])
    start_of_a_prompt = (
        b"\x83\xa4type\xa6Submit\xaarequest_id\x01\xa6prompt\x83\xa4type\xaaChatPrompt\xa8messages\x90"
        b"\xaftemplate_kwargs\x81\xa1a"
    )
    huge = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
            b"\xc9\xff\xff\xff\xff\x01", b"\x91" * 100_000, b"\xdc\xff\xff" * 5000, b""]  # fmt: skip
    for bytes_ in huge:
        for start in (b"", start_of_a_prompt):

            def run(frame: bytes = start + bytes_) -> None:
                with pytest.raises(DecodeError):
                    codec.decode([frame])

            bounded(run, len(start + bytes_))


BODIES = {route.path: route.body for route in ROUTES if route.body is not None}
TEXTS = [
    {
        "messages": [{"role": "user", "content": "Hi"}],
        "n": 2,
        "stop": ["a"],
        "logit_bias": {"3": 1},
        "temperature": 0.5,
    },
    {"prompt": ["a", [1, 2]], "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3},
    {"prompt": {"type": "TokensPrompt", "ids": [1, 2]}, "options": [[1], [2]], "sampling": {"n": 1}},
    {"items": [{"type": "Text", "text": "a"}, {"type": "Gen", "index": 0, "sampling": {"max_tokens": 5}}]},
    {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}], "max_tokens": 5},
]


@pytest.mark.parametrize("path", BODIES)
def test_bodies(path: str, long: bool) -> None:
    decode = decoder(BODIES[path])

    @settings(max_examples=1000 if long else 25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        text = json.dumps(data.draw(st.sampled_from(TEXTS))).encode()
        try:
            parse(mutated(data.draw, text), decode)
        except InvalidRequest:
            return

    check()
    deep = [b"[" * 100_000, b'{"messages":' * 50_000, b"[" * 50_000 + b"]" * 50_000, b'{"a":[' * 30_000]
    for raw in (*deep, b"", b"\x00", b"\xff\xfe", b'"' + b"a" * 100_000, b"1" * 5000, b"-", b"1e999999999"):

        def run(raw: bytes = raw) -> None:
            with pytest.raises(InvalidRequest):
                parse(raw, decode)

        bounded(run, len(raw))


def safetensors(tensors: dict[str, Any], data: bytes = b"\x00" * 64) -> bytes:
    header = json.dumps(tensors).encode()
    return len(header).to_bytes(8, "little") + header + data


GOOD = safetensors(
    {"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]},
     "b": {"dtype": "BF16", "shape": [16], "data_offsets": [32, 64]}}
)  # fmt: skip


def refused_or_read(read: Callable[[Path], Any], file: Path, data: bytes) -> None:
    file.write_bytes(data)

    def run() -> None:
        try:
            read(file)
        except ModelError:
            return

    bounded(run, len(data))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_safetensors_headers(tmp_path: Path, data: st.DataObject) -> None:
    refused_or_read(read_safetensors_header, tmp_path / "m.safetensors", mutated(data.draw, GOOD))


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63 - 1, 2**64 - 1])
def test_safetensors_of_impossible_sizes(tmp_path: Path, length: int) -> None:
    file = tmp_path / "m.safetensors"
    refused_or_read(read_safetensors_header, file, length.to_bytes(8, "little") + GOOD[8:])
    entry = {"dtype": "F32", "shape": [length, length], "data_offsets": [0, length]}
    refused_or_read(read_safetensors_header, file, safetensors({"a": entry}))
    refused_or_read(read_safetensors_header, file, (50_000).to_bytes(8, "little") + b"[" * 50_000)
    refused_or_read(read_safetensors_header, file, safetensors({"a": {**entry, "shape": [2] * 5000}}))


def gguf(*, tensors: int = 1, fields: int = 1, count: int = 2, text: int = 1, dims: tuple[int, ...] = (4,)) -> bytes:
    """A small GGUF file whose counts and lengths may be anything."""
    key = b"x.a"
    out = b"GGUF" + struct.pack("<IQQ", 3, tensors, fields)
    out += struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 8, count)
    out += (struct.pack("<Q", text) + b"t") * 2
    out += struct.pack("<Q", 1) + b"w" + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
    out += struct.pack("<IQ", 0, 0)
    return out + b"\x00" * (-len(out) % 32) + b"\x00" * 64


def test_gguf_headers_of_impossible_sizes(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf())
    assert read_gguf(file).metadata == {"x.a": ["t", "t"]}
    for n in (2**16, 2**31, 2**40, 2**63, 2**64 - 1):
        for wrong in ("tensors", "fields", "count", "text"):
            file.write_bytes(gguf(**{wrong: n}))
            with pytest.raises(ModelError, match=r"m\.gguf"):
                read_gguf(file)
            refused_or_read(read_gguf, file, gguf(**{wrong: n}))
        refused_or_read(read_gguf, file, gguf(dims=(n, n, n, n)))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_gguf_headers(tmp_path: Path, data: st.DataObject) -> None:
    refused_or_read(read_gguf, tmp_path / "m.gguf", mutated(data.draw, gguf()))
