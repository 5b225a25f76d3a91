"""Tools over the small model: forced and free calls, both modes, history as cached prefix (R29, R30, R32, R37)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from .events import error_of, events
from .live import Live
from .test_http_tools import join

CITIES = ["Orléans", "København", "東京"]


def tool(name: str, parameters: dict[str, Any] | None, description: str = "") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


WEATHER = tool("get_weather", schema(city={"enum": CITIES}), "Current weather of a city")
NOW = tool("now", {"type": "object", "properties": {}}, "The current time")
BOOK = tool("book", schema(room=schema(floor={"type": "integer"}, name={"type": "string", "maxLength": 12})))
TOOLS = [NOW, BOOK, WEATHER]
SCHEMAS = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}


def both(live: Live, text: str, **body: Any) -> tuple[dict[str, Any], str]:
    answer = live.chat(text, temperature=0, **body)
    assert answer.status_code == 200, answer.text
    whole = answer.json()["choices"][0]
    message, reason = join(events(live.chat(text, temperature=0, stream=True, **body)))
    strip = [[c["function"] for c in m.get("tool_calls", ())] for m in (message, whole["message"])]
    assert strip[0] == strip[1] and message["content"] == whole["message"]["content"]
    assert reason == whole["finish_reason"]
    return whole["message"], reason


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_a_named_function_is_called_with_valid_arguments(live: Live, name: str) -> None:
    choice = {"type": "function", "function": {"name": name}}
    message, reason = both(live, "Hello there", tools=TOOLS, tool_choice=choice, max_tokens=80)
    (call,) = message["tool_calls"]
    assert reason == "tool_calls" and call["function"]["name"] == name and message["content"] is None
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[name])
    assert name != "now" or call["function"]["arguments"] == "{}"
    assert "\\u" not in call["function"]["arguments"]


@pytest.mark.parametrize("text", ["Hello there", "What time is it, and book the room.", "Quel temps fait-il ?"])
def test_a_required_call(live: Live, text: str) -> None:
    message, reason = both(live, text, tools=TOOLS, tool_choice="required", max_tokens=120)
    assert reason == "tool_calls"
    for call in message["tool_calls"]:
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_some_of_the_tools(live: Live, mode: str) -> None:
    """The model would like another tool, and may not have it; what it is told stays the same."""
    some = {"mode": mode, "tools": [{"type": "function", "function": {"name": "now"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": some}
    before = live.chat("What is the weather in Orléans?", tools=TOOLS, max_tokens=1).json()["usage"]
    message, reason = both(live, "What is the weather in Orléans?", tools=TOOLS, tool_choice=choice, max_tokens=60)
    assert {call["function"]["name"] for call in message.get("tool_calls", ())} <= {"now"}
    assert reason == "tool_calls" or mode == "auto"
    after = live.chat("What is the weather in Orléans?", tools=TOOLS, tool_choice=choice, max_tokens=1).json()["usage"]
    assert after["prompt_tokens_details"]["cached_tokens"] >= before["prompt_tokens"] - 1


def test_none_and_auto(live: Live) -> None:
    message, reason = both(live, "Hello there", tools=TOOLS, tool_choice="none", max_tokens=40)
    assert "tool_calls" not in message and message["content"]
    assert message["content"] == live.answer("Hello there", temperature=0, max_tokens=40), "tools are not shown"
    message, reason = both(live, "What is the weather in Orléans? Use a tool.", tools=[WEATHER], max_tokens=80)
    for call in message.get("tool_calls", ()):
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS["get_weather"])
    assert (reason == "tool_calls") == bool(message.get("tool_calls")) or reason == "length"


def test_a_schema_that_cannot_be_enforced_is_named(live: Live) -> None:
    bad = tool("f", schema(a={"type": "string", "pattern": "(?=x)y"}))
    error = error_of(live.chat("Hi", tools=[NOW, bad], tool_choice="required"), 400)
    assert (error["param"], error["pointer"]) == ("tools[1].function.parameters", "/properties/a/pattern")
    assert error_of(live.chat("Hi", tools=[NOW, bad], stream=True), 400)["param"] == "tools[1].function.parameters"


def test_a_conversation_with_calls_stays_a_cached_prefix(live: Live) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Quel temps fait-il à Orléans ?"}]
    body: dict[str, Any] = {"tools": TOOLS, "temperature": 0, "max_tokens": 120}
    named = {"type": "function", "function": {"name": "get_weather"}}
    first = live.post(
        "/v1/chat/completions", messages=messages, tool_choice=named, return_token_ids=True, **body
    ).json()
    choice = first["choices"][0]
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["city"] in CITIES
    messages.append(choice["message"])
    messages.append({"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "12 °C"})
    again = live.post("/v1/chat/completions", messages=messages, return_token_ids=True, **body).json()
    generated = [*first["prompt_token_ids"], *choice["token_ids"]]
    assert again["prompt_token_ids"][: len(generated)] == generated
    # What the schema left no choice about at the end took no step: it is computed with what follows.
    rest = generated[again["usage"]["prompt_tokens_details"]["cached_tokens"] :]
    certain = live.post("/detokenize", tokens=rest[:-1]).json()["prompt"]
    city = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["city"]
    assert certain in f'{city}"}}}}\n</tool_call>', "only what follows the city's first letters"
    shuffled = [json.loads(json.dumps(t, sort_keys=True)) for t in TOOLS]
    other = live.post("/tokenize", messages=messages[:1], tools=shuffled, add_generation_prompt=True).json()
    assert first["prompt_token_ids"][: other["count"]] == other["tokens"], "the call's beginning follows the prompt"


def test_the_sdk_s_loop(live: Live) -> None:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": "What time is it?"}]
        tools: Any = TOOLS
        named: Any = {"type": "function", "function": {"name": "now"}}
        asked: Any = {"model": "smollm2-135m", "tools": tools, "temperature": 0, "max_tokens": 60}
        message = client.chat.completions.create(messages=messages, tool_choice=named, **asked).choices[0].message
        assert message.tool_calls is not None and message.tool_calls[0].function.name == "now"
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12:30"}]
        with client.chat.completions.stream(messages=messages, tool_choice="none", **asked) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.content


def test_the_readmes_recipe(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text().split("## Tools\n")[1]
    recipe = text.split("```python\n")[2].split("```")[0].replace("http://127.0.0.1:8000", live.url)
    names: dict[str, Any] = {}
    exec(compile(recipe, "README.md", "exec", dont_inherit=True), names)  # noqa: S102 - our own words
    names["client"].close()
    assert [json.loads(c.function.arguments).keys() for c in names["message"].tool_calls] == [{"dish"}]
    assert names["messages"][-1]["content"].startswith("4 euros for") and capsys.readouterr().out.strip()
