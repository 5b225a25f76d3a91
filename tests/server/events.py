"""Reading event streams in tests, strictly: nothing but `data: ` events, and [DONE] last."""

from __future__ import annotations

import json
from typing import Any

import httpx


def refuse_constant(name: str) -> Any:
    raise AssertionError(f"not strict JSON: {name}")


def strict(text: str | bytes) -> Any:
    return json.loads(text, parse_constant=refuse_constant)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream that ended well."""
    parts = parts_of(response)
    assert parts[-1] == "[DONE]"
    return [strict(part) for part in parts[:-1]]


def parts_of(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("\n\n")
    parts = response.text[:-2].split("\n\n")
    assert all(part.startswith("data: ") for part in parts)
    return [part.removeprefix("data: ") for part in parts]


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a refused request, in OpenAI's shape."""
    assert response.status_code == status, response.text
    error = strict(response.content)["error"]
    assert error.keys() >= {"message", "type", "param", "code"}
    assert error["message"]
    return error
