"""Programs over OpenAI-compatible services: a strict stub that takes only OpenAI's own fields, and radixrt's server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from radixrt.errors import InvalidRequest
from radixrt.lang import OpenAI, ProgramError, assistant, function, gen, select, system, user
from radixrt.lang.capabilities import KNOWN
from tests.server.conftest import serving
from tests.server.fake_backend import REPLY
from tests.server.fake_backend import FakeBackend as ServerBackend

FIELDS = {
    "model", "messages", "temperature", "top_p", "max_completion_tokens", "n", "stop", "seed", "logit_bias", "logprobs",
    "top_logprobs", "frequency_penalty", "presence_penalty", "response_format", "stream", "stream_options",
}  # fmt: skip


class Stub:
    """Answers chats with `answers` in order (the last one for ever); any other field or path is a 400 or 404."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.answers = ["one", "two"]
        self.status = 200
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stub.keys.append(self.headers["Authorization"])
                status, answer = stub.answer(self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", "text/event-stream" if body.get("stream") else "application/json")
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        unknown = body.keys() - FIELDS
        if path != "/v1/chat/completions" or unknown or self.status != 200:
            status = 404 if path != "/v1/chat/completions" else 400 if unknown else self.status
            return status, json.dumps({"error": {"message": f"no {sorted(unknown)}", "code": "stub"}}).encode()
        self.bodies.append(body)
        text = self.answers[min(len(self.bodies), len(self.answers)) - 1]
        usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
        if not body.get("stream"):
            choices = [
                {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                for i in range(body.get("n", 1))
            ]
            return 200, json.dumps({"choices": choices, "usage": usage}).encode()
        events: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {"content": c}, "finish_reason": None}]} for c in text
        ]
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        events.append({"choices": [], "usage": usage})
        return 200, b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + b"data: [DONE]\n\n"


@pytest.fixture(scope="module")
def running() -> Iterator[Stub]:
    stub = Stub()
    thread = threading.Thread(target=stub.server.serve_forever, args=(0.05,))
    thread.start()
    yield stub
    stub.server.shutdown()
    stub.server.server_close()
    thread.join()


@pytest.fixture
def stub(running: Stub) -> Stub:
    running.bodies.clear()
    running.keys.clear()
    running.answers, running.status = ["one", "two"], 200
    return running


def service(stub: Stub, **options: Any) -> OpenAI:
    return OpenAI(base_url=stub.url, model="m", api_key="secret", **options)


@function
def talk(s):
    s += system("Be brief.") + user("Hi")
    s += assistant(gen("a", max_tokens=5, temperature=0, stop=["!"], seed=3, logit_bias={5: 1}))
    s += user("And?") + assistant(gen("b"))


def test_a_conversation_goes_as_messages(stub: Stub) -> None:
    state = talk.run(backend=service(stub))
    assert (state["a"], state["b"]) == ("one", "two")
    first, second = stub.bodies
    begin = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert first == {
        "model": "m", "messages": begin, "temperature": 0, "top_p": 1.0, "max_completion_tokens": 5, "stop": ["!"],
        "seed": 3, "logit_bias": {"5": 1.0},
    }  # fmt: skip
    said = [*begin, {"role": "assistant", "content": "one"}, {"role": "user", "content": "And?"}]
    assert second["messages"] == said
    assert state.messages() == [*said, {"role": "assistant", "content": "two"}]
    assert stub.keys == ["Bearer secret"] * 2
    assert (state.usage.prompt_tokens, state.usage.completion_tokens, state.usage.cached_tokens) == (14, 4, 6)


def test_streams_forks_and_async_runs(stub: Stub) -> None:
    stub.answers = ["Äpfel"]
    state = talk.stream(backend=service(stub))
    assert list(state.text_iter("a")) == list("Äpfel") and state.usage.prompt_tokens == 14

    @function
    def branches(s):
        s += user("Hi")
        s.fork_map(["x", "y"], lambda fork, item: assistant(gen("z", n=2))).join()

    state = asyncio.run(branches.arun(backend=service(stub)))
    assert state["z"] == [["Äpfel", "Äpfel"]] * 2 and stub.bodies[-1]["n"] == 2


class Pear(BaseModel):
    kind: Literal["William"]


def test_types_go_as_json_schema(stub: Stub) -> None:
    stub.answers = ['{"kind":"William"}']

    @function
    def program(s):
        s += user("A pear?") + assistant(gen("pear", type=Pear))

    assert program.run(backend=service(stub))["pear"] == Pear(kind="William")
    sent = stub.bodies[0]["response_format"]["json_schema"]
    assert sent["strict"] and sent["name"] == "pear" and sent["schema"]["properties"].keys() == {"kind"}


@pytest.mark.parametrize(
    ("expression", "param"),
    [
        (gen("x", regex="a+"), "regex"),
        (gen("x", type=int), "regex"),
        (gen("x", choices=["a"]), "choice"),
        (gen("x", grammar='start: "a"'), "grammar"),
        (gen("x", top_k=5), "top_k"),
        (gen("x", min_p=0.5), "min_p"),
        (gen("x", min_tokens=1), "min_tokens"),
        (gen("x", repetition_penalty=1.5), "repetition_penalty"),
        (gen("x", ignore_eos=True), "ignore_eos"),
        (gen("x", stop_token_ids=[1]), "stop_token_ids"),
        (gen("x", heal=True), "heal"),
        (gen("x", return_cache_report=True), "return_cache_report"),
        (select("x", ["a", "b"]), None),
        ("text" + gen("x"), "continue"),
    ],
)
def test_what_the_service_cannot_do_raises_before_anything_is_sent(
    stub: Stub, expression: Any, param: str | None
) -> None:
    @function
    def program(s):
        s += user("Hi") + assistant(expression)

    with pytest.raises(ProgramError) as raised:
        program.run(backend=service(stub))["x"]
    assert (raised.value.code, raised.value.param) == ("unsupported", param)
    assert not stub.bodies and not stub.keys


@pytest.mark.parametrize("what", ["pin", "unpin"])
def test_pins_are_refused_where_they_are_written(stub: Stub, what: str) -> None:
    @function
    def program(s):
        s += user("Hi")
        s.pin(ttl=60) if what == "pin" else s.unpin()
        s += assistant(gen("x"))

    with pytest.raises(InvalidRequest, match=r"radixrt\.Client") as raised:
        program.run(backend=service(stub))
    assert (raised.value.code, raised.value.param) == ("unsupported", "pin")
    assert not stub.bodies and not stub.keys


def test_other_things_a_service_has_not(stub: Stub) -> None:
    @function
    def plain(s):
        s += "text" + gen("x")

    @function
    def chat(s):
        s += user("Hi")

    def reads(program: Any, what: Any, **options: Any) -> None:
        with pytest.raises(ProgramError) as raised:
            what(program.run(backend=service(stub), **options))
        assert raised.value.code == "unsupported"

    reads(plain, lambda state: state["x"])
    reads(chat, lambda state: state.text())
    reads(chat, lambda state: state.ids)
    reads(talk, lambda state: state["a"], cache_salt="s")
    reads(talk, lambda state: state["a"], priority=1)
    assert not stub.keys
    with pytest.raises(InvalidRequest, match="unknown capability"):
        service(stub, capabilities={"magic"})


def test_the_tokens_of_plain_completions_are_not_told(stub: Stub) -> None:
    @function
    def plain(s):
        s += "text" + gen("x", logprobs=1)

    with pytest.raises(ProgramError, match="logprobs need a turn"):
        plain.run(backend=service(stub, capabilities=KNOWN))["x"]
    assert not stub.keys


def test_select_falls_back_only_if_asked(stub: Stub) -> None:
    stub.answers = ['{"choice": "No"}']

    @function
    def program(s):
        s += user("Ripe?") + assistant(select("x", ["Yes", "No"]))

    state = program.run(backend=service(stub, select="ask"))
    assert state["x"] == "No" and state.meta("x").scores == ()
    assert state.messages()[-1] == {"role": "assistant", "content": "No"}
    body = stub.bodies[0]
    schema = body["response_format"]["json_schema"]["schema"]
    assert body["temperature"] == 0 and schema["properties"]["choice"]["enum"] == ["Yes", "No"]
    stub.answers = ['{"choice": "Maybe"}']
    with pytest.raises(ProgramError, match="none of the choices"):
        program.run(backend=service(stub, select="ask"))["x"]


def test_the_services_words_reach_the_reader(stub: Stub) -> None:
    stub.status = 429
    with pytest.raises(ProgramError, match="429") as raised:
        talk.run(backend=service(stub))["a"]
    assert (raised.value.status, raised.value.code) == (503, "stub")
    with pytest.raises(ProgramError) as raised:
        talk.run(backend=OpenAI(base_url="http://127.0.0.1:9/v1", model="m"))["a"]
    assert raised.value.code == "unreachable"


def test_over_radixrts_own_server() -> None:
    backend = ServerBackend()

    @function
    def plain(s):
        s += "Say" + gen("x", max_tokens=400, top_k=5) + "!" + gen("y", regex="[a-z]+")

    @function
    def going_on(s):
        s += user("Hi") + assistant("So: " + gen("a") + " and " + gen("b"))

    with serving(backend, backend) as served:
        everything = OpenAI(base_url=f"{served.url}/v1", model="fake", capabilities=KNOWN - {"json_object"})
        state = plain.run(backend=everything, cache_salt="s", priority=2)
        assert state["x"] == REPLY and state.text() == f"Say{REPLY}!abc"
        assert backend.seen[0][1].top_k == 5 and backend.seen[-1][3:] == ("s", 2)
        constraint = backend.seen[-1][2]
        assert constraint is not None and constraint.kind == "regex"
        state = going_on.run(backend=everything)
        assert state.messages()[-1]["content"] == f"So: {REPLY} and {REPLY}"
        streamed = going_on.stream(backend=everything)
        assert "".join(streamed.text_iter("b")) == REPLY
        assert (
            talk.run(backend=OpenAI(base_url=f"{served.url}/v1", model="fake"))["a"] == "Zwöl"
        )  # five bytes are five tokens here
