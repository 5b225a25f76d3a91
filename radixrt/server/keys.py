"""API keys: who may call, under which name, and how much.

A secret is kept as its SHA-256 and compared in constant time against every key: the time of an answer does not say how
much of a guess was right, and nothing that is printed holds a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from radixrt.errors import StartupError

Access: TypeAlias = Literal["open", "key", "admin"]
"""What a route asks for: nothing, any key, or the right to operate the server."""

Count: TypeAlias = Annotated[int, Meta(ge=1)]


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key of a key file."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    """Stands in logs and metrics, in place of the key."""
    key: Annotated[str, Meta(min_length=8, pattern=r"^[!-~]+$")]
    """The secret: at least eight visible ASCII characters."""
    namespace: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = None
    """Keys of one namespace share the prefix cache; nobody else sees it. Absent: the key's own name."""
    admin: bool = False
    """May also operate the server: /metrics, /flush_cache, /abort, /cache of all."""
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    """Prompt and generated tokens together."""
    token_budget: Count | None = None
    """Tokens of this key until the server ends."""


@dataclass(frozen=True)
class ApiKey:
    """A key that the server knows, without its secret."""

    name: str
    digest: bytes
    namespace: str | None
    """None: the common namespace of a server with a single key."""
    admin: bool = False
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    token_budget: int | None = None


class Keys:
    """The keys of a server. Without any, everybody may do everything."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._keys = tuple(keys)
        names = [key.name for key in self._keys]
        digests = {key.digest for key in self._keys}
        if len(set(names)) < len(names) or len(digests) < len(names):
            raise StartupError("two API keys have the same name or the same secret")
        self.admin_apart = any(key.admin for key in self._keys)
        """Operating the server needs an admin key. Otherwise a single key may do all, and several may not operate."""

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, secret: bytes) -> ApiKey | None:
        """The key with this secret. Takes the same time for every wrong one."""
        digest, found = _digest(secret), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def may_operate(self, key: ApiKey) -> bool:
        return key.admin or (not self.admin_apart and len(self._keys) == 1)


def keys_of(secrets: Sequence[str] = (), *, file: Path | None = None, admin: str | None = None) -> Keys:
    """The keys that the command line names: plain secrets, a key file, an admin's secret.

    One plain secret alone serves in the common namespace; several get a namespace each, `key-1`, `key-2`, ...
    Raises StartupError where one is empty or malformed, or the file cannot be read.
    """
    entries = list(read_keys(file)) if file is not None else []
    keys = [_known(entry) for entry in entries]
    for number, secret in enumerate(secrets, 1):
        _check_secret(secret)
        name = f"key-{number}"
        alone = len(secrets) == 1 and not entries
        keys.append(ApiKey(name, _digest(secret.encode()), None if alone else name))
    if admin is not None:
        _check_secret(admin)
        keys.append(ApiKey("admin", _digest(admin.encode()), None, admin=True))
    return Keys(keys)


def read_keys(file: Path) -> list[KeyEntry]:
    """A JSON list of keys. The file may not be readable by everybody."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            raw = opened.read()
    except OSError as error:
        raise StartupError(f"the key file {file} cannot be read: {error.strerror}") from error
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        raise StartupError(f"the key file {file} can be read by every user of this machine: chmod 600 it")
    try:
        return msgspec.json.decode(raw, type=list[KeyEntry])
    except msgspec.MsgspecError as error:
        raise StartupError(f"the key file {file} is not a list of keys: {error}") from error


def _known(entry: KeyEntry) -> ApiKey:
    return ApiKey(
        name=entry.name,
        digest=_digest(entry.key.encode()),
        namespace=entry.namespace or entry.name,
        admin=entry.admin,
        requests_per_minute=entry.requests_per_minute,
        tokens_per_minute=entry.tokens_per_minute,
        token_budget=entry.token_budget,
    )


def _check_secret(secret: str) -> None:
    if not secret or not all("!" <= character <= "~" for character in secret):
        raise StartupError("an API key is one or more visible ASCII characters without spaces")


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
