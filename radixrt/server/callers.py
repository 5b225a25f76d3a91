"""Who is calling: the key of the request that is being answered, for whatever is called on its behalf."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass

from radixrt.server.allowance import Allowance
from radixrt.server.keys import ApiKey, Keys


@dataclass(frozen=True)
class Caller:
    """What the key of a request stands for."""

    name: str | None = None
    """None: the server has no keys."""
    namespace: str | None = None
    """Whose prefix cache is seen."""
    operator: bool = True
    """May operate the server."""
    allowance: Allowance | None = None


ANYBODY = Caller()

_current: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


def current() -> Caller:
    """The caller of the request that this task answers; ANYBODY outside of one."""
    return _current.get()


def enter(caller: Caller) -> None:
    """Say who calls, for the rest of this task and the tasks it makes."""
    _current.set(caller)


class Callers:
    """From secrets to callers, each key with one allowance for all its requests."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._callers = {key.name: _caller(key, keys) for key in keys}

    def find(self, secrets: Iterable[bytes]) -> Caller | None:
        """The caller of the first right secret. Every one is looked at."""
        found = None
        for secret in secrets:
            key = self._keys.find(secret)
            found = found or key
        return self._callers[found.name] if found is not None else None


def _caller(key: ApiKey, keys: Keys) -> Caller:
    return Caller(key.name, key.namespace, keys.may_operate(key), Allowance(key))
