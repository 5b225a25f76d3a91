"""Parameters of both OpenAI routes: what reaches the engine, and what is refused with which name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixrt.params import Constraint
from radixrt.results import ConstraintReport

from .conftest import Served
from .events import error_of, events

SCHEMA = '{"type":"object","properties":{"b":{"type":"integer"},"a":{"const":1.0}}}'


def raw(served: Served, text: str, path: str = "/v1/chat/completions") -> Any:
    return served.http.post(path, content=text.encode(errors="surrogatepass"))


def test_every_sampling_parameter_reaches_the_engine(served: Served) -> None:
    values = {
        "n": 2, "temperature": 0, "top_p": 0.5, "seed": 7, "frequency_penalty": 0.25, "presence_penalty": -1,
        "logit_bias": {"3": 1.5}, "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2,
        "include_stop_str_in_output": True, "ignore_eos": True, "skip_special_tokens": False, "max_tokens": 9,
        "stop_token_ids": [5], "stop": ["x", "y"], "allowed_token_ids": [9, 5],
    }  # fmt: skip
    extra = {"cache_salt": "s", "priority": -3}
    for send in (served.chat, served.complete):
        assert send(**values, **extra).status_code == 200
        _, sampling, _, salt, priority = served.backend.seen[-1]
        expected = {**values, "logit_bias": {3: 1.5}, "stop": ("x", "y"), "stop_token_ids": (5,)}
        expected["allowed_token_ids"] = (9, 5)
        assert {name: getattr(sampling, name) for name in expected} == expected
        assert (salt, priority) == ("s", -3)
    assert served.chat(stop="one").status_code == 200
    assert served.backend.seen[-1][1].stop == ("one",)


def test_null_is_absent(served: Served) -> None:
    names = [
        "model", "n", "max_tokens", "temperature", "top_p", "seed", "stop", "frequency_penalty", "presence_penalty",
        "logit_bias", "stream", "stream_options", "top_k", "min_p", "repetition_penalty", "min_tokens",
        "stop_token_ids", "ignore_eos", "priority", "cache_salt", "response_format", "structured_outputs",
        "json_schema", "regex", "choice", "user", "metadata", "store", "logprobs", "return_token_ids",
    ]  # fmt: skip
    for send in (served.chat, served.complete):
        assert send().status_code == 200
        plain = served.backend.seen[-1]
        assert send(**dict.fromkeys(names)).status_code == 200
        assert served.backend.seen[-1] == plain


@pytest.mark.parametrize(
    "harmless",
    [
        {"user": "u"}, {"metadata": {"a": "b"}}, {"store": False}, {"service_tier": "auto"},
        {"prompt_cache_key": "k"}, {"prompt_cache_retention": "24h"}, {"safety_identifier": "s"},
        {"parallel_tool_calls": False}, {"modalities": ["text"]}, {"reasoning_effort": "none"},
        {"response_format": {"type": "text"}},
    ],
)  # fmt: skip
def test_harmless_parameters_are_taken(served: Served, harmless: dict[str, Any]) -> None:
    assert served.chat(**harmless).status_code == 200
    assert served.backend.seen[-1][2] is None


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        ({"n": 0}, "n"), ({"n": 129}, "n"), ({"n": 1.5}, "n"), ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"), ({"top_p": 0}, "top_p"), ({"top_p": True}, "top_p"),
        ({"min_p": 2}, "min_p"), ({"seed": 1.5}, "seed"), ({"seed": 2**70}, "seed"), ({"stop": [""]}, "stop"),
        ({"stop": ""}, "stop"), ({"stop": [None]}, "stop[0]"), ({"stop": ["x"] * 65}, "stop"),
        ({"logit_bias": {"a": 1}}, "logit_bias"), ({"logit_bias": {"0": 1, "1": "x"}}, "logit_bias.1"),
        ({"logit_bias": {"1": 101}}, "logit_bias"), ({"logit_bias": {"1": -100.5}}, "logit_bias"),
        ({"stream": "yes"}, "stream"), ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"a": 1}}, "stream_options.a"), ({"store": True}, "store"),
        ({"modalities": ["audio"]}, "modalities[0]"), ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"), ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"), ({"temprature": 1}, "temprature"), ({"best_of": 1}, "best_of"),
        ({"allowed_token_ids": []}, "allowed_token_ids"), ({"max_tokens": "5"}, "max_tokens"),
        ({"allowed_token_ids": [1, -1]}, "allowed_token_ids[1]"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"), ({"chat_template": "x"}, "chat_template"),
    ],
)  # fmt: skip
def test_bad_parameters_are_named(served: Served, bad: dict[str, Any], param: str) -> None:
    error = error_of(served.chat(**bad), 400)
    assert error["param"] == param and error["type"] == "invalid_request_error"
    assert served.backend.seen == []


def test_a_key_at_fault_is_not_taken_for_its_value(served: Served) -> None:
    error = error_of(served.chat(logit_bias={"abc": 1}), 400)
    assert error["message"] == 'logit_bias: of each key expected `int`, got `str`, but is {"abc": 1}'
    error = error_of(served.chat(logit_bias=[1]), 400)
    assert error["message"] == "logit_bias: expected `object | null`, got `array`, but is [1]"


@pytest.mark.parametrize(
    ("old", "new"),
    [("guided_json", "structured_outputs.json"), ("guided_regex", "structured_outputs.regex"),
     ("guided_choice", "structured_outputs.choice"), ("guided_grammar", "structured_outputs.grammar")],
)  # fmt: skip
def test_old_spellings_name_the_new_one(served: Served, old: str, new: str) -> None:
    error = error_of(served.chat(**{old: "x"}), 400)
    assert error["param"] == old and new in error["message"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "invalid_json"), ("{", "invalid_json"), ("[]", "invalid_json"), ("3", "invalid_json"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "invalid_json"),
        ('{"messages": [{"role": "user", "content": "\ud800"}]}', "invalid_json"),
        ('{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}", None),
        ('{"json_schema": ' + "[" * 100_000 + "]" * 100_000 + "}", "invalid_json"),
        ('{"metadata": {"a": ' * 50_000 + "1" + "}}" * 50_000, None),
        ('{"messages": [], "n": 1, "n": 2}', "duplicate_parameter"),
        ('{"messages": [], "temperature": NaN}', "invalid_json"),
        ('{"messages": []} x', "invalid_json"),
    ],
)  # fmt: skip
def test_malformed_bodies(served: Served, text: str, code: str | None) -> None:
    assert error_of(raw(served, text), 400)["code"] == code or code is None
    assert served.chat().status_code == 200


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ('{"messages": [], "n": 1, "n": 2}', "n"),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b", "role": "system"}]}',
         "messages[1].role"),
        ('{"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "text": "b"}]}]}',
         "messages[0].content[0].text"),
        ('{"prompt": "a", "json_schema": {"properties": {"x": {}, "x": {}}}}', "json_schema.properties.x"),
    ],
)  # fmt: skip
def test_what_is_given_twice_is_named_with_its_place(served: Served, text: str, param: str) -> None:
    path = "/v1/completions" if "prompt" in text else "/v1/chat/completions"
    error = error_of(served.http.post(path, content=text), 400)
    assert (error["param"], error["code"]) == (param, "duplicate_parameter") and param in error["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"", "empty"), (b" \n", "empty"), (b'\xef\xbb\xbf{"prompt": "a"}', "byte order mark"),
     ('{"prompt": "a"}'.encode("utf-16"), "UTF-16")],
)  # fmt: skip
def test_a_body_that_is_no_text_of_ours_is_told_what_it_is(served: Served, body: bytes, words: str) -> None:
    error = error_of(served.http.post("/v1/completions", content=body), 400)
    assert error["code"] == "invalid_json" and words in error["message"]


@pytest.mark.parametrize(
    ("content", "half"),
    [("\\ud800", "\\ud800"), ("\\ud83d\\ude00 \\uDE00", "\\uDE00"), ("\\\\\\ud83dx", "\\ud83d")],
)
def test_half_a_surrogate_pair_is_named(served: Served, content: str, half: str) -> None:
    text = f'{{"messages": [{{"role": "user", "content": "{content}"}}]}}'
    message = error_of(raw(served, text), 400)["message"]
    assert f"{half} at byte {text.rindex(half)} is half a surrogate pair" in message


def constraints(served: Served, **body: Any) -> Constraint | None:
    assert served.chat(**body).status_code == 200
    return served.backend.seen[-1][2]


def test_all_spellings_of_a_constraint(served: Served) -> None:
    schema = json.loads(SCHEMA)
    expected = Constraint(kind="json_schema", value=SCHEMA)
    form = {"type": "json_schema", "json_schema": {"name": "out", "strict": True, "schema": schema}}

    def compact(constraint: Constraint | None) -> Constraint:
        assert constraint is not None
        return Constraint(kind="json_schema", value=json.dumps(json.loads(constraint.value), separators=(",", ":")))

    for body in (
        {"response_format": form}, {"json_schema": schema}, {"json_schema": SCHEMA},
        {"structured_outputs": {"json": schema}}, {"structured_outputs": {"json": SCHEMA}},
    ):  # fmt: skip
        assert compact(constraints(served, **body)) == expected
    assert constraints(served, regex="a+") == Constraint(kind="regex", value="a+")
    assert constraints(served, structured_outputs={"regex": "a+"}) == Constraint(kind="regex", value="a+")
    assert constraints(served, choice=["a", "b"]) == Constraint(kind="choice", choices=("a", "b"))
    assert constraints(served, structured_outputs={"choice": ["a"]}) == Constraint(kind="choice", choices=("a",))
    assert constraints(served, structured_outputs={"grammar": "x"}) == Constraint(kind="grammar", value="x")
    assert constraints(served, response_format={"type": "json_object"}) == Constraint(kind="json_object")
    loose = constraints(served, structured_outputs={"json_object": True, "disable_any_whitespace": False})
    assert loose == Constraint(kind="json_object", any_whitespace=True)
    spaced = constraints(served, structured_outputs={"json_object": True, "whitespace_pattern": " ?"})
    assert spaced == Constraint(kind="json_object", whitespace_pattern=" ?")
    assert constraints(served, ebnf='root ::= "a"') == Constraint(kind="grammar", value='root ::= "a"')
    lax = constraints(served, json_schema=SCHEMA, lax=True, backend="llguidance")
    assert lax == Constraint(kind="json_schema", value=SCHEMA, lax=True, backend="llguidance")
    assert constraints(served, regex="a", lax=False, backend=None) == Constraint(kind="regex", value="a")


def test_all_spellings_of_a_structural_tag(served: Served) -> None:
    tag = {"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]}
    whole = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<"], "tags": []}}
    for value in (tag, whole):
        for body in (
            {"structural_tag": value}, {"structural_tag": json.dumps(value)},
            {"structured_outputs": {"structural_tag": value}},
            {"structured_outputs": {"structural_tag": json.dumps(value)}},
            {"response_format": {"type": "structural_tag", **value}},
        ):  # fmt: skip
            constraint = constraints(served, **body)
            assert constraint is not None and constraint.kind == "structural_tag"
            assert {"type": "structural_tag", **json.loads(constraint.value)} == {"type": "structural_tag", **value}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_answer_says_what_became_of_the_constraint(served: Served, path: str) -> None:
    prompt: Any = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    report = ConstraintReport("llguidance", ("/properties/a/if",))
    body = {**prompt, "json_schema": SCHEMA, "lax": True, "n": 2}
    served.backend.report = report
    expected = {"constraint": {"backend": "llguidance", "ignored": ["/properties/a/if"], "added": [], "passed": []}}
    assert served.post(path, body).json()["radixrt"] == expected
    chunks = events(served.post(path, {**body, "stream": True}))
    assert [chunk["radixrt"] for chunk in chunks if "radixrt" in chunk] == [expected]
    served.backend.report = None
    assert "radixrt" not in served.post(path, prompt).json()
    assert all("radixrt" not in chunk for chunk in events(served.post(path, {**prompt, "stream": True})))


def test_a_schema_s_text_is_kept_to_the_letter(served: Served) -> None:
    schema = '{ "properties": {"z": {"const": 1.50}, "a": {"maximum": 1e400}} }'
    body = '{"messages": [{"role": "user", "content": "x"}], "json_schema": ' + schema + "}"
    assert raw(served, body).status_code == 200
    assert served.backend.seen[-1][2] == Constraint(kind="json_schema", value=schema)


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        ({"regex": "a", "choice": ["a"]}, "choice"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": []}}, "structured_outputs.structural_tag"),
        ({"structural_tag": "{"}, "structural_tag"), ({"ebnf": "x", "regex": "a"}, "ebnf"), ({"ebnf": ""}, "ebnf"),
        ({"backend": "llguidance"}, "backend"), ({"lax": True}, "lax"), ({"regex": "a", "lax": True}, "lax"),
        ({"regex": "a", "backend": "other"}, "backend"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": False}},
         "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
         "structured_outputs.disable_any_whitespace"),
        ({"structured_outputs": {"grammar": " "}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice"),
        ({"choice": []}, "choice"), ({"choice": [""]}, "choice"), ({"choice": "ab"}, "choice"),
        ({"regex": ""}, "regex"), ({"regex": "[unclosed"}, "regex"),
        ({"json_schema": 3}, "json_schema"), ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": []}, "json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
         "response_format.json_schema.name"),
        ({"response_format": "json"}, "response_format"),
    ],
)  # fmt: skip
def test_bad_constraints_are_named(served: Served, bad: dict[str, Any], param: str) -> None:
    assert error_of(served.chat(**bad), 400)["param"] == param
    assert error_of(served.chat(**bad, stream=True), 400)["param"] == param


def test_logprobs_of_a_constrained_answer(served: Served) -> None:
    response = served.chat(choice=["good", "bad"], logprobs=True, top_logprobs=5)
    choice = response.json()["choices"][0]
    assert choice["message"]["content"] == "bad" and choice["logprobs"]["content"][0]["token"] == "b"


def test_models_are_named_or_not_found(served: Served) -> None:
    assert served.chat(model="fake").status_code == 200
    error = error_of(served.chat(model="gpt-4"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert [model["id"] for model in served.http.get("/v1/models").json()["data"]] == ["fake"]
    model = served.http.get("/v1/models/fake").json()
    assert model["object"] == "model" and model["max_model_len"] == 600
    assert error_of(served.http.get("/v1/models/a/b"), 404)["code"] == "model_not_found"
