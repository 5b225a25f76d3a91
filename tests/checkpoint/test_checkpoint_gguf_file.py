"""The GGUF header reader against the gguf library, and against broken files."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from checkpoint_stand_ins import write_gguf
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixrt.checkpoint import open_checkpoint, read_gguf
from radixrt.checkpoint.gguf_file import GGML_TYPES
from radixrt.errors import ModelError


def fields(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    writer.add_uint8("x.u8", 200)
    writer.add_int8("x.i8", -5)
    writer.add_uint16("x.u16", 60000)
    writer.add_int16("x.i16", -30000)
    writer.add_uint64("x.u64", 2**63)
    writer.add_int64("x.i64", -(2**62))
    writer.add_float64("x.f64", 0.1)
    writer.add_bool("x.bool", True)
    writer.add_array("x.floats", [0.5, 1.5])
    writer.add_array("x.words", ["", "naïve", "漢字"])


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "small.gguf", tokens=["a", "b", "<end>", "ab"], types=[1, 1, 3, 1], extra=fields)


def test_types_are_those_of_the_library() -> None:
    # The library's size of Q8_1 is that of an older layout; ggml.h has 36, and no file is stored in it.
    theirs = {kind.value: (kind.name, *size) for kind, size in GGML_QUANT_SIZES.items() if kind.name != "Q8_1"}
    assert {number: entry for number, entry in GGML_TYPES.items() if entry[0] != "Q8_1"} == theirs


def test_header_equals_the_library(small: Path) -> None:
    ours, theirs = read_gguf(small), gguf.GGUFReader(small)
    expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    assert [(t.name, t.shape, t.ggml_type, t.offset, t.nbytes) for t in ours.tensors] == [
        (t.name, tuple(int(n) for n in t.shape[::-1]), t.tensor_type.value, t.data_offset, t.n_bytes)
        for t in theirs.tensors
    ]


def test_the_real_model(smollm2_path: Path) -> None:
    file = read_gguf(smollm2_path)
    assert len(file.tensors) == 272
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert file.by_name["token_embd.weight"].shape == (49152, 576)
    last = max(file.tensors, key=lambda t: t.offset)
    assert last.offset + last.nbytes <= smollm2_path.stat().st_size < last.offset + last.nbytes + 32


def test_every_truncation_is_refused(small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    read = read_gguf(small)
    end = max(t.offset + t.nbytes for t in read.tensors)
    cut = tmp_path / "cut.gguf"
    for length in range(0, end, 7):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_gguf(cut)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_headers_never_raise_anything_else(small: Path, tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path / "damaged.gguf"
    file.write_bytes(damaged)
    try:
        checkpoint = open_checkpoint(file)
        _ = checkpoint.eos_token_ids, checkpoint.chat_template
        checkpoint.vocabulary()
    except ModelError:
        return


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b"GGML" + b[4:], "does not start with GGUF"),
        (lambda b: b[:4] + (1).to_bytes(4, "little") + b[8:], "version 1"),
        (lambda b: b[:4] + (3).to_bytes(4, "big") + b[8:], "big-endian"),
        (lambda b: b[:8] + (2**60).to_bytes(8, "little") + b[16:], "counts"),
        (lambda b: b[:16] + (2**60).to_bytes(8, "little") + b[24:], "counts"),
        (lambda b: b"", "shorter"),
    ],
)
def test_wrong_starts(small: Path, change: object, message: str) -> None:
    small.write_bytes(change(small.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ModelError, match=message):
        read_gguf(small)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf cannot be read"):
        read_gguf(tmp_path / "none.gguf")
