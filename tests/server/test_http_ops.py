"""Health, readiness, metrics, the key, CORS, limits, and the routes that look at the engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from radixrt.errors import EngineDead, StartupError
from radixrt.results import EngineStats, TierStats
from radixrt.server.app import create_app
from radixrt.server.keys import keys_of
from radixrt.server.listening import bind, url_of
from radixrt.server.metrics import HttpMetrics, exposition
from radixrt.server.serve import serve
from radixrt.server.state import Limits
from tests.waiting import HANG_S

from .conftest import Served, serving
from .events import error_of
from .fake_backend import FakeBackend
from .test_http_streams import ROUTES, send


def samples(served: Served) -> dict[str, float]:
    response = served.http.get("/metrics")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")
    return {
        sample.name + "".join(f"|{v}" for _, v in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_health_follows_the_processes(served: Served) -> None:
    assert served.http.get("/health").json() == {"status": "serving"}
    assert served.http.get("/ready").status_code == 200
    served.backend.alive = False
    for path in ("/health", "/ready"):
        response = served.http.get(path)
        assert response.status_code == 503 and response.json() == {"status": "dead"}
    for stream in (False, True):
        error = error_of(served.chat(stream=stream), 503)
        assert error["kind"] == "EngineDead"
    assert samples(served)["radixrt_up"] == 0


@contextmanager
def loading(backend: FakeBackend, opened: threading.Event, failure: Exception | None) -> Iterator[FakeBackend]:
    assert opened.wait(HANG_S)
    if failure is not None:
        raise failure
    yield backend
    backend.alive = False


def test_health_and_readiness_while_loading() -> None:
    backend, opened, ready = FakeBackend(), threading.Event(), threading.Event()
    with serving(lambda: loading(backend, opened, None), backend, on_ready=lambda info: ready.set()) as served:
        assert served.http.get("/health").json() == {"status": "loading"}
        assert served.http.get("/health").status_code == 200
        assert served.http.get("/ready").status_code == 503
        error = error_of(served.chat(), 503)
        assert error["code"] == "loading"
        assert served.http.get("/v1/models").status_code == 503
        assert samples(served)["radixrt_up"] == 0
        opened.set()
        assert ready.wait(HANG_S)
        assert served.http.get("/ready").status_code == 200
        assert served.chat().status_code == 200
    assert not backend.alive, "what the application opened it closes"


def test_an_engine_that_cannot_start_ends_the_server() -> None:
    opened = threading.Event()
    opened.set()
    with pytest.raises(StartupError, match="no such model"):
        serve(lambda: loading(FakeBackend(), opened, StartupError("no such model")), port=0)
    with pytest.raises(StartupError, match="could not start: odd"):
        serve(lambda: loading(FakeBackend(), opened, ValueError("odd")), port=0)


def test_a_dead_engine_ends_the_server() -> None:
    backend = FakeBackend()
    with pytest.raises(EngineDead):
        serve(backend, port=0, on_bound=lambda url: setattr(backend, "alive", False), dead_grace_s=0)


def test_a_port_in_use_is_found_before_the_model_loads() -> None:
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with pytest.raises(StartupError, match=f"127.0.0.1:{port}"):
        serve(lambda: pytest.fail("the model was loaded"), port=port)
    listener.close()
    with pytest.raises(StartupError, match="cannot listen"):
        bind("127.0.0.1", 70000)
    with pytest.raises(StartupError, match="cannot listen"):
        bind("no.such.host.invalid", 0)
    again = bind("127.0.0.1", port)
    assert url_of(again) == f"http://127.0.0.1:{port}"
    again.close()


def test_unknown_routes_and_methods(served: Served) -> None:
    error = error_of(served.http.get("/nothing"), 404)
    assert error["code"] == "route_not_found" and "ends in /v1" in error["message"]
    response = served.http.get("/v1/completions")
    error = error_of(response, 405)
    assert error["code"] == "method_not_allowed" and "POST" in error["message"]
    assert response.headers["allow"] == "POST"


def test_metrics_count_by_route_and_reason(served: Served) -> None:
    before = samples(served)
    served.chat()
    served.chat()
    served.chat(n=0)
    served.http.get("/nothing/1")
    served.http.request("PROPFIND", "/nothing/2")
    after = samples(served)

    def grown(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    assert grown("radixrt_http_requests_total|200|POST|/v1/chat/completions") == 2
    assert grown("radixrt_http_requests_total|400|POST|/v1/chat/completions") == 1
    assert grown("radixrt_http_requests_total|404|GET|unmatched") == 1
    assert grown("radixrt_http_requests_total|404|other|unmatched") == 1
    assert not any("nothing" in name or "PROPFIND" in name for name in after)
    assert after["radixrt_up"] == 1 and after["radixrt_requests_running"] == 0
    assert after["radixrt_requests_finished_total|stop"] == 2 and after["radixrt_requests_finished_total|abort"] == 0
    cached, queries = after["radixrt_prefix_hits_tokens_total"], after["radixrt_prefix_queries_tokens_total"]
    assert (cached, queries) == (served.backend.cached_tokens, served.backend.prompt_tokens) and cached > 0
    assert after["radixrt_prompt_tokens_total|cached"] + after["radixrt_prompt_tokens_total|computed"] == queries
    assert after["radixrt_prompt_tokens_total|restored"] == 0 and not any("_tier_" in name for name in after)
    assert after["radixrt_time_to_first_token_seconds_sum"] == 0.5


def test_metrics_of_a_tier() -> None:
    tier = TierStats(
        kind="disk", tokens=160, used_bytes=9000, capacity_bytes=10_000, stored=320, refused=16, restored=48,
        prefetches=3, prefetch_hits=2, given_up=1, errors=4,
    )  # fmt: skip
    stats = EngineStats(prompt_tokens=100, cached_tokens=60, restored_tokens=48, tier=tier)
    page = exposition(HttpMetrics(), stats)[0].decode()
    for line in (
        "radixrt_tier_tokens 160.0", "radixrt_tier_used_bytes 9000.0", "radixrt_tier_capacity_bytes 10000.0",
        "radixrt_tier_stored_tokens_total 320.0", "radixrt_tier_refused_tokens_total 16.0",
        "radixrt_tier_restored_tokens_total 48.0", "radixrt_tier_prefetches_total 3.0",
        "radixrt_tier_prefetch_hits_total 2.0", "radixrt_tier_prefetches_given_up_total 1.0",
        "radixrt_tier_errors_total 4.0", 'radixrt_prompt_tokens_total{source="cached"} 12.0',
        'radixrt_prompt_tokens_total{source="restored"} 48.0', 'radixrt_prompt_tokens_total{source="computed"} 40.0',
    ):  # fmt: skip
        assert line in page.splitlines()


def test_the_body_is_bounded() -> None:
    backend = FakeBackend()
    with serving(backend, backend, limits=Limits(body_bytes=1000)) as served:
        assert served.chat("x" * 100).status_code == 200
        assert error_of(served.chat("x" * 1000), 413)["code"] == "body_too_large"

        def chunks() -> Iterator[bytes]:
            for _ in range(100):
                yield b"x" * 100

        assert error_of(served.http.post("/v1/completions", content=chunks()), 413)["code"] == "body_too_large"
        response = served.http.post("/v1/completions", content=b"x", headers={"content-encoding": "gzip"})
        assert error_of(response, 415)


def test_a_large_body_is_read_too(served: Served) -> None:
    ids = [65] * 400_000
    assert error_of(served.complete(ids), 400)["code"] == "context_length_exceeded"
    text = json.dumps({"prompt": ids})[:-1] + ', "n": 1, "n": 1}'
    assert error_of(served.http.post("/v1/completions", content=text), 400)["code"] == "duplicate_parameter"


def test_every_route_needs_the_key() -> None:
    backend = FakeBackend()
    app_routes = [r for r in create_app(backend).routes if getattr(r, "methods", None)]
    assert len(app_routes) > 15
    with serving(backend, backend, keys=keys_of(["K"]), cors_origins=["http://app.test"]) as served:
        walked = 0
        for route in app_routes:
            path = route.path.replace("{model_id:path}", "fake")  # type: ignore[attr-defined]
            for method in route.methods:  # type: ignore[attr-defined]
                walked += 1
                for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "K"}):
                    response = served.http.request(method, path, headers={**headers, "origin": "http://app.test"})
                    if path in ("/health", "/", "/page.css", "/page.js"):
                        assert response.status_code == 200
                        continue
                    assert response.status_code == 401, path
                    assert response.headers["access-control-allow-origin"] == "http://app.test"
                    assert response.headers["www-authenticate"] == "Bearer"
                    if method != "HEAD":
                        told = response.json()["error"]  # in the shape of the route's protocol
                        assert "key is" in (told if isinstance(told, str) else told["message"])
                right = served.http.request(method, path, headers={"authorization": "Bearer K"})
                assert right.status_code != 401
        assert walked >= len(app_routes)
        assert error_of(served.http.get("/nothing"), 401)
        assert error_of(served.http.get("/health/"), 401)
        assert error_of(served.http.get("//health/metrics"), 401)
        preflight = served.http.options(
            "/v1/chat/completions",
            headers={
                "origin": "http://app.test",
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization",
            },
        )
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "http://app.test"
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        other = served.http.get("/health", headers={"origin": "http://evil.test"})
        assert "access-control-allow-origin" not in other.headers


def test_no_cors_unless_asked(served: Served) -> None:
    response = served.http.get("/health", headers={"origin": "http://app.test"})
    assert not any(name.startswith("access-control") for name in response.headers)


def test_tokenize_and_detokenize(served: Served) -> None:
    answer = served.post("/tokenize", {"prompt": "Hä"}).json()
    assert answer == {"tokens": list("Hä".encode()), "count": 3, "max_model_len": 600, "token_strs": None}
    assert served.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": "Hä"}
    chat = served.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}).json()
    assert bytes(chat["tokens"]) == b"<user>Hi\n<assistant>"
    bare = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}
    assert bytes(served.post("/tokenize", bare).json()["tokens"]) == b"<user>Hi"
    assert served.post("/tokenize", {"prompt": "ab", "return_token_strs": True}).json()["token_strs"] == ["a", "b"]
    for bad in ({}, {"prompt": "a", "messages": []}, {"messages": []}, {"prompt": "a", "add_generation_prompt": True}):
        assert error_of(served.post("/tokenize", bad), 400)["param"]
    assert error_of(served.post("/detokenize", {"tokens": [999]}), 400)["param"] == "tokens"


def test_looking_at_the_engine(served: Served) -> None:
    info = served.http.get("/server_info").json()
    assert info["served_model_name"] == "fake" and info["model"]["context_length"] == 600
    assert served.http.get("/cache").json()["nodes"][0]["text"] == "abc"
    assert served.http.post("/flush_cache").json() == {"freed_tokens": 3}


def test_the_description_shows_the_bodies(served: Served) -> None:
    schema = served.http.get("/openapi.json").json()
    for path in ("/v1/chat/completions", "/v1/completions", "/generate"):
        body = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        name = body["$ref"].rsplit("/", 1)[1]
        assert schema["components"]["schemas"][name]["properties"]


@pytest.mark.parametrize(("prompt", "param"), [([65], "options"), ([65, 300], "prompt")])
def test_ids_that_are_not_in_the_vocabulary_are_named(served: Served, prompt: list[int], param: str) -> None:
    body = {"prompt": prompt, "options": [[1], [2, 256 if param == "options" else 3]]}
    assert error_of(served.post("/score", body), 400)["param"] == param


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_can_be_aborted(served: Served, stream: bool) -> None:
    word = "SLOW" if stream else "WAIT"
    connection = send(served, "/v1/chat/completions", {**ROUTES["/v1/chat/completions"](word), "stream": stream})
    assert served.backend.wait_active(1)
    received = connection.recv(65536) if stream else b""  # the stream has begun
    assert served.post("/abort", {"all": True}).json() == {"aborted": 1}
    received += b"".join(iter(lambda: connection.recv(65536), b"")) if stream else connection.recv(65536)
    connection.close()
    assert served.backend.wait_active(0) and served.backend.aborted == 1
    assert received.startswith(b"HTTP/1.1 200" if stream else b"HTTP/1.1 499") and b'"code":"aborted"' in received


def test_a_stream_is_aborted_by_the_id_in_its_headers_and_by_nobody_else() -> None:
    backend = FakeBackend()
    ana, bob = ({"authorization": f"Bearer {name}-key-1234"} for name in ("ana", "bob"))
    with serving(backend, backend, keys=keys_of(["ana-key-1234", "bob-key-1234"])) as served:
        body = {"messages": [{"role": "user", "content": "SLOW"}], "stream": True}
        with served.http.stream("POST", "/v1/chat/completions", json=body, headers=ana) as response:
            name = response.headers["x-request-id"]
            assert error_of(served.post("/abort", {"request_id": name}, headers=bob), 404)
            assert served.post("/abort", {"all": True}, headers=bob).json() == {"aborted": 0}
            assert backend.active == 1
            assert served.post("/abort", {"request_id": name}, headers=ana).json() == {"aborted": 1}
            assert b'"aborted"' in response.read()
        assert error_of(served.post("/abort", {"request_id": name}, headers=ana), 404)
        assert error_of(served.post("/abort", {}, headers=ana), 400)


def test_the_template_is_shown(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert served.post("/apply-template", body).json() == {"prompt": "<user>Hi\n<assistant>"}
    open_end = {**body, "add_generation_prompt": False}
    assert served.post("/apply-template", open_end).json() == {"prompt": "<user>Hi"}
    assert error_of(served.post("/apply-template", {"messages": []}), 400)["param"] == "messages"


def test_head_is_get_without_a_body(served: Served) -> None:
    for path in ("/health", "/ready", "/v1/models"):
        response = served.http.head(path)
        assert response.status_code == 200 and not response.content
