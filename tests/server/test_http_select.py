"""/v1/select: what is sent to the engine, what comes back, what is refused; and the client's face of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixrt import Client
from radixrt.choosing import decide
from radixrt.errors import InvalidRequest
from radixrt.messages import ChatMessage, ChatPrompt, TextPrompt, TokensPrompt

from .conftest import Served
from .events import error_of
from .fake_backend import logprob

METHODS = ("token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized")


@pytest.mark.parametrize("method", METHODS)
def test_options_over_a_prompt(served: Served, method: str) -> None:
    options = ["Yes", "No", "Yes!", "🍎"]
    answer = served.post("/v1/select", {"prompt": "Is it?", "options": options, "method": method}).json()
    ids = [list(option.encode()) for option in options]
    logprobs = [[logprob(token) for token in row] for row in ids]
    bare = [[-0.5] * len(row) for row in ids] if method.startswith("unconditional") else None
    index, scores = decide(method, ids, logprobs, bare)  # type: ignore[arg-type]
    assert (answer["index"], answer["choice"]) == (index, options[index])
    assert answer["scores"] == pytest.approx(scores)
    assert answer["token_ids"] == ids and answer["logprobs"] == [pytest.approx(row) for row in logprobs]
    assert answer["unconditional"] == bare
    assert answer["usage"]["prompt_tokens"] == len("Is it?") + sum(map(len, ids))


def test_options_over_messages(served: Served) -> None:
    body = {
        "messages": [{"role": "user", "content": "Is it?"}],
        "options": ["Yes", "No"],
        "cache_salt": "s",
        "priority": 2,
        "timeout_s": 9,
        "model": "fake",
    }
    assert served.post("/v1/select", body).status_code == 200
    prompt = ChatPrompt(messages=[ChatMessage(role="user", content="Is it?")])
    assert served.backend.selected == (prompt, "", False, "s", 2, 9)
    body["messages"].append({"role": "assistant", "content": "I say "})  # type: ignore[attr-defined]
    assert served.post("/v1/select", body | {"continue_final_message": True}).status_code == 200
    sent = served.backend.selected[0]
    assert isinstance(sent, ChatPrompt) and sent.continue_final_message and not sent.add_generation_prompt


def test_token_ids_as_prompt_and_options(served: Served) -> None:
    answer = served.post("/v1/select", {"prompt": [72, 105], "options": [[65], [66, 67]], "text": "x"}).json()
    assert answer["choice"] is None and answer["token_ids"] == [[65], [66, 67]]
    sent, text, *_ = served.backend.selected
    assert isinstance(sent, TokensPrompt) and sent.ids.tolist() == [72, 105] and text == "x"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"options": []}, "options"),
        ({"options": ["a"] * 1025}, "options"),
        ({"options": ["a", ""]}, "options"),
        ({"options": ["a", [1]]}, "options"),
        ({"options": [[]]}, "options"),
        ({"options": ["a", "b", "a"]}, "options[2]"),
        ({"options": [[1, 2], [1, 2]]}, "options[1]"),
        ({"options": "ab"}, "options"),
        ({"options": [1]}, "options[0]"),
        ({"options": [[-1]]}, "options[0][0]"),
        ({"method": "best"}, "method"),
        ({"prompt": None}, "prompt"),
        ({"messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ({"prompt": None, "messages": [{"role": "clown", "content": "x"}]}, "messages[0].role"),
        ({"add_generation_prompt": True}, "add_generation_prompt"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"temperature": 1}, "temperature"),
    ],
)
def test_what_is_wrong_is_named(served: Served, change: dict[str, Any], param: str) -> None:
    body = {"prompt": "x", "options": ["a", "b"]} | change
    assert error_of(served.post("/v1/select", body), 400)["param"] == param


def test_a_model_that_is_not_served(served: Served) -> None:
    assert error_of(served.post("/v1/select", {"prompt": "x", "options": ["a"], "model": "other"}), 404)


def test_the_description_has_it(served: Served) -> None:
    schema = served.http.get("/openapi.json").json()
    body = schema["paths"]["/v1/select"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"prompt", "messages", "options", "method"} <= set(
        schema["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]["properties"]
    )


def test_the_client_speaks_it(served: Served) -> None:
    with Client(str(served.http.base_url)) as client:
        one = client.select("x", ["a", "b"], method="greedy_token_selection", text=" y", begins_turn=True, timeout=5)
        assert served.backend.selected == (TextPrompt(text="x"), " y", True, None, 0, 5)
        assert one == asyncio.run(client.aselect("x", ["a", "b"], method="greedy_token_selection", text=" y"))
        assert one == asyncio.run(served.backend.aselect("x", ["a", "b"], method="greedy_token_selection", text=" y"))
        assert client.select([1], [[1, 2], [3]]).token_ids == ((1, 2), (3,))
        with pytest.raises(InvalidRequest, match="at least one token"):
            client.select("x", ["a", ""])
