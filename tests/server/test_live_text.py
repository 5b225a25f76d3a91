"""The small model over HTTP: stops, characters, samples, log-probabilities, determinism (R22-R28, R40, R42)."""

from __future__ import annotations

import itertools
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from .events import error_of, events, strict
from .live import Live

STORY = "Once upon a time"


def streamed(live: Live, path: str, body: dict[str, object]) -> str:
    chunks = events(live.http.post(path, json={**body, "stream": True}))
    return "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content", "")
        for chunk in chunks
        for choice in chunk["choices"]
    )


def test_only_allowed_tokens_are_written(live: Live) -> None:
    """vLLM's parameter, on both routes and in both modes; not beside a constraint or tools that may be called."""
    digits = [live.post("/tokenize", prompt=digit).json()["tokens"][0] for digit in "0123456789"]
    body = {"prompt": STORY, "allowed_token_ids": digits, "temperature": 0, "max_tokens": 6}
    text = live.text(**body)
    assert re.fullmatch("[0-9]{6}", text) and streamed(live, "/v1/completions", body) == text
    assert re.fullmatch("[0-9]{6}", live.answer(STORY, allowed_token_ids=digits, max_tokens=6, temperature=2.0))
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    for more in ({"regex": "a"}, tools):
        assert error_of(live.chat(STORY, allowed_token_ids=digits, **more), 400)["param"] == "allowed_token_ids"


def test_characters_are_never_torn(live: Live) -> None:
    for limit in (80, 8):
        body = {
            "prompt": "Echo: ", "regex": "(👩‍🚀|ď|漢字|🇨🇭){6}", "temperature": 1.0, "seed": 3, "max_tokens": limit,
        }  # fmt: skip
        whole = live.text(**body)  # type: ignore[arg-type]
        assert streamed(live, "/v1/completions", body) == whole
        if limit == 80:
            assert re.fullmatch("(👩‍🚀|ď|漢字|🇨🇭){6}", whole)
        answer = strict(live.complete(**body, logprobs=1).content)["choices"][0]  # type: ignore[arg-type]
        assert "".join(answer["logprobs"]["tokens"]) == answer["text"] == whole
    del body["prompt"]
    chat = {**body, "logprobs": True, "messages": [{"role": "user", "content": "Echo"}]}
    choice = strict(live.post("/v1/chat/completions", **chat).content)["choices"][0]
    pieces = [bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]]
    assert len(pieces) == limit and b"".join(pieces).decode(errors="replace") == choice["message"]["content"]
    deltas = [c for chunk in events(live.post("/v1/chat/completions", stream=True, **chat)) for c in chunk["choices"]]
    texts = [delta["delta"].get("content", "") for delta in deltas]
    assert "".join(texts) == choice["message"]["content"] and not any("\ufffd" in text for text in texts[:-2])
    shown = [entry["bytes"] for delta in deltas if delta["logprobs"] for entry in delta["logprobs"]["content"]]
    assert [bytes(piece) for piece in shown] == pieces


def test_stop_strings_at_any_place_in_tokens(live: Live) -> None:
    body = {"prompt": STORY, "temperature": 0, "max_tokens": 40}
    free = live.complete(**body, logprobs=0).json()["choices"][0]  # type: ignore[arg-type]
    text, offsets = free["text"], free["logprobs"]["text_offset"]
    long = next(i for i, t in enumerate(free["logprobs"]["tokens"]) if len(t) > 3 and i > 4)
    stops = {
        "crosses three tokens": text[offsets[4] : offsets[8]][1:-1],
        "inside one token": text[offsets[long] + 1 : offsets[long + 1] - 1],
        "one character": text[len(text) // 2],
    }
    for what, stop in stops.items():
        assert stop, what
        answer = live.complete(**body, stop=[stop]).json()  # type: ignore[arg-type]
        choice = answer["choices"][0]
        cut = text.index(stop)
        assert choice["text"] == text[:cut], what
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        needed = sum(offset < cut + len(stop) for offset in offsets)
        assert needed <= answer["usage"]["completion_tokens"] <= needed + 1
        assert streamed(live, "/v1/completions", {**body, "stop": [stop]}) == text[:cut]
        kept = live.text(**body, stop=[stop], include_stop_str_in_output=True)  # type: ignore[arg-type]
        assert kept == text[: cut + len(stop)]


def test_the_earliest_stop_wins_in_any_order(live: Live) -> None:
    free = live.answer("Say hi.", temperature=0, max_tokens=100)
    assert len(free) > 8
    stops = [free[6:8], free[3:5], "@@never"]
    cut = min(free.index(stop) for stop in stops[:2])
    for order in itertools.permutations(stops):
        assert live.answer("Say hi.", temperature=0, max_tokens=100, stop=list(order)) == free[:cut]


def test_the_end_token_still_ends_an_answer_with_stops(live: Live) -> None:
    plain = live.chat("Say hi.", temperature=0, max_tokens=200).json()
    with_stops = live.chat("Say hi.", temperature=0, max_tokens=200, stop=["@@never", "\u2603"]).json()
    assert plain["choices"] == with_stops["choices"]
    assert plain["choices"][0]["finish_reason"] == "stop"


def test_logprobs_of_a_greedy_answer(live: Live) -> None:
    body = strict(live.chat("Count to three.", logprobs=True, top_logprobs=5, max_tokens=6, temperature=0).content)
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == body["usage"]["completion_tokens"] == 6
    assert bytes(b for entry in content for b in entry["bytes"]).decode() == body["choices"][0]["message"]["content"]
    for entry in content:
        assert len(entry["top_logprobs"]) == 5
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"] <= 0
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)


def test_logprobs_of_a_choice(live: Live) -> None:
    question = "Good or bad? 'I lost my keys.'"
    body = {"choice": ["good", "bad"], "logprobs": True, "top_logprobs": 5, "temperature": 0}
    response = live.chat(question, **body)
    choice = strict(response.content)["choices"][0]
    assert choice["message"]["content"] in ("good", "bad") and choice["finish_reason"] == "stop"
    assert all(-9999 <= entry["logprob"] <= 0 for entry in choice["logprobs"]["content"])
    chunks = events(live.chat(question, **body, stream=True))
    entries = [
        entry for c in chunks for x in c["choices"] if x["logprobs"] is not None for entry in x["logprobs"]["content"]
    ]
    assert [entry["token"] for entry in entries] == [entry["token"] for entry in choice["logprobs"]["content"]]


def test_echo_scores_the_prompt_alike_hot_and_cold(live: Live) -> None:
    prompt = "\n- Tom owns 7"
    ids = live.post("/tokenize", prompt=prompt).json()["tokens"]
    live.http.post("/flush_cache")
    cold = strict(live.complete(prompt, echo=True, logprobs=1, max_tokens=0, temperature=0).content)
    shape = cold["choices"][0]["logprobs"]
    assert cold["choices"][0]["text"] == prompt == "".join(shape["tokens"])
    assert len(shape["tokens"]) == len(ids) == cold["usage"]["prompt_tokens"]
    assert cold["usage"]["completion_tokens"] == 0
    assert shape["token_logprobs"][0] is None and all(value <= 0 for value in shape["token_logprobs"][1:])
    at = 0
    for token, offset in zip(shape["tokens"], shape["text_offset"], strict=True):
        assert offset == at
        at += len(token)
    for again in (prompt, ids):
        hot = strict(live.complete(again, echo=True, logprobs=1, max_tokens=3, temperature=0).content)
        values = hot["choices"][0]["logprobs"]["token_logprobs"]
        assert len(values) == len(ids) + 3 and hot["choices"][0]["text"].startswith(prompt)
        assert values[1 : len(ids)] == pytest.approx(shape["token_logprobs"][1:], abs=1e-3)
    chunks = events(live.complete(prompt, echo=True, logprobs=1, max_tokens=3, temperature=0, stream=True))
    tokens = [t for chunk in chunks for choice in chunk["choices"] for t in choice["logprobs"]["tokens"]]
    assert "".join(tokens) == hot["choices"][0]["text"]


def test_samples_differ_and_are_reproducible(live: Live) -> None:
    body = {"n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 8}
    first, second = (live.chat("Name a bird.", **body).json() for _ in range(2))
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    assert texts == [choice["message"]["content"] for choice in second["choices"]]
    assert len(set(texts)) > 1
    single = live.chat("Name a bird.", **{**body, "n": 1}).json()
    assert first["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]
    chunks = events(live.chat("Name a bird.", **body, stream=True))
    for index, text in enumerate(texts):
        parts = [c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(parts) == text


def test_greedy_text_does_not_depend_on_the_batch(live: Live) -> None:
    prompts = [STORY, "The sea is", "1, 2, 3,", "def add(a, b):", "Dear Sir,", "A" * 200, "List: a b c\n" * 20, "Why?"]
    body = {"temperature": 0, "max_tokens": 12}
    alone = [live.text(prompt, **body) for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda prompt: live.text(prompt, **body), prompts)) == alone
    together = live.complete(prompts, **body).json()["choices"]
    assert [choice["text"] for choice in together] == alone


def test_prompts_that_are_empty(live: Live) -> None:
    with live.http.stream(
        "POST", "/v1/completions", json={"prompt": STORY, "max_tokens": 20, "stream": True}
    ) as running:
        lines = (line for line in running.iter_lines() if line)
        assert next(lines).startswith("data: ")
        refused(live)
        assert list(lines)[-1] == "data: [DONE]", "who was running goes on"


def refused(live: Live) -> None:
    assert error_of(live.post("/v1/chat/completions", messages=[]), 400)["param"] == "messages"
    assert error_of(live.chat("Hi", n=0, stream=True), 400)["param"] == "n"
    for prompt in ("", [""], [], [[]]):
        assert error_of(live.complete(prompt, max_tokens=4), 400)["param"] == "prompt"
    assert error_of(live.post("/v1/completions", max_tokens=4), 400)["param"] == "prompt"
    assert live.text(STORY, max_tokens=4)
