"""Programs on the real model, against the same work done by hand with the engine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel, Field

from radixrt.lang import ProgramError, ProgramState, assistant, function, gen, select, system, user
from radixrt.messages import ChatMessage, ChatPrompt, TextPrompt
from radixrt.params import SamplingParams
from tests.waiting import until

if TYPE_CHECKING:
    from radixrt import Engine

METHODS = ("token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized")
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


def text_ids(engine: Engine, text: str) -> list[int]:
    return list(engine.tokenize(TextPrompt(text=text, add_special_tokens=False)).ids)


def chat_ids(engine: Engine, messages: list[dict[str, str]], *, generation_prompt: bool) -> list[int]:
    prompt = ChatPrompt(messages=[ChatMessage(**m) for m in messages], add_generation_prompt=generation_prompt)
    return list(engine.tokenize(prompt).ids)


def score(engine: Engine, prompt: list[int], option: list[int]) -> list[float]:
    """Log-probabilities of the option's tokens from one plain request, made by hand."""
    result = engine.generate([*prompt, *option], SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert result.prompt_logprobs is not None
    values = [entry.logprob for entry in result.prompt_logprobs[len(prompt) :]]
    assert [entry.token_id for entry in result.prompt_logprobs[len(prompt) :]] == option
    return [value for value in values if value is not None]


@function
def talk(s, turns):
    s += system("You are a terse clerk.")
    for i, turn in enumerate(turns):
        s += user(turn)
        s += assistant(gen(f"answer{i}", **GREEDY))


def test_a_program_and_the_same_chat_have_the_same_ids_and_answers(engine: Engine) -> None:
    turns = ["What is the capital of France?", "And of Italy?", "Say it in French."]
    state = talk.run(turns=turns, backend=engine)
    messages: list[dict[str, str]] = [{"role": "system", "content": "You are a terse clerk."}]
    for i, turn in enumerate(turns):
        messages.append({"role": "user", "content": turn})
        answer = engine.generate(messages, SamplingParams(**GREEDY))
        assert state[f"answer{i}"] == answer.text
        assert state.meta(f"answer{i}").token_ids == answer.token_ids
        messages.append({"role": "assistant", "content": answer.text})
    assert state.messages() == messages
    assert state.ids == chat_ids(engine, messages, generation_prompt=False)


def test_constant_turns_have_the_chats_ids(engine: Engine) -> None:
    messages = [
        {"role": "system", "content": "Sort words.\n\nIn two kinds."},
        {"role": "user", "content": " oak <|im_end|> 12"},
        {"role": "assistant", "content": "tree"},
        {"role": "user", "content": "perch"},
    ]

    @function
    def program(s):
        s += system("Sort words." + "\n\nIn two kinds.") + user(" oak <|im_end|> " + "12") + assistant("tree")
        s += user("perch") + assistant(select("kind", ["tree", "fish"]))

    state = program.run(backend=engine)
    opened = chat_ids(engine, messages, generation_prompt=True)
    assert state.ids[: len(opened)] == opened
    closed = [*messages, {"role": "assistant", "content": state["kind"]}]
    assert state.ids == chat_ids(engine, closed, generation_prompt=False)


def test_plain_text_by_hand(engine: Engine) -> None:
    @function
    def program(s):
        s += "The capital of " + "France is" + gen("a", **GREEDY) + "\n\nThe capital of Italy is" + gen("b", **GREEDY)

    state = program.run(backend=engine)
    ids = list(engine.tokenize("The capital of France is").ids)
    first = engine.generate(ids, SamplingParams(**GREEDY))
    ids += [*first.token_ids, *text_ids(engine, "\n\nThe capital of Italy is")]
    second = engine.generate(ids, SamplingParams(**GREEDY))
    assert (state["a"], state["b"]) == (first.text, second.text)
    assert state.ids == [*ids, *second.token_ids]
    assert state.text() == f"The capital of France is{first.text}\n\nThe capital of Italy is{second.text}"


@pytest.mark.parametrize("method", METHODS)
def test_select_scores_are_the_models_log_probabilities(engine: Engine, method: str) -> None:
    choices = [" Paris", " Parisian", " London", " the city", " 🙂", "\nRome", " Lon"]

    @function
    def program(s):
        s += "The capital of France is" + select("x", choices, choices_method=method)

    state = program.run(backend=engine)
    meta = state.meta("x")
    prompt = list(engine.tokenize("The capital of France is").ids)
    options = [text_ids(engine, choice) for choice in choices]
    assert [list(ids) for ids in meta.token_ids] == options
    truth = [score(engine, prompt, option) for option in options]
    for got, expected in zip(meta.logprobs, truth, strict=True):
        assert list(got) == pytest.approx(expected, abs=1e-4)
    expected_scores = [math.fsum(row) / len(row) for row in truth]
    if method == "unconditional_likelihood_normalized":
        begin = list(engine.tokenize("").ids) or [engine.info.eos_token_ids[0]]
        bare = [score(engine, begin, option) for option in options]
        expected_scores = [
            math.fsum(a - b for a, b in zip(*rows, strict=True)) / len(rows[0])
            for rows in zip(truth, bare, strict=True)
        ]
    assert list(meta.scores) == pytest.approx(expected_scores, abs=1e-4)
    if method != "greedy_token_selection":
        assert meta.index == max(range(len(choices)), key=expected_scores.__getitem__)
    assert state.ids == prompt + options[meta.index]


def test_select_at_the_start_of_a_turn(engine: Engine) -> None:
    """The situation R19: spaces at the boundary, and agreement with greedy decoding."""
    words = ["Hello", "Bye", "@@qz"]

    @function
    def greet(s, before, choices, method):
        s += user("Greet me") + assistant(before + select("x", choices, choices_method=method))

    @function
    def free(s):
        s += user("Greet me") + assistant(gen("x", temperature=0, max_tokens=3))

    for method in METHODS:
        a = greet.run(before="", choices=words, method=method, backend=engine)
        b = greet.run(before=" ", choices=words, method=method, backend=engine)
        c = greet.run(before="", choices=[" " + word for word in words], method=method, backend=engine)
        assert "@@qz" not in a["x"] + b["x"] + c["x"]
        assert a["x"] == b["x"] == c["x"].strip()
        prompt = chat_ids(engine, [{"role": "user", "content": "Greet me"}], generation_prompt=True)
        for state, text in ((a, a["x"]), (b, " " + b["x"]), (c, c["x"])):
            assert state.ids[: len(prompt)] == prompt and state.messages()[-1]["content"] == text
            meta = state.meta("x")
            for ids, logprobs in zip(meta.token_ids, meta.logprobs, strict=True):
                assert list(logprobs) == pytest.approx(score(engine, prompt, list(ids)), abs=1e-4)
        assert a.usage.prompt_tokens > len(prompt)
    greedy = free.run(backend=engine)["x"]
    begun = [word for word in words if greedy.startswith(word)]
    for word in begun:
        assert greet.run(before="", choices=words, method="greedy_token_selection", backend=engine)["x"] == word


def test_greedy_select_is_what_greedy_decoding_says(engine: Engine) -> None:
    prompt = "Q: What is the capital of France?\nA:"
    greedy = engine.generate(prompt, SamplingParams(temperature=0, max_tokens=2))
    assert greedy.text.strip()

    @function
    def program(s):
        s += prompt + select("x", [" Berlin", " @@qz", greedy.text], choices_method="greedy_token_selection")

    assert program.run(backend=engine)["x"] == greedy.text


class Pear(BaseModel):
    colour: Literal["green", "yellow"]
    grams: int = Field(ge=1, le=999)


def test_typed_values(engine: Engine) -> None:
    @function
    def program(s):
        s += "A pear as JSON: " + gen("pear", type=Pear, temperature=0, max_tokens=60)
        s += "\nIts price in cents: " + gen("price", type=int, temperature=0, max_tokens=30)
        s += "\nRipe? " + gen("ripe", type=bool, temperature=0)
        s += "\nKind: " + gen("kind", choices=["William", "Conference"], temperature=0)
        s += "\nCode: " + gen("code", regex="[A-Z]{3}-[0-9]{2}", temperature=1.0, seed=4)

    state = program.run(backend=engine)
    assert isinstance(state["pear"], Pear) and isinstance(state["price"], int) and isinstance(state["ripe"], bool)
    assert state["kind"] in ("William", "Conference")
    assert state["code"][3] == "-" and state.get("code", str) == state["code"]
    assert Pear.model_validate_json(state.get("pear", str)) == state["pear"]


def test_cut_json_is_said_to_be_cut(engine: Engine) -> None:
    @function
    def program(s):
        s += "A pear as JSON: " + gen("pear", type=Pear, temperature=0, max_tokens=3)

    state = program.run(backend=engine)
    with pytest.raises(ProgramError, match="truncated by max_tokens"):
        state["pear"]
    assert state.get("pear", str).startswith("{")


def test_forks_share_the_prefix(engine: Engine) -> None:
    @function
    def program(s, topic):
        s += f"Here are eight short facts about {topic}, each in one sentence, by different people who like it.\n"
        s += "Foreword:" + gen("foreword", temperature=0, max_tokens=4)
        forks = s.fork(8)
        for i, fork in enumerate(forks):
            fork += f"\nPerson {i + 1}:" + gen("fact", temperature=0, max_tokens=8)
        forks.join()

    state = program.run(topic="the history of bell founding", backend=engine)
    shared = len(program.bind(topic="the history of bell founding").run(backend=engine).ids)
    assert len(state["fact"]) == 8 and all(state["fact"])
    usage = state.usage
    assert usage.completion_tokens <= 4 + 8 * 8
    assert usage.cached_tokens >= 7 * (shared - 2)  # whoever came first computed the prefix for all
    assert usage.prompt_tokens > 8 * shared


def test_a_batch_equals_single_runs(engine: Engine) -> None:
    @function
    def program(s, word):
        s += f"{word} is a kind of" + gen("kind", stop=["\n", "."], temperature=0, max_tokens=10)
        s += ", and so is" + gen("other", temperature=0, max_tokens=4)

    words = ["Oak", "Perch", "Granite", "Violin", "Tulip", "Copper"]
    states = program.run_batch([{"word": word} for word in words], backend=engine)
    for word, state in zip(words, states, strict=True):
        alone = program.run(word=word, backend=engine)
        assert state.text() == alone.text() and state.ids == alone.ids
        assert engine.detokenize(state.ids) == state.text()


def test_a_stop_string_inside_a_token_is_cut_out_of_the_ids(engine: Engine) -> None:
    prompt = "1, 2, 3, 4, 5, 6,"
    free = engine.generate(prompt, SamplingParams(temperature=0, max_tokens=12)).text
    stop = free[len(free) // 2 : len(free) // 2 + 2]

    @function
    def program(s):
        s += prompt + gen("x", temperature=0, max_tokens=12, stop=stop) + stop + "and on"

    state = program.run(backend=engine)
    assert state["x"] == free[: free.index(stop)]
    assert engine.detokenize(state.ids) == state.text() == prompt + state["x"] + stop + "and on"


def test_streaming_equals_running(engine: Engine) -> None:
    turns = ["Name three rivers.", "Which is the longest?"]
    state = talk.stream(turns=turns, backend=engine)
    pieces = list(state.text_iter("answer0"))
    assert len(pieces) > 1
    assert "".join(pieces) == talk.run(turns=turns, backend=engine)["answer0"]
    assert "".join(state.text_iter()) == state.text()


def test_samples_by_seed(engine: Engine) -> None:
    @function
    def program(s):
        s += "A bird:" + gen("x", n=3, seed=7, max_tokens=6)

    first, second = program.run(backend=engine), program.run(backend=engine)
    assert first["x"] == second["x"] and len(set(first["x"])) > 1
    assert first.usage.prompt_tokens == len(engine.tokenize("A bird:").ids)


def test_the_servers_words_reach_the_reader(engine: Engine) -> None:
    @function
    def program(s):
        s += "a b " * engine.info.context_length + gen("long", max_tokens=1)

    state: ProgramState = program.run(backend=engine)
    with pytest.raises(ProgramError) as raised:
        state["long"]
    assert raised.value.code == "context_length_exceeded"
    assert (raised.value.program, raised.value.variable) == ("program", "long")
    assert state.error is raised.value


def test_options_after_a_long_text_have_the_ids_of_the_whole(engine: Engine) -> None:
    shots = "".join(
        f"Review {i}: it was {w}, really.\nLabel: {v}\n\n"
        for i, (w, v) in enumerate([("fine", "good"), ("sad", "bad")] * 8)
    )

    @function
    def program(s, ending, choices):
        s += shots + ending + select("x", choices)

    for ending in ("Review 99: a joy.\nLabel:", "Review 99: a joy.\nLabel: ", "Review 99: a joy.\n\n"):
        choices = [" good", "bad", "\nneither", "12 3"]
        state = program.run(ending=ending, choices=choices, backend=engine)
        for ids, choice in zip(state.meta("x").token_ids, choices, strict=True):
            whole = list(engine.tokenize(shots + ending + choice).ids)
            assert whole[-len(ids) :] == list(ids)
        assert state.ids == list(engine.tokenize(shots + ending + state["x"]).ids)


def test_nothing_runs_on_after_a_failed_program(engine: Engine) -> None:
    class Stop(Exception):
        pass

    @function
    def program(s):
        forks = s.fork(4)
        forks += "Once upon a time" + gen("tale", max_tokens=2000, ignore_eos=True)
        next(iter(forks[0].text_iter()))
        raise Stop

    before = engine.stats().finished.get("abort", 0)
    with pytest.raises(Stop):
        program.run(backend=engine)
    until(lambda: not ((stats := engine.stats()).running or stats.waiting))
    assert engine.stats().finished.get("abort", 0) - before == 4, "each was cancelled, none ran to its end"
