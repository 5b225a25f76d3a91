"""/v1/embeddings by the real openai package and by hand, over the fake backend."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import openai
import pytest

from radixrt import Client
from radixrt.errors import ContextLengthExceeded, InvalidRequest
from radixrt.results import EmbeddingInfo
from radixrt.server.keys import Keys, keys_of

from .conftest import Served, serving
from .fake_backend import FakeBackend


@pytest.fixture(scope="module")
def sdk(shared_server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def client(sdk: openai.OpenAI, served: Served) -> openai.OpenAI:
    return sdk


def raw(text: bytes) -> np.ndarray:
    """What the fake backend makes of a text, before it is normalized."""
    return np.array([len(text), sum(text), text[0], text[-1]], np.float32)


def unit(vector: np.ndarray) -> np.ndarray:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def test_both_formats_of_the_sdk(client: openai.OpenAI) -> None:
    plain = client.embeddings.create(model="fake", input=["Hi", "Ho!"], encoding_format="float", user="me")
    coded = client.embeddings.create(model="fake", input=["Hi", "Ho!"])  # the SDK asks for base64
    for answer in (plain, coded):
        assert answer.object == "list" and answer.model == "fake"
        assert [(item.object, item.index) for item in answer.data] == [("embedding", 0), ("embedding", 1)]
        for item, text in zip(answer.data, (b"Hi", b"Ho!"), strict=True):
            np.testing.assert_array_equal(np.array(item.embedding, np.float32), unit(raw(text)))
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (5, 5)


@pytest.mark.parametrize("given", ["Hi", ["Hi"], [72, 105], [[72, 105]], ["Hi", [72, 105]]])
def test_forms_of_the_input(served: Served, given: Any) -> None:
    answer = served.post("/v1/embeddings", {"model": "fake", "input": given}).json()
    for item in answer["data"]:
        np.testing.assert_array_equal(np.array(item["embedding"], np.float32), unit(raw(b"Hi")))


def test_base64_is_little_endian_float32(served: Served) -> None:
    body = {"input": "Hi", "encoding_format": "base64", "normalize": False}
    [item] = served.post("/v1/embeddings", body).json()["data"]
    assert base64.b64decode(item["embedding"]) == raw(b"Hi").astype("<f4").tobytes()


def test_dimensions_are_cut_and_normalized_again(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="fake", input="Hi", dimensions=2)
    np.testing.assert_array_equal(np.array(answer.data[0].embedding, np.float32), unit(raw(b"Hi")[:2]))
    assert math.isclose(sum(x * x for x in answer.data[0].embedding), 1, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("change", "param", "code", "words"),
    [
        ({"input": ""}, "input", None, "must not be empty"),
        ({"input": []}, "input", None, "must not be empty"),
        ({"input": ["a", ""]}, "input", None, "input[1] must not be empty"),
        ({"input": [[1], []]}, "input", None, "input[1] must not be empty"),
        ({"input": None}, "input", None, "expected"),
        ({"input": 7}, "input", None, "expected"),
        ({"input": {"text": "a"}}, "input", None, "expected"),
        ({"input": [1.5]}, "input[0]", None, "expected"),
        ({"input": [-1]}, "input[0]", None, ">= 0"),
        ({"input": ["a", 7]}, "input", None, "list of either"),
        ({"input": ["a"] * 2049}, "input", None, "at most 2048 texts, but holds 2049"),
        ({"input": ["a", "x" * 700]}, "input", "context_length_exceeded", "input 1 has 700"),
        ({"dimensions": 0}, "dimensions", None, "between 1 and 4"),
        ({"dimensions": 5}, "dimensions", None, "between 1 and 4"),
        ({"dimensions": 1}, "dimensions", None, "2, 3"),
        ({"dimensions": "2"}, "dimensions", None, "expected"),
        ({"encoding_format": "int8"}, "encoding_format", None, "int8"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", None, "5"),
        ({"temperature": 1}, "temperature", "unknown_parameter", "refused"),
    ],
)
def test_what_is_wrong_is_named(
    served: Served, change: dict[str, Any], param: str, code: str | None, words: str
) -> None:
    response = served.post("/v1/embeddings", {"model": "fake", "input": "a", **change})
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert words in error["message"]


def test_input_is_required_and_the_model_must_be_the_served_one(served: Served, client: openai.OpenAI) -> None:
    assert served.post("/v1/embeddings", {}).json()["error"]["code"] == "missing_parameter"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="x")
    with pytest.raises(openai.BadRequestError, match="must not be empty"):
        client.embeddings.create(model="fake", input="")


def test_a_model_whose_vectors_may_not_be_cut(served: Served) -> None:
    served.backend.info = msgspec.structs.replace(served.backend.info, embedding=EmbeddingInfo(size=4, pooling="mean"))
    assert served.post("/v1/embeddings", {"input": "a", "dimensions": 4}).status_code == 200
    error = served.post("/v1/embeddings", {"input": "a", "dimensions": 2}).json()["error"]
    assert error["code"] == "unsupported_parameter" and "lose their meaning" in error["message"]


def test_a_model_that_makes_none(served: Served) -> None:
    served.backend.info = msgspec.structs.replace(served.backend.info, embedding=None)
    response = served.post("/v1/embeddings", {"input": "a"})
    assert response.status_code == 400 and response.json()["error"]["code"] == "embeddings_unavailable"


def test_a_long_answer_is_written_whole(served: Served) -> None:
    """More numbers than are written in the event loop."""
    answer = served.post("/v1/embeddings", {"input": ["ab"] * 2048, "encoding_format": "base64"}).json()
    assert [item["index"] for item in answer["data"]] == list(range(2048)) and answer["usage"]["total_tokens"] == 4096


def test_tokens_are_charged_to_the_key() -> None:
    backend, [key] = FakeBackend(), keys_of(["ana-key-12345"])
    with serving(backend, backend, keys=Keys([replace(key, token_budget=10)])) as server:
        headers = {"Authorization": "Bearer ana-key-12345"}
        assert server.post("/v1/embeddings", {"input": "x"}).status_code == 401
        assert server.post("/v1/embeddings", {"input": "x" * 6}, headers=headers).status_code == 200
        assert server.post("/api/embed", {"model": "fake", "input": "x" * 6}, headers=headers).status_code == 200
        refused = server.post("/v1/embeddings", {"input": "x"}, headers=headers)
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "insufficient_quota"


def test_radixrts_own_client(served: Served) -> None:
    with Client(served.url) as client:
        made = client.embed(["Hi", [72, 105]])
        assert len(made) == 2 and made[0].dtype == np.float32 and made.usage.prompt_tokens == 4
        np.testing.assert_array_equal(np.stack(made), np.stack([unit(raw(b"Hi"))] * 2))
        np.testing.assert_array_equal(client.embed("Hi", normalize=False)[0], raw(b"Hi"))
        assert len(client.embed("Hi", dimensions=3)[0]) == 3 and client.embed("x" * 700, truncate=True)
        with pytest.raises(ContextLengthExceeded):
            client.embed("x" * 700)
        with pytest.raises(InvalidRequest, match="input"):
            client.embed([])
