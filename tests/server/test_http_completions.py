"""/v1/completions: forms of prompts, echo and scores, several prompts, limits."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Served
from .events import error_of, events, strict
from .fake_backend import REPLY, logprob

SIZE = len(REPLY.encode())


def test_an_answer_has_openai_shape(served: Served) -> None:
    body = served.complete("Hi", max_tokens=SIZE).json()
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    (choice,) = body["choices"]
    assert (choice["index"], choice["text"], choice["logprobs"], choice["finish_reason"]) == (0, REPLY, None, "stop")
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_the_default_limit_is_sixteen(served: Served) -> None:
    for absent in ({}, {"max_tokens": None}):
        body = served.complete(**absent).json()
        assert body["usage"]["completion_tokens"] == 16 and body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "prompt", ["", [""], ["a", ""], [], [[]], [[65], []], [65, "a"], ["a", [65]], None, 3, [[True]], [-1], [2**40]]
)
def test_what_is_no_prompt_is_a_400(served: Served, prompt: Any) -> None:
    error = error_of(served.complete(prompt), 400)
    assert error["param"].split("[")[0] == "prompt"
    assert served.backend.seen == []


def test_a_missing_prompt_is_a_400(served: Served) -> None:
    error = error_of(served.post("/v1/completions", {"max_tokens": 1}), 400)
    assert (error["param"], error["code"]) == ("prompt", "missing_parameter")


def test_several_prompts_several_samples(served: Served) -> None:
    prompts = ["one", "two"]
    body = served.complete(prompts, n=2, echo=True, max_tokens=60).json()
    texts = {choice["index"]: choice["text"] for choice in body["choices"]}
    assert texts == {0: "one" + REPLY, 1: f"one{REPLY} (1)", 2: "two" + REPLY, 3: f"two{REPLY} (1)"}
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 6
    chunks = events(served.complete(prompts, n=2, echo=True, max_tokens=60, stream=True))
    for index, text in texts.items():
        mine = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert "".join(choice["text"] for choice in mine) == text
        assert [choice["finish_reason"] for choice in mine].count("stop") == 1 and mine[-1]["finish_reason"] == "stop"


def test_ids_and_texts_in_lists(served: Served) -> None:
    for prompt in ("AB", [65, 66], ["AB"], [[65, 66]]):
        assert served.complete(prompt, echo=True, max_tokens=60).json()["choices"][0]["text"] == "AB" + REPLY


def joined_logprobs(chunks: list[dict[str, Any]]) -> dict[str, list[Any]]:
    parts = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


@pytest.mark.parametrize("prompt", ["\n- Tom owns 7", [65, 66], "ä"])
@pytest.mark.parametrize("limit", [0, 3, 60])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_echo_scores_the_prompt(served: Served, prompt: Any, limit: int, k: int) -> None:
    body = {"echo": True, "logprobs": k, "max_tokens": limit}
    answer = strict(served.complete(prompt, **body).content)
    (choice,) = answer["choices"]
    shape = choice["logprobs"]
    assert "".join(shape["tokens"]) == choice["text"]
    count = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
    assert {len(values) for values in shape.values()} == {count}
    assert shape["token_logprobs"][0] is None and shape["top_logprobs"][0] is None
    source = (prompt.encode() if isinstance(prompt, str) else bytes(prompt)) + REPLY.encode()[:limit]
    assert shape["token_logprobs"][1:] == [logprob(b) for b in source[1:count]]
    at = 0
    for token, offset in zip(shape["tokens"], shape["text_offset"], strict=True):
        assert offset == at
        at += len(token)
    for token, top, value in zip(
        shape["tokens"][1:], shape["top_logprobs"][1:], shape["token_logprobs"][1:], strict=True
    ):
        assert top[token] == value and min(top.values()) >= -9999.0
        assert len(top) <= max(k, 1)
    chunks = events(served.complete(prompt, **body, stream=True))
    assert joined_logprobs(chunks) == shape
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == choice["text"]


def test_scores_stand_before_every_sample(served: Served) -> None:
    body = {"echo": True, "logprobs": 1, "max_tokens": 60, "n": 3}
    whole = served.complete("Hi", **body).json()["choices"]
    chunks = events(served.complete("Hi", **body, stream=True))
    for choice in whole:
        mine = [{"choices": [c for c in chunk["choices"] if c["index"] == choice["index"]]} for chunk in chunks]
        assert joined_logprobs(mine) == choice["logprobs"]
        assert choice["logprobs"]["tokens"][:2] == ["H", "i"]


@pytest.mark.parametrize("bad", [-1, 21, True, "1"])
def test_logprobs_out_of_range(served: Served, bad: Any) -> None:
    assert error_of(served.complete(logprobs=bad), 400)["param"] == "logprobs"
    for good in (0, 1, 6, 20):
        assert served.complete(logprobs=good).status_code == 200


def test_what_is_not_offered_is_refused(served: Served) -> None:
    assert error_of(served.complete(suffix="end"), 400)["param"] == "suffix"
    assert error_of(served.complete(n=2, best_of=1), 400)["param"] == "best_of"
    assert error_of(served.complete(n=1, best_of=3), 400)["param"] == "best_of"
    assert served.complete(n=2, best_of=2).status_code == 200
    assert error_of(served.complete(n=0), 400)["param"] == "n"
    assert error_of(served.complete(["x"] * 513), 400)["param"] == "prompt"


def test_usage_of_a_stream_with_several_prompts(served: Served) -> None:
    *chunks, last = events(
        served.complete(["ab", "cde"], stream=True, max_tokens=4, stream_options={"include_usage": True})
    )
    assert last["choices"] == [] and last["usage"]["prompt_tokens"] == 5 and last["usage"]["completion_tokens"] == 8
    assert all(chunk["usage"] is None for chunk in chunks)


def test_one_bad_prompt_fails_the_request_and_frees_the_others(served: Served) -> None:
    error = error_of(served.complete(["SLOW", "x" * 700]), 400)
    assert error["code"] == "context_length_exceeded"
    assert served.backend.wait_active(0)
    error = error_of(served.complete(["SLOW", "x" * 700], stream=True), 400)
    assert error["code"] == "context_length_exceeded"
    assert served.backend.wait_active(0)


def test_token_ids_and_prompt_logprobs_on_request(served: Served) -> None:
    (choice,) = served.complete("Hi", return_token_ids=True, prompt_logprobs=1).json()["choices"]
    assert bytes(choice["prompt_token_ids"]) == b"Hi" and bytes(choice["token_ids"]) == REPLY.encode()[:16]
    assert choice["prompt_logprobs"][0] is None and list(choice["prompt_logprobs"][1]) == [str(ord("i"))]
    chunks = events(served.complete("Hi", return_token_ids=True, stream=True))
    assert bytes(t for c in chunks for choice in c["choices"] for t in choice["token_ids"]) == REPLY.encode()[:16]
    assert [c["choices"][0].get("prompt_token_ids") for c in chunks][:2] == [[72, 105], None]


@pytest.mark.parametrize("given", [True, False])
def test_a_prompt_of_one_token_has_one_empty_score(served: Served, given: bool) -> None:
    served.backend.scores_single = given
    body = {"echo": True, "logprobs": 1, "max_tokens": 2}
    shape = served.complete("H", **body).json()["choices"][0]["logprobs"]
    assert shape["tokens"] == ["H", "Z", "w"] and shape["token_logprobs"][0] is None
    assert joined_logprobs(events(served.complete("H", **body, stream=True))) == shape
