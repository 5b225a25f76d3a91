"""Two keys over one real engine: nothing that a key may ask tells of the other's prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from radixrt import Engine
from radixrt.server.keys import keys_of

from .conftest import Served, serving

ANA, BEN, ADMIN = "key-of-ana-1234", "key-of-ben-1234", "key-of-admin-1234"
SECRET = "The recipe of the house: seven spoons of cardamom, two of cloves, and never a word to the neighbours. " * 3


@pytest.fixture(scope="module")
def house(small_engine: Engine) -> Iterator[Served]:
    with serving(small_engine, None, keys=keys_of([ANA, BEN], admin=ADMIN)) as served:  # type: ignore[arg-type]
        yield served


def ask(house: Served, key: str, method: str, path: str, body: object = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    answer = house.http.request(method, path, json=body, headers=headers)
    assert answer.status_code < 500, answer.text
    return answer


def requests() -> list[tuple[str, str, object]]:
    sampling = {"max_tokens": 4, "temperature": 0}
    text = {"prompt": SECRET, "return_cache_report": True, **sampling}
    messages = [{"role": "user", "content": SECRET}]
    ollama = {"model": "tiny", "messages": messages, "stream": False, "options": {"num_predict": 4}}
    return [
        ("POST", "/v1/completions", text),
        ("POST", "/v1/completions", {**text, "prompt": SECRET[:150] + "and then"}),
        ("POST", "/v1/chat/completions", {"messages": messages, "return_cache_report": True, **sampling}),
        ("POST", "/v1/messages", {"messages": messages, "model": "tiny", **sampling}),
        ("POST", "/api/chat", ollama),
        ("POST", "/v1/select", {"prompt": SECRET, "options": ["yes", "no"]}),
        ("POST", "/generate", {"prompt": SECRET, "sampling": {**sampling, "return_cache_report": True}}),
        ("POST", "/v1/cache/pin", {"prompt": SECRET, "ttl_s": 60}),
        ("GET", "/cache", None),
        ("GET", "/server_info", None),
    ]


VARIABLE = {"id", "created", "created_at", "age_s", "queue_s", "ttft_s", "total_s", "grammar_s", "expires_in_s"}


def steady(value: object) -> object:
    """An answer without what differs from one time to the next: times and names."""
    if isinstance(value, dict):
        return {k: steady(v) for k, v in value.items() if k not in VARIABLE and not k.endswith("_duration")}
    return [steady(item) for item in value] if isinstance(value, list) else value


def test_two_keys_know_nothing_of_each_other(house: Served) -> None:
    first = [steady(ask(house, ANA, *request).json()) for request in requests()]
    second = [steady(ask(house, BEN, *request).json()) for request in requests()]
    assert second == first, "ben, who comes after ana, is told what ana, who came first, was told"
    assert "cardamom" in json.dumps(ask(house, BEN, "GET", "/cache").json()), "each sees what is its own"
    (pin,) = ask(house, ANA, "GET", "/cache").json()["pins"]
    for key, salt in ((BEN, None), (ANA, "s"), (ADMIN, None)):
        gone = ask(house, key, "POST", "/v1/cache/unpin", {"id": pin["id"], "cache_salt": salt})
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "pin_not_found")
    assert ask(house, ANA, "GET", "/cache?cache_salt=s").json()["nodes"] == []
    for key in (ANA, BEN):
        assert ask(house, key, "GET", "/metrics").status_code == 403
        assert ask(house, key, "POST", "/flush_cache").status_code == 403
        assert "tier" not in {k for k, v in ask(house, key, "GET", "/cache").json().items() if v is not None}
    assert "cardamom" not in json.dumps(ask(house, ADMIN, "GET", "/cache").json()), "an operator sees counts, not text"
    assert ask(house, ADMIN, "GET", "/server_info").json()["tier"]["kind"] == "host"
    for key in (ANA, BEN):
        (pin,) = ask(house, key, "GET", "/cache").json()["pins"]
        assert ask(house, key, "POST", "/v1/cache/unpin", {"id": pin["id"]}).json()["tokens"] == pin["tokens"]
    assert ask(house, ANA, "GET", "/cache").json()["pinned_tokens"] == 0
