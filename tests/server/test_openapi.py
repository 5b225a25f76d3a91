"""/openapi.json is complete and true: every route with its answers and errors, and generated requests find no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings

from radixrt.server.answers import ANSWERS
from radixrt.server.app import ROUTES, create_app
from radixrt.server.keys import keys_of
from tests.waiting import HANG_S

from .conftest import Served, serving
from .fake_backend import FakeBackend

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed here")


def test_every_route_is_described() -> None:
    document = create_app(FakeBackend()).openapi()
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(route.method, route.path.replace(":path", "")) for route in ROUTES}
    assert {(route.method, route.path) for route in ROUTES} == set(ANSWERS)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["tags"] and {"400", "404", "500", "503"} <= set(operation["responses"]), path
            assert "401" not in operation["responses"] and "security" not in operation
    with_keys = create_app(FakeBackend(), keys=keys_of(["client-key-1234"])).openapi()
    assert with_keys["paths"]["/v1/models"]["get"]["security"] == [{"bearer": []}, {"x-api-key": []}]
    assert "security" not in with_keys["paths"]["/health"]["get"]


def validator(document: dict[str, Any], path: str, method: str, status: int) -> jsonschema.Draft202012Validator:
    content = document["paths"][path][method]["responses"][str(status)]["content"]["application/json"]
    return jsonschema.Draft202012Validator({**content["schema"], "components": document["components"]})


HI = [{"role": "user", "content": "Hi"}]
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "logprobs": True, "n": 2},
    "/v1/completions": {"prompt": "Hi", "logprobs": 2, "echo": True},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 40},
    "/v1/messages/count_tokens": {"messages": HI},
    "/api/chat": {"model": "fake", "messages": HI, "stream": False},
    "/api/generate": {"model": "fake", "prompt": "Hi", "stream": False},
    "/api/show": {"model": "fake"},
    "/v1/select": {"prompt": "Hi", "options": ["a", "b"]},
    "/generate": {"prompt": "Hi", "sampling": {"logprobs": 2}},
    "/score": {"prompt": "Hi", "options": [[1], [2, 3]]},
    "/encode": {"prompt": "Hi"},
    "/decode": {"ids": [72]},
    "/tokenize": {"prompt": "Hi", "return_token_strs": True},
    "/detokenize": {"tokens": [72]},
    "/apply-template": {"messages": HI},
    "/abort": {"all": True},
    "/v1/cache/pin": {"prompt": "Hi", "ttl_s": 5},
    "/v1/systemone": {
        "state": "dry",
        "questions": {"wet": {"type": "choice", "instructions": "?", "criteria": {"a": None, "b": None}}},
    },
}
"""A body of each route that is answered with 200."""


@pytest.mark.parametrize(("path", "body"), [
    *GOOD.items(),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "USETOOL"}], "tools": [
        {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]}),
])  # fmt: skip
def test_answers_and_errors_are_what_the_description_says(served: Served, path: str, body: dict[str, Any]) -> None:
    document = served.http.get("/openapi.json").json()
    answer = served.post(path, body)
    assert answer.status_code == 200, answer.text
    validator(document, path, "post", 200).validate(answer.json())
    refused = served.post(path, {**body, "nonsense": 1})
    assert refused.status_code == 400
    validator(document, path, "post", 400).validate(refused.json())


@pytest.mark.parametrize("path", [path for method, path in ANSWERS if method == "GET" and "{" not in path])
def test_what_is_looked_at_is_what_the_description_says(served: Served, path: str) -> None:
    document = served.http.get("/openapi.json").json()
    answer = served.http.get(path)
    content = document["paths"][path]["get"]["responses"]["200"]["content"]
    kind = answer.headers["content-type"].partition(";")[0]
    assert answer.status_code == 200 and kind in content
    if kind == "application/json":
        validator(document, path, "get", 200).validate(answer.json())


@pytest.mark.parametrize(
    "path", [path for (_, path), answer in ANSWERS.items() if answer.pieces and path != "/v1/programs"]
)
def test_every_piece_of_a_stream_is_what_the_description_says(served: Served, path: str) -> None:
    document = served.http.get("/openapi.json").json()
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    body = {key: value for key, value in GOOD[path].items() if key not in ("n", "logprobs", "echo", "sampling")}
    for text in ("Hi", "DEADEND"):
        told = json.loads(json.dumps(body).replace('"Hi"', json.dumps(text)))
        answer = served.post(path, {**told, "stream": True})
        kind = answer.headers["content-type"].partition(";")[0]
        schema = content[kind]["schema"]
        pieces = answer.text.splitlines()
        if kind == "text/event-stream":
            schema = schema["properties"]["data"]["anyOf"][0]
            pieces = [
                line.removeprefix("data: ") for line in pieces if line.startswith("data: ") and "[DONE]" not in line
            ]
        check = jsonschema.Draft202012Validator({**schema["contentSchema"], "components": document["components"]})
        assert len(pieces) >= 3
        for piece in pieces:
            check.validate(json.loads(piece))


CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "unsupported_method", "negative_data_rejection",
)  # fmt: skip


def test_generated_requests_find_no_fault(long: bool) -> None:
    """schemathesis over the whole description: no 5xx, no undocumented status, media type or body."""
    backend = FakeBackend()
    schemathesis.checks.load_all_checks()
    checks = [schemathesis.checks.CHECKS.get_one(name) for name in CHECKS]
    often = settings(
        max_examples=300 if long else 3, deadline=None, database=None, derandomize=not long,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    seen: dict[str, set[int]] = {}
    with serving(backend, backend) as served:
        schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
        for operation in (result.ok() for result in schema.get_all_operations()):
            statuses = seen.setdefault(operation.label, set())
            probe = prober(statuses, checks)
            for mode in schemathesis.GenerationMode:
                if mode.is_negative and not (operation.body or operation.query):
                    continue  # there is nothing to do wrong
                often(given(case=operation.as_strategy(generation_mode=mode))(probe))()
        assert backend.wait_active(0) and served.chat().status_code == 200
    assert len(seen) == len(ROUTES)
    assert sum(200 in statuses for statuses in seen.values()) > 25, seen


def prober(statuses: set[int], checks: list[Any]) -> Callable[[Any], None]:
    def probe(case: Any) -> None:
        response = case.call(timeout=HANG_S)
        statuses.add(response.status_code)
        case.validate_response(response, checks=checks)
        # One made-up field at a time in a good body gets further than a body of made-up fields.
        made = case.body if isinstance(case.body, dict) else {}
        for name in sorted(made, key=str)[:3] if case.path in GOOD else ():
            case.body = {**GOOD[case.path], name: made[name]}
            response = case.call(timeout=HANG_S)
            statuses.add(response.status_code)
            case.validate_response(response, checks=checks)

    return probe
