"""What stored KV belongs to: a chunk computed by other weights, in another type or layout, must never be read."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from radixrt.tiers.keys import CHUNK

log = logging.getLogger(__name__)

FORMAT = 4
"""To be raised whenever what a chunk holds changes (layout, or how keys and values are computed), or what names it."""
_MEMO = "radixrt-kv.hashes"


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that keys and values depend on beside the tokens and their namespace. Equal or useless."""

    weights_hash: str
    """Of the contents of all weight files, wherever they lie."""
    architecture: dict[str, Any]
    """The model's config: heads, layers, norm, rotary base and scaling, window."""
    dtype: str
    """Number type of activations."""
    kv_dtype: str
    """Number type of stored keys and values."""
    weights: str
    """The form in which the matrices are multiplied, as it came out (not as it was asked for)."""
    layers: int
    kv_heads: int
    head_dim: int
    chunk: int = CHUNK
    byte_order: str = sys.byteorder
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """32 hexadecimal digits; what keys of a store shared by several models should begin with."""
        return hashlib.blake2b(self.encode(), digest_size=16).hexdigest()

    def encode(self) -> bytes:
        return json.dumps(msgspec.to_builtins(self), sort_keys=True).encode()

    def difference(self, other: bytes) -> str | None:
        """In words what differs from an encoded fingerprint; None where nothing does."""
        if other == self.encode():
            return None
        try:
            theirs = json.loads(other)
        except ValueError:
            return "its header is broken"
        if not isinstance(theirs, dict):
            return "its header is broken"
        mine = json.loads(self.encode())
        names = [name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]
        plain = [f"{name} {theirs.get(name)}, not {mine.get(name)}" for name in names if name != "architecture"]
        return "it was made with " + "; ".join([*plain, *(["another architecture"] if "architecture" in names else [])])


def weights_hash(files: Sequence[Path], memo_directory: Path | None = None) -> str:
    """Hash of the contents of `files` in the order of their names.

    Reading every weight at each start would cost more than the cache spares, so a file's hash is remembered in
    `memo_directory` for as long as its size, time of change and inode stay what they were.
    """
    memo = _read_memo(memo_directory)
    fresh: dict[str, list[Any]] = {}

    def one(file: Path) -> str:
        facts = file.stat()
        mark = [facts.st_size, facts.st_mtime_ns, facts.st_ino]
        name = str(file.resolve())
        known = memo.get(name)
        if isinstance(known, list) and known[:3] == mark and len(known) == 4 and isinstance(known[3], str):
            digest = known[3]
        else:
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "blake2b").hexdigest()[:64]
        fresh[name] = [*mark, digest]
        return digest

    ordered = sorted(files, key=lambda file: file.name)
    with ThreadPoolExecutor(2) as pool:
        digests = list(pool.map(one, ordered))
    if memo_directory is not None and any(memo.get(name) != facts for name, facts in fresh.items()):
        others = {name: facts for name, facts in memo.items() if Path(name).exists()}
        try:
            (memo_directory / _MEMO).write_text(json.dumps(others | fresh))
        except OSError as error:
            log.warning("the weights will be hashed again at the next start: %s", error.strerror)
    return hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()


def _read_memo(directory: Path | None) -> dict[str, Any]:
    if directory is None:
        return {}
    try:
        memo = json.loads((directory / _MEMO).read_text())
    except (OSError, ValueError):
        return {}  # none yet, or torn: hashing again is all it costs
    return memo if isinstance(memo, dict) else {}
