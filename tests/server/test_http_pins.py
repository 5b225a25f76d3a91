"""Pins and cache reports over HTTP, from a real engine: raw requests, the typed client, and programs over it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import pytest

from radixrt import Client, Engine, SamplingParams
from radixrt.errors import InvalidRequest, NotFound
from radixrt.lang import ProgramError, assistant, function, gen, select, user
from radixrt.server.keys import keys_of
from tests.waiting import until

from .conftest import Served, serving
from .events import error_of

POLICY = "Parcels that have not arrived within ten days are sent again, free of charge, to the same address. " * 3
salts = (f"http-{number}" for number in count())


@pytest.fixture(scope="module")
def house(small_engine: Engine) -> Iterator[Served]:
    with serving(small_engine, None) as served:  # type: ignore[arg-type]
        yield served


def cache(house: Served, salt: str) -> dict:
    answer = house.http.get("/cache", params={"cache_salt": salt})
    assert answer.status_code == 200
    return answer.json()


def test_pin_and_unpin(house: Served) -> None:
    salt = next(salts)
    made = house.post("/v1/cache/pin", {"prompt": POLICY, "ttl_s": 60, "cache_salt": salt})
    assert made.status_code == 200
    pin = made.json()
    assert pin["tokens"] > 50 and 50 < pin["expires_in_s"] <= 60
    seen = cache(house, salt)
    assert [one["id"] for one in seen["pins"]] == [pin["id"]] and seen["pinned_tokens"] == pin["tokens"]
    assert [node["pins"] for node in seen["nodes"]] == [1]
    answer = house.complete(POLICY + "And?", cache_salt=salt, max_tokens=1).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= pin["tokens"] - 1
    for wrong in ({"id": pin["id"]}, {"id": pin["id"], "cache_salt": "other"}, {"id": "none", "cache_salt": salt}):
        assert error_of(house.post("/v1/cache/unpin", wrong), 404)["code"] == "pin_not_found"
    ended = house.post("/v1/cache/unpin", {"id": pin["id"], "cache_salt": salt})
    assert (ended.status_code, ended.json()["tokens"]) == (200, pin["tokens"])
    assert error_of(house.post("/v1/cache/unpin", {"id": pin["id"], "cache_salt": salt}), 404)
    assert cache(house, salt)["pins"] == []


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"prompt": [7] * 401, "ttl_s": 60}, "prompt", "pin_quota"),
        ({"prompt": "x", "ttl_s": 0}, "ttl_s", None),
        ({"prompt": "x", "ttl_s": 1e9}, "ttl", None),
        ({"prompt": "x"}, "ttl_s", None),
        ({"prompt": "x", "ttl_s": 1, "timeout_s": 0}, "timeout_s", None),
        ({"prompt": "x", "ttl_s": 1, "pin": 1}, "pin", None),
    ],
)
def test_pins_that_are_refused(house: Served, body: dict, param: str, code: str | None) -> None:
    error = error_of(house.post("/v1/cache/pin", body), 400)
    assert error["param"] == param and (code is None or error["code"] == code)


def test_a_pin_expires(house: Served) -> None:
    salt = next(salts)
    pin = house.post("/v1/cache/pin", {"prompt": POLICY, "ttl_s": 0.05, "cache_salt": salt}).json()
    until(lambda: not cache(house, salt)["pins"])
    assert (
        error_of(house.post("/v1/cache/unpin", {"id": pin["id"], "cache_salt": salt}), 404)["code"] == "pin_not_found"
    )
    assert cache(house, salt)["nodes"], "its text stays, as any other"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_reports_of_the_openai_routes(house: Served, route: str, stream: bool) -> None:
    salt = next(salts)

    def ask(text: str, *, wanted: bool = True) -> dict:
        body = {"prompt": text} if route == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
        body |= {"max_tokens": 2, "temperature": 0, "cache_salt": salt, "stream": stream}
        if wanted:
            body["return_cache_report"] = True
        if stream:
            body["stream_options"] = {"include_usage": True}
        answer = house.post(route, body)
        assert answer.status_code == 200, answer.text
        if not stream:
            return answer.json()["usage"]
        events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        return json.loads(events[-1])["usage"]

    assert "cache" not in ask("Something else", wanted=False)
    first = ask(POLICY)
    assert first["cache"]["reason"] in ("never_seen", "diverged")
    other = ask(POLICY[:150] + " Or else")
    told = other["cache"]
    assert told["reason"] == "diverged" and told["missed_at"] == told["cached"] > 20
    assert told["cached"] + told["computed"] == other["prompt_tokens"]
    assert told["diverged_from"][0]["text"] and told["diverged_from"][0]["text"] in POLICY
    assert house.post("/flush_cache", {}).json()["freed_tokens"] > 50
    assert ask(POLICY)["cache"]["reason"] == "evicted"


def test_reports_of_the_native_routes(house: Served) -> None:
    body = {"prompt": POLICY, "options": [" yes", " no"], "cache_salt": next(salts)}
    assert house.post("/v1/select", body).json()["usage"]["cache"] is None
    report = house.post("/v1/select", {**body, "prompt": POLICY[:150] + " Or", "return_cache_report": True}).json()
    assert report["usage"]["cache"]["reason"] == "diverged"
    assert report["usage"]["cache"]["diverged_from"][0]["text"]


@function
def sort(s, ticket, ttl=None):
    s += user(POLICY + ticket)
    if ttl:
        s.pin(ttl=ttl)
    s += assistant(
        select("label", ["late", "lost"], return_cache_report=True)
        + gen("why", max_tokens=3, temperature=0, ignore_eos=True, return_cache_report=True)
    )


def test_programs_over_the_client(house: Served, small_engine: Engine) -> None:
    salt = next(salts)
    with Client(house.url) as client:
        state = sort.run(ticket="It is late.", ttl=60, backend=client, cache_salt=salt)
        (pin,) = state.pins
        assert [one.id for one in client.cache(cache_salt=salt).pins] == [pin.id]
        again = sort.run(ticket="Where is it?", backend=client, cache_salt=salt)
        told = again.meta("label").usage.cache
        assert told is not None and told.reason == "diverged"
        assert any("late" in branch.text for branch in told.diverged_from)
        gen_told = again.meta("why").usage.cache
        assert gen_told is not None and gen_told.cached > told.cached
        again.unpin()
        assert again.pins == () and [one.id for one in client.cache(cache_salt=salt).pins] == [pin.id]
        state.unpin()
        assert state.pins == () and client.cache(cache_salt=salt).pins == []
        made = client.pin("A text to keep", 60, cache_salt=salt)
        assert client.unpin(made, cache_salt=salt).id == made.id
        with pytest.raises(NotFound) as raised:
            client.unpin(made.id, cache_salt=salt)
        assert raised.value.code == "pin_not_found"
        with pytest.raises(InvalidRequest) as refused:
            client.pin([7] * 401, 60, cache_salt=salt)
        assert refused.value.code == "pin_quota"
        asked = SamplingParams(max_tokens=1, return_cache_report=True)
        report = client.generate("A text to keep or not", asked, cache_salt=salt).usage.cache
        assert report is not None and report.cached >= made.tokens - 1

        @function
        def too_much(s):
            s += POLICY * 6
            s.pin(30)
            s += gen("x", max_tokens=1)

        with pytest.raises(ProgramError, match="pin-quota"):
            too_much.run(backend=client, cache_salt=salt)["x"]


def test_pins_need_a_key_where_there_are_keys(small_engine: Engine) -> None:
    with serving(small_engine, None, keys=keys_of(["key-1234-5678"])) as served:  # type: ignore[arg-type]
        assert error_of(served.post("/v1/cache/pin", {"prompt": "x", "ttl_s": 1}), 401)
