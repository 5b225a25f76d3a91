"""One client API: what Backend promises is what Engine and Client take, and an async call takes what its twin does."""

from __future__ import annotations

import inspect

import pytest

import radixrt
from radixrt.backend import Backend
from radixrt.client_calls import Call
from radixrt.errors import InvalidRequest
from radixrt.http_calls import http_call
from radixrt.questions import question

CALLS = sorted(name for name, member in vars(Backend).items() if inspect.isfunction(member) and name[0] != "_")


def parameters(owner: type, name: str) -> list[tuple[str, object, object]]:
    signature = inspect.signature(getattr(owner, name))
    return [(one.name, one.kind, one.default) for one in signature.parameters.values()]


@pytest.mark.parametrize("name", CALLS)
def test_engine_and_client_take_what_backend_promises(name: str) -> None:
    promised = parameters(Backend, name)
    assert parameters(radixrt.Engine, name) == parameters(radixrt.Client, name) == promised
    assert all(kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL) for _, kind, _ in promised)


def test_async_calls_are_twins() -> None:
    synchronous = [name for name in CALLS if f"a{name}" in CALLS]
    assert len(CALLS) == 2 * len(synchronous) >= 16
    for name in synchronous:
        assert parameters(Backend, name) == parameters(Backend, f"a{name}"), name


@pytest.mark.parametrize("name", ["generate", "score", "select", "pin"])
def test_help_says_what_a_call_does(name: str) -> None:
    assert inspect.getdoc(getattr(radixrt.Engine, name)) == inspect.getdoc(getattr(Backend, name))
    assert len(inspect.getdoc(getattr(radixrt.Engine, name)) or "") > 40


def test_an_unknown_call_is_refused() -> None:
    with pytest.raises(TypeError, match="Call"):
        question(Call())
    with pytest.raises(TypeError, match="Call"):
        http_call(Call(), None)


def test_every_call_can_be_asked_and_sent() -> None:
    """Given nothing of use, each is refused for what it was given, and not for being unknown."""
    kinds = Call.__subclasses__()
    assert len(kinds) >= 8
    for kind in kinds:
        given = kind(*[[] for _ in inspect.signature(kind).parameters])
        for ask in (question, lambda call: http_call(call, None)):
            try:
                ask(given)
            except InvalidRequest:
                continue
