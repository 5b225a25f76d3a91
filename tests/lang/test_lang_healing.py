"""Where free text meets a gen: the last token may grow, the text stays; against the toy tokenizer's own ids (R20)."""

from __future__ import annotations

from typing import Any

import pytest
from fake_backend import BOS, FakeBackend, chat_ids, encode

from radixrt.errors import InvalidRequest
from radixrt.lang import ProgramState, assistant, function, gen, select, user


def run(backend: FakeBackend, before: str = "see ab", **parameters: Any) -> ProgramState:
    @function
    def program(s):
        s += before + gen("u", **parameters)

    return program.run(backend=backend)


@pytest.fixture
def backend() -> FakeBackend:
    backend = FakeBackend(lambda text: "d Hello there")
    backend.heals = {"ab": ["abc"]}
    return backend


def test_the_last_token_grows_and_the_text_stays(backend: FakeBackend) -> None:
    state = run(backend)
    assert [(ids, end) for ids, end, _ in backend.probes] == [(encode("see "), "ab")]
    assert backend.prompts == [encode("see abc")] and encode("see abc") != encode("see ab") + encode("c")
    assert state["u"] == "cd Hello there"
    assert state.text() == "see abcd Hello there"
    assert state.ids == encode("see abc") + encode("d Hello there")
    assert state.meta("u").token_ids == (*encode("abc"), *encode("d Hello there"))


def test_nothing_changes_where_the_model_stays_with_the_token(backend: FakeBackend) -> None:
    backend.heals = {}
    state, plain = run(backend), FakeBackend(backend.script)
    without = run(plain, heal=False)
    assert backend.prompts == plain.prompts == [encode("see ab")] and backend.params == plain.params
    assert len(backend.probes) == 1 and not plain.probes
    assert (state["u"], state.ids, state.usage) == (without["u"], without.ids, without.usage)


def test_heal_false_sends_the_tokenized_prompt(backend: FakeBackend) -> None:
    assert run(backend, heal=False)["u"] == "d Hello there"
    assert backend.prompts == [encode("see ab")] and not backend.probes


def test_the_marker_of_a_turn_is_never_taken_back(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += user("ab") + assistant(gen("a") + gen("b") + select("x", ["ab", "c"]) + gen("c"))
        s += user("see") + assistant("so ab" + gen("d"))

    state = program.run(backend=backend)
    assert [end for _, end, _ in backend.probes] == ["ab"]  # the assistant's own words, and nothing else
    assert backend.prompts[0] == chat_ids([("user", "ab")], generation_prompt=True)
    assert state["d"].startswith("c") and state.messages()[-1]["content"] == "so ab" + state["d"]


def test_a_bos_token_and_a_lone_token_stay() -> None:
    with_bos, without = FakeBackend(bos=True), FakeBackend()
    for backend in (with_bos, without):
        backend.heals = {"ab": ["abc"]}
        run(backend, "ab")
    assert with_bos.probes[0][0] == [BOS] and with_bos.prompts == [[BOS, *encode("abc")]]
    assert not without.probes and without.prompts == [encode("ab")]


def test_tokens_that_are_only_a_part_of_the_last_one_are_forbidden(backend: FakeBackend) -> None:
    backend.heals = {"ab": ["a", "abc"]}
    assert run(backend, logit_bias={7: 1.0}).ids == encode("see abc") + encode("d Hello there")
    assert [params.logit_bias for *_, params in backend.probes] == [{7: 1.0}, {7: 1.0, encode("a")[0]: -100.0}]
    assert backend.params[0].logit_bias == {7: 1.0}


def test_the_healed_token_counts(backend: FakeBackend) -> None:
    backend.cached = 2
    state = run(backend, max_tokens=3, min_tokens=2)
    assert (backend.params[0].max_tokens, backend.params[0].min_tokens) == (2, 1)
    assert len(state.meta("u").token_ids) == 3 and state.meta("u").finish_reason == "length"
    assert (state.usage.prompt_tokens, state.usage.completion_tokens) == (len(encode("see ")), 3)
    assert state.usage.cached_tokens == 2


def test_a_limit_of_one_token_is_kept(backend: FakeBackend) -> None:
    state = run(backend, max_tokens=1)
    assert state["u"] == "c" and state.meta("u").finish_reason == "length" and not backend.prompts
    assert state.ids == encode("see abc") and state.usage.completion_tokens == 1


@pytest.mark.parametrize("stop", ["c", "cd", "cx"])
def test_a_token_that_may_reach_into_a_stop_string_stays(backend: FakeBackend, stop: str) -> None:
    state = run(backend, stop=stop)
    assert backend.prompts == [encode("see ab")]
    assert state["u"] == "d Hello there"


def test_a_stop_string_after_a_healed_token_is_cut_out(backend: FakeBackend) -> None:
    state = run(backend, stop=" there")
    assert state["u"] == "cd Hello" and state.ids == encode("see abc") + encode("d Hello")
    assert state.text() == "see abcd Hello"


def test_a_token_that_ends_inside_a_character_stays(backend: FakeBackend) -> None:
    backend.heals = {"\xa9": ["é"]}
    assert run(backend, "see é").ids[: len(encode("see é"))] == encode("see é")
    assert not backend.probes  # the last token is a part of a character


@pytest.mark.parametrize(
    "parameters",
    [
        {"regex": "a+"}, {"type": int}, {"choices": ["a"]}, {"n": 2}, {"ignore_eos": True}, {"frequency_penalty": 0.5},
        {"presence_penalty": 0.5}, {"max_tokens": 0},
    ],
)  # fmt: skip
def test_where_it_is_not_exact_it_is_not_done_and_refused_if_asked_for(
    backend: FakeBackend, parameters: dict[str, Any]
) -> None:
    run(backend, **parameters)
    assert backend.prompts == [encode("see ab")] and not backend.probes
    with pytest.raises(InvalidRequest, match="heal=True cannot go with"):
        gen("u", heal=True, **parameters)


def test_a_stream_shows_the_rest_of_the_healed_token_first(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += "see ab" + gen("u")

    state = program.stream(backend=backend)
    assert "".join(state.text_iter("u")) == "cd Hello there"
    assert "".join(state.text_iter()) == "see abcd Hello there"
