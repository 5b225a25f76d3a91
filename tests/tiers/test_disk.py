"""The disk tier: what is read is what was put, or nothing; bounded, and whole again after whatever happened to it."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixrt.errors import StartupError
from radixrt.tiers import DiskTier, HostTier, LayeredTier, Tier, TierError
from radixrt.tiers.fingerprint import Fingerprint, weights_hash

BYTES = 5000
STRIDE = 8192 + 64
MINE = Fingerprint(
    weights_hash="0" * 32, architecture={"rope_theta": 1e4}, dtype="float32", kv_dtype="float16",
    weights="as loaded",    layers=2, kv_heads=1, head_dim=8,
)  # fmt: skip


def key(n: int) -> bytes:
    return hashlib.blake2b(str(n).encode(), digest_size=24).digest()


def payload(n: int) -> memoryview:
    """What belongs to key(n) and to no other."""
    return memoryview(hashlib.shake_128(key(n)).digest(BYTES))


def open_disk(directory: Path, chunks: int = 8, fingerprint: Fingerprint = MINE) -> DiskTier:
    return DiskTier(directory, fingerprint, BYTES, 4096 + chunks * STRIDE)


def test_an_unusable_directory_is_named(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.touch()
    with pytest.raises(StartupError, match=re.escape(f"{taken} cannot be used: File exists")):
        open_disk(taken)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskTier]:
    tier = open_disk(tmp_path)
    yield tier
    tier.close()


@pytest.fixture(params=["disk", "host", "layered"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tier]:
    """Eight chunks of each kind (the layered one: three in front of eight)."""
    made: Tier
    if request.param == "host":
        made = HostTier(BYTES, 8 * BYTES)
    else:
        made = open_disk(tmp_path)
        if request.param == "layered":
            made = LayeredTier(HostTier(BYTES, 3 * BYTES), made)
    yield made
    made.close()


def test_what_is_put_is_got(tier):
    for n in range(6):
        tier.put(key(n), payload(n))
    for n in range(6):
        assert tier.contains(key(n)) and tier.get(key(n)) == payload(n)
    assert not tier.contains(key(9)) and tier.get(key(9)) is None
    assert sorted(tier.keys()) == sorted(key(n) for n in range(6))
    assert 6 * BYTES <= tier.used_bytes <= tier.capacity_bytes
    assert tier.news() == ([], [])
    tier.sync()


def test_the_least_recently_used_is_dropped_for_a_new_one_and_named(tier):
    for n in range(8):
        tier.put(key(n), payload(n))
    tier.touch([key(0), key(1)])
    tier.put(key(3), payload(3))  # again: it is used
    for n in range(8, 11):
        tier.put(key(n), payload(n))
    assert tier.used_bytes <= tier.capacity_bytes
    assert sorted(tier.news()[1]) == sorted([key(2), key(4), key(5)])
    for n in (0, 1, 3, 6, 7, 8, 9, 10):
        assert tier.get(key(n)) == payload(n)


def test_what_is_deleted_is_gone_and_named_once(tier):
    tier.put(key(1), payload(1))
    tier.delete(key(1))
    tier.delete(key(2))
    assert tier.get(key(1)) is None and tier.news() == ([], [key(1)]) and tier.news() == ([], [])
    tier.put(key(1), payload(1))
    assert tier.get(key(1)) == payload(1)


def test_a_payload_of_another_size_is_refused(disk):
    with pytest.raises(ValueError, match="5000 bytes"):
        disk.put(key(1), memoryview(b"short"))


# --- restart ------------------------------------------------------------------------------------------------------


def test_it_is_warm_after_a_restart_in_the_same_order_of_use(tmp_path):
    tier = open_disk(tmp_path)
    for n in range(8):
        tier.put(key(n), payload(n))
    tier.touch([key(0)])
    tier.close()
    again = open_disk(tmp_path)
    assert again.keys() == [*(key(n) for n in range(1, 8)), key(0)]
    again.put(key(8), payload(8))
    assert again.news()[1] == [key(1)]
    assert all(again.get(key(n)) == payload(n) for n in (0, *range(2, 9)))
    again.close()


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"},
        {"weights": "4-bit weights, 8-bit head"},
        {"weights_hash": "1" * 32},
        {"architecture": {"rope_theta": 5e5}},
        {"layers": 1, "kv_heads": 2},
        {"chunk": 32},
        {"format": 0},
    ],
)
def test_what_another_model_left_is_dropped_with_a_line(tmp_path, caplog, change):
    tier = open_disk(tmp_path)
    tier.put(key(1), payload(1))
    tier.close()
    fields = {name: getattr(MINE, name) for name in MINE.__struct_fields__} | change
    with caplog.at_level(logging.WARNING):
        other = open_disk(tmp_path, fingerprint=Fingerprint(**fields))
    assert not other.keys() and other.get(key(1)) is None
    assert "dropped what the cache directory held" in caplog.text and next(iter(change)) in caplog.text
    other.close()
    back = open_disk(tmp_path)
    assert not back.keys()
    back.close()


def test_a_smaller_limit_keeps_what_fits_and_a_larger_one_all(tmp_path):
    tier = open_disk(tmp_path, chunks=8)
    for n in range(8):
        tier.put(key(n), payload(n))
    tier.close()
    small = open_disk(tmp_path, chunks=3)
    kept = small.keys()
    assert len(kept) == 3 and sum(file.stat().st_size for file in tmp_path.iterdir()) <= 4096 + 3 * STRIDE
    small.close()
    large = open_disk(tmp_path, chunks=20)
    assert large.keys() == kept
    assert all(large.get(k) is not None for k in kept)
    large.close()


def test_one_engine_at_a_time(disk, tmp_path):
    with pytest.raises(StartupError, match="another engine"):
        open_disk(tmp_path)


def test_a_directory_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StartupError, match="--cache-dir"):
        open_disk(tmp_path / "file" / "below")
    with pytest.raises(StartupError, match="--cache-dir-bytes"):
        DiskTier(tmp_path, MINE, BYTES, 5000)


def test_nobody_else_may_read_it(tmp_path):
    open_disk(tmp_path / "new").close()
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in (tmp_path / "new").iterdir())


# --- damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_bytes_that_flip_anywhere_cost_what_they_hit_and_nothing_else(tmp_path, seed):
    chance = random.Random(seed)
    tier = open_disk(tmp_path)
    for n in range(8):
        tier.put(key(n), payload(n))
    tier.close()
    file = tmp_path / chance.choice(["radixrt-kv.index", "radixrt-kv.data"])
    content = bytearray(file.read_bytes())
    for _ in range(chance.randrange(1, 4)):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)
    again = open_disk(tmp_path)
    got = [again.get(key(n)) for n in range(8)]
    assert all(value is None or value == payload(n) for n, value in enumerate(got))
    if file.name.endswith("data") or again.keys():
        assert sum(value is not None for value in got) >= 5
    for n in range(20, 28):
        again.put(key(n), payload(n))
        assert again.get(key(n)) == payload(n)
    again.close()


@pytest.mark.parametrize("seed", range(8))
def test_files_that_were_cut_anywhere_open_with_what_is_whole(tmp_path, seed):
    chance = random.Random(seed)
    tier = open_disk(tmp_path)
    for n in range(8):
        tier.put(key(n), payload(n))
    tier.close()
    for name in chance.sample(["radixrt-kv.index", "radixrt-kv.data"], chance.randrange(1, 3)):
        os.truncate(tmp_path / name, chance.randrange((tmp_path / name).stat().st_size))
    again = open_disk(tmp_path)
    for n in range(8):
        assert again.get(key(n)) in (None, payload(n))
        again.put(key(n), payload(n))
        assert again.get(key(n)) == payload(n)
    again.close()


def test_a_broken_chunk_is_dropped_with_a_line_when_it_is_read(tmp_path, caplog):
    tier = open_disk(tmp_path)
    tier.put(key(1), payload(1))
    tier.close()
    with (tmp_path / "radixrt-kv.data").open("r+b") as file:
        file.seek(7 * 0)
        file.write(b"\xff" * 16)
    again = open_disk(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert again.contains(key(1)) and again.get(key(1)) is None
    assert "checksum" in caplog.text and not again.contains(key(1)) and again.news() == ([], [key(1)])
    again.close()


def test_data_that_somebody_cuts_while_it_is_open_is_not_a_crash(disk, tmp_path):
    disk.put(key(1), payload(1))
    os.truncate(tmp_path / "radixrt-kv.data", 0)
    assert disk.get(key(1)) is None


WRITER = """
import sys
from pathlib import Path
from tests.tiers.test_disk import key, open_disk, payload
tier = open_disk(Path(sys.argv[1]))
print("open", flush=True)
n = 0
while True:
    tier.put(key(n), payload(n))
    n += 1
"""


@pytest.mark.parametrize("after", [1, 7, 30])
def test_a_writer_that_is_killed_leaves_at_most_one_torn_chunk(tmp_path, after):
    home = str(Path(__file__).parents[2])
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=home,
        env={**os.environ, "PYTHONPATH": home},
    )
    try:
        assert writer.stdout is not None and writer.stdout.readline() == b"open\n"
        index, seen, changes = tmp_path / "radixrt-kv.index", b"", 0
        while changes <= after:  # then it is somewhere in the middle of a later chunk
            now = index.read_bytes()
            changes += now != seen
            seen = now
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    tier = open_disk(tmp_path)
    held = tier.keys()
    got = [tier.get(each) for each in held]
    assert 1 <= len(held) <= 8 and got.count(None) <= 1
    for each, value in zip(held, got, strict=True):
        assert value is None or value == hashlib.shake_128(each).digest(BYTES)
    tier.put(key(-1), payload(-1))
    assert tier.get(key(-1)) == payload(-1)
    tier.close()


# --- trouble ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_is_an_error_of_that_chunk_alone(disk, monkeypatch, code):
    disk.put(key(1), payload(1))
    real = os.pwrite

    def half(descriptor: int, data: memoryview, offset: int) -> int:
        if len(data) < BYTES:
            raise OSError(code, os.strerror(code))
        return real(descriptor, data[:100], offset)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(TierError, match=os.strerror(code)):
        disk.put(key(2), payload(2))
    assert not disk.contains(key(2)) and disk.get(key(1)) == payload(1)
    monkeypatch.undo()
    for n in range(2, 9):
        disk.put(key(n), payload(n))
    assert all(disk.get(key(n)) == payload(n) for n in range(1, 9))


def test_short_writes_are_carried_on(disk, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: real(descriptor, data[:777], offset))
    disk.put(key(1), payload(1))
    assert disk.get(key(1)) == payload(1)


def test_of_two_layers_memory_answers_first_and_is_filled_from_the_disk(tmp_path):
    disk = open_disk(tmp_path)
    layered = LayeredTier(HostTier(BYTES, 2 * BYTES), disk)
    for n in range(5):
        layered.put(key(n), payload(n))
    assert layered.news() == ([], [])  # memory dropped three, but the disk has them
    assert layered.get(key(0)) == payload(0)
    disk.delete(key(0))
    assert layered.get(key(0)) == payload(0)
    layered.put(key(5), payload(5))
    layered.put(key(6), payload(6))
    assert layered.news()[1] == [key(0)]
    layered.close()


def test_the_hash_of_the_weights_is_of_their_contents_and_remembered(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for directory in (first, second):
        directory.mkdir()
        (directory / "1.safetensors").write_bytes(b"one")
        (directory / "2.safetensors").write_bytes(b"two")
    memo = tmp_path / "memo"
    memo.mkdir()
    value = weights_hash(sorted(first.iterdir()), memo)
    assert value == weights_hash(sorted(second.iterdir())) == weights_hash(sorted(first.iterdir()), memo)
    (second / "2.safetensors").write_bytes(b"twO")
    assert weights_hash(sorted(second.iterdir()), memo) != value
    (memo / "radixrt-kv.hashes").write_text("{")  # torn: hashed again
    assert weights_hash(sorted(first.iterdir()), memo) == value
