"""Arguments of gen and select are checked where they are written, and the caller's are never changed."""

from __future__ import annotations

from typing import Any

import pytest
from fake_backend import FakeBackend

from radixrt.errors import InvalidRequest
from radixrt.lang import function, gen, select, user
from radixrt.params import SamplingParams


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, None),
        ({"n": 0}, "n"),
        ({"n": True}, None),
        ({"stop": [""]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop_regex": "("}, "stop_regex"),
        ({"stop_regex": [5]}, "stop_regex"),
        ({"stop_regex": ""}, "stop_regex"),
        ({"stop_regex": ["a"] * 9}, "stop_regex"),
        ({"stop_regex": "a", "heal": True}, "heal"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {"a": 1.0}}, None),
        ({"stop_token_ids": ["a"]}, None),
        ({"regex": "a", "choices": ["a"]}, "regex"),
        ({"type": int, "json_schema": {}}, "json_schema"),
        ({"regex": ""}, "regex"),
        ({"regex": 5}, "regex"),
        ({"grammar": 5}, "grammar"),
        ({"choices": []}, "choice"),
        ({"choices": "ab"}, "choices"),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": 5}, "json_schema"),
        ({"json_schema": {"a": object()}}, "json_schema"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"name": ""}, "name"),
        ({"name": 5}, "name"),
    ],
)
def test_gen_refuses(arguments: dict[str, Any], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as raised:
        gen(**arguments)
    assert raised.value.param == param


@pytest.mark.parametrize("name", ["image", "dtype", "return_logprob"])
def test_what_gen_does_not_know_is_not_ignored(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        gen("x", **{name: None})


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({}, "choices"),
        ({"choices": []}, "choices"),
        ({"choices": ["a", ""]}, "choices"),
        ({"choices": ["a", "a"]}, "choices[1]"),
        ({"choices": ["a", 5]}, "choices"),
        ({"choices": "ab"}, "choices"),
        ({"choices": [str(i) for i in range(2000)]}, "choices"),
        ({"choices": ["a"], "choices_method": "best"}, "choices_method"),
    ],
)
def test_select_refuses(arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        select("x", **arguments)
    assert raised.value.param == param


def test_choices_of_numbers_are_told_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match=r"write str\(\.\.\.\)"):
        select("x", [1, 2])  # type: ignore[list-item]


def test_a_state_is_not_iterated_by_mistake(backend: FakeBackend) -> None:
    @function
    def program(s):  # type: ignore[no-untyped-def]
        s += "a" + gen("x", max_tokens=2)

    state = program.stream(backend=backend)
    with pytest.raises(TypeError, match=r"\.text_iter\(\)"):
        iter(state)
    assert "".join(state.text_iter()) == state.text()


def test_all_sampling_parameters_arrive(backend: FakeBackend) -> None:
    given: dict[str, Any] = {
        "max_tokens": 7, "min_tokens": 2, "n": 3, "stop": ["a", "b"], "stop_token_ids": [4], "temperature": 0.5,
        "top_p": 0.9, "top_k": 8, "min_p": 0.1, "frequency_penalty": 0.3, "presence_penalty": -0.2,
        "repetition_penalty": 1.1, "ignore_eos": True, "seed": 11, "logit_bias": {5: -3.0}, "logprobs": 2,
    }  # fmt: skip

    @function
    def program(s):
        s += "Q" + gen("x", **given)

    program.run(backend=backend)
    expected = SamplingParams(**{**given, "stop": ("a", "b"), "stop_token_ids": (4,)})
    assert backend.params == [expected]


def test_defaults_are_those_of_sampling_params() -> None:
    assert gen("x").sampling == SamplingParams()


def test_the_callers_values_are_neither_changed_nor_kept(backend: FakeBackend) -> None:
    stop, bias, choices = ["a"], {1: 1.0}, ["x", "y"]
    expr = gen("x", stop=stop, logit_bias=bias) + gen("y", choices=choices)
    stop.append("b")
    bias[2] = 2.0
    choices.clear()

    @function
    def program(s):
        s += "Q" + expr

    assert program.run(backend=backend)["y"] == "x"
    assert backend.params[0].stop == ("a",) and backend.params[0].logit_bias == {1: 1.0}
    assert (stop, bias, choices) == (["a", "b"], {1: 1.0, 2: 2.0}, [])


def test_expressions_are_values() -> None:
    assert ("a" + gen("x")) + "b" == "a" + (gen("x") + "b")
    assert user("a") == user("a") != user("b")
    with pytest.raises(InvalidRequest, match="str"):
        "a" + gen("x") + 5  # type: ignore[operator]
