"""Parameters are checked where they are made, by type and by range; what passes can travel."""

from __future__ import annotations

from functools import partial

import pytest

from radixrt.client_calls import GenerateCall
from radixrt.errors import InvalidRequest
from radixrt.http_calls import http_call
from radixrt.messages import FromClient, Submit, TextPrompt
from radixrt.params import Constraint, SamplingParams
from radixrt.questions import generation
from radixrt.transport import Codec


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 2.5),
        ("max_tokens", "4"),
        ("max_tokens", 2**70),
        ("max_tokens", True),
        ("min_tokens", 10**30),
        ("n", 0),
        ("n", 129),
        ("temperature", "1"),
        ("temperature", float("nan")),
        ("temperature", -0.1),
        ("top_p", 0),
        ("top_k", -2),
        ("top_k", 2**63),
        ("repetition_penalty", 1e-300),
        ("frequency_penalty", 3),
        ("seed", 2**64),
        ("stop", [""]),
        ("stop", 5),
        ("stop", ["x"] * 65),
        ("stop_token_ids", [10**30]),
        ("stop_token_ids", ["a"]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {10**30: 1.0}),
        ("logit_bias", {1: float("inf")}),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: -101}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [True]),
        ("logprobs", 21),
        ("prompt_logprobs_start", -1),
    ],
)
def test_what_is_out_of_range_or_of_a_wrong_type_is_named(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "json_schema", "value": {"type": "object"}}, r"value must be text: give json.dumps\(...\) of it"),
        ({"kind": "structural_tag", "value": {"format": {}}}, r"json.dumps\(...\)"),
        ({"kind": "regex", "value": None}, "value must be text, but is None"),
        ({"kind": "choice", "value": ["a", "b"]}, "takes its strings in choices, not in value"),
        ({"kind": "choice", "value": "a"}, "takes its strings in choices, not in value"),
        ({"kind": "choice", "choices": "ab"}, "choices must be a tuple of strings"),
        ({"kind": "choice", "choices": ("a", 1)}, "choices must be a tuple of strings"),
        ({"kind": "re", "value": "a"}, "kind must be one of json_schema, json_object, regex, choice, grammar"),
        ({"kind": ["regex"], "value": "a"}, "kind must be one of"),
    ],
)
def test_a_wrong_constraint_says_what_to_do(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        Constraint(**fields)  # type: ignore[arg-type]


def test_a_constraint_that_is_a_plain_string_says_what_to_do() -> None:
    call = GenerateCall("a", None, "[a-z]+", None, 0, None)  # type: ignore[arg-type]
    for ask in (partial(generation, stream=False), partial(http_call, timeout=None)):
        with pytest.raises(InvalidRequest, match=r"Constraint\(kind='regex', value=...\)") as caught:
            ask(call)
        assert caught.value.param == "constraint"


def test_one_stop_string_may_stand_alone() -> None:
    assert SamplingParams(stop="\n").stop == ("\n",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(max_tokens=2**31 - 1, top_k=2**31 - 1, seed=2**64 - 1, logit_bias={2**31 - 1: -100}),
        SamplingParams(seed=-(2**63), stop_token_ids=(2**31 - 1,), temperature=0, top_p=1, repetition_penalty=10),
    ],
)
def test_what_passes_can_travel(params: SamplingParams) -> None:
    codec: Codec[FromClient, FromClient] = Codec(FromClient)
    message = Submit(request_id=1, prompt=TextPrompt(text="a"), sampling=params)
    assert codec.decode(codec.encode(message)) == message
