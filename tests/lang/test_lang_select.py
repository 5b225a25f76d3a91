"""select: which tokens are scored, and how each method compares; against the toy model's own log-probabilities."""

from __future__ import annotations

import math

import pytest
from fake_backend import BOS, EOS, FakeBackend, chat_ids, encode, logprob, mean
from hypothesis import given
from hypothesis import strategies as st

from radixrt.choosing import decide, greedy, split_options
from radixrt.lang import ProgramState, SelectMeta, assistant, function, gen, select, user
from radixrt.messages import TextPrompt

METHODS = ("token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized")


def scores_of(prompt: list[int], option: list[int]) -> tuple[float, ...]:
    return tuple(logprob([*prompt, *option[:j]], option[j]) for j in range(len(option)))


def run_select(backend: FakeBackend, before: str, choices: list[str], method: str) -> tuple[ProgramState, SelectMeta]:
    @function
    def program(s):
        s += before + select("x", choices, choices_method=method)

    state = program.run(backend=backend)
    meta = state.meta("x")
    assert isinstance(meta, SelectMeta)
    return state, meta


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_those_of_each_options_own_tokens(backend: FakeBackend, method: str) -> None:
    choices = ["Yes", "No", "Yes there", "No idea"]
    state, meta = run_select(backend, "Answer:", choices, method)
    prompt = encode("Answer:")
    options = [encode(choice) for choice in choices]
    assert [list(ids) for ids in meta.token_ids] == options
    conditional = [scores_of(prompt, option) for option in options]
    assert meta.logprobs == tuple(conditional)
    expected = [mean(row) for row in conditional]
    if method == "unconditional_likelihood_normalized":
        bare = [scores_of([EOS], option) for option in options]  # no BOS here: the end-of-text token stands before
        assert meta.unconditional == tuple(bare)
        expected = [mean([a - b for a, b in zip(*rows, strict=True)]) for rows in zip(conditional, bare, strict=True)]
    assert meta.scores == pytest.approx(expected, abs=1e-12)
    if method != "greedy_token_selection":
        assert meta.index == expected.index(max(expected))
    assert state["x"] == meta.choice == choices[meta.index]
    assert state.ids == prompt + options[meta.index]
    assert state.text() == "Answer:" + state["x"]


def test_an_option_that_merges_with_the_text_before_it_is_scored_merged(backend: FakeBackend) -> None:
    _, meta = run_select(backend, "Answer: ", ["Yes", "No", "@@qz"], "token_length_normalized")
    prompt = encode("Answer:")  # the space belongs to " Yes" and " No", so it is scored for all three
    assert [list(ids) for ids in meta.token_ids] == [encode(" Yes"), encode(" No"), encode(" @@qz")]
    assert meta.logprobs == tuple(scores_of(prompt, list(ids)) for ids in meta.token_ids)


def test_options_with_and_without_the_space_agree(backend: FakeBackend) -> None:
    _, inside = run_select(backend, "Answer: ", ["Yes", "No"], "token_length_normalized")
    _, outside = run_select(backend, "Answer:", [" Yes", " No"], "token_length_normalized")
    assert inside.logprobs == outside.logprobs and inside.index == outside.index


def test_with_bos_the_unconditional_scores_start_from_it() -> None:
    backend = FakeBackend(bos=True)
    _, meta = run_select(backend, "Q", ["Yes", "No"], "unconditional_likelihood_normalized")
    assert meta.unconditional == tuple(scores_of([BOS], encode(choice)) for choice in ("Yes", "No"))
    assert meta.logprobs == tuple(scores_of([BOS, *encode("Q")], encode(choice)) for choice in ("Yes", "No"))


def test_a_select_at_the_very_beginning(backend: FakeBackend) -> None:
    _, meta = run_select(backend, "", ["Yes", "No"], "token_length_normalized")
    assert meta.logprobs == tuple(scores_of([EOS], encode(choice)) for choice in ("Yes", "No"))


def test_after_generated_text_options_are_tokenized_by_themselves(backend: FakeBackend) -> None:
    backend.script = lambda text: "a"

    @function
    def program(s):
        s += "." + gen("g") + select("x", ["b", "c"]) + gen("h")

    state = program.run(backend=backend)
    before = encode(".") + encode("a")
    assert state.meta("x").logprobs == tuple(scores_of(before, encode(choice)) for choice in "bc")
    assert backend.prompts[1] == before + encode(state["x"])


def test_choices_that_are_beginnings_of_one_another(backend: FakeBackend) -> None:
    choices = ["a", "ab", "abc", "🙂", " reddish", " red"]
    for method in METHODS:
        state, meta = run_select(backend, "!", choices, method)
        assert state["x"] in choices
        assert [list(ids) for ids in meta.token_ids] == [encode(choice) for choice in choices]


def test_the_callers_list_is_not_kept(backend: FakeBackend) -> None:
    choices = ["Yes", "No"]
    expr = select("x", choices)
    choices.append("Bye")

    @function
    def program(s):
        s += "a" + expr

    assert program.run(backend=backend).meta("x").choices == ("Yes", "No")


# --- the start of a turn ---------------------------------------------------------------------------------------------


def at_turn_start(backend: FakeBackend, before: str, choices: list[str], method: str) -> ProgramState:
    @function
    def program(s):
        s += user("Greet me") + assistant(before + select("x", choices, choices_method=method))

    return program.run(backend=backend)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("salt", range(12))
def test_at_the_start_of_a_turn_a_leading_space_changes_no_choice(backend: FakeBackend, method: str, salt: int) -> None:
    words = [f"Hello{salt}", "Bye", "@@qz", "Yes there", "Hello"]
    spaced = [" " + word for word in words]
    plain, inside, outside = (
        at_turn_start(backend, before, choices, method) for before, choices in (("", words), (" ", words), ("", spaced))
    )
    assert plain["x"] == inside["x"] == outside["x"].strip()
    assert plain.meta("x").scores == inside.meta("x").scores == outside.meta("x").scores
    for state, written in ((plain, plain["x"]), (inside, " " + inside["x"]), (outside, outside["x"])):
        assert state.messages()[-1]["content"] == written
        assert state.ids == chat_ids([("user", "Greet me"), ("assistant", written)])


def test_at_the_start_of_a_turn_the_better_spelling_counts(backend: FakeBackend) -> None:
    words = ["Yes", "No"]
    meta = at_turn_start(backend, "", words, "token_length_normalized").meta("x")
    prompt = chat_ids([("user", "Greet me")], generation_prompt=True)
    expected = [max((scores_of(prompt, encode(text)) for text in (word, " " + word)), key=mean) for word in words]
    assert list(meta.logprobs) == expected
    assert meta.scores == pytest.approx([mean(row) for row in expected], abs=1e-12)


@pytest.mark.parametrize("choices", [["Yes", " Yes"], [" ", "No"]])
def test_choices_that_differ_by_their_spaces_are_scored_as_written(backend: FakeBackend, choices: list[str]) -> None:
    meta = at_turn_start(backend, "", choices, "token_length_normalized").meta("x")
    prompt = chat_ids([("user", "Greet me")], generation_prompt=True)
    assert [list(ids) for ids in meta.token_ids] == [encode(choice) for choice in choices]
    assert meta.logprobs == tuple(scores_of(prompt, encode(choice)) for choice in choices)


def test_select_is_counted(backend: FakeBackend) -> None:
    state, meta = run_select(backend, "Answer:", ["Yes", "No idea"], "unconditional_likelihood_normalized")
    (asked,) = backend.selects  # one request
    _, prompt, options, _ = asked
    assert state.usage.prompt_tokens == len(prompt) + 1 + 2 * sum(map(len, options))
    assert meta.choice == state["x"]


# --- the methods themselves -----------------------------------------------------------------------------------------


def test_greedy_follows_the_likeliest_token_not_the_best_mean() -> None:
    options = [(1, 2), (3, 4)]
    logprobs = [(-0.5, -9.0), (-1.0, -1.0)]
    assert decide("greedy_token_selection", options, logprobs, None)[0] == 0
    assert decide("token_length_normalized", options, logprobs, None)[0] == 1


def test_greedy_keeps_options_that_share_a_token_together_despite_rounding() -> None:
    options = [(7, 1), (7, 2)]
    assert greedy(options, [(-1.0000001, -0.1), (-1.0, -5.0)]) == 0


def test_an_ended_option_stands_for_all_that_goes_on_otherwise() -> None:
    options = [(7,), (7, 8), (7, 9)]
    assert greedy(options, [(-1.0,), (-1.0, math.log(0.51)), (-1.0, math.log(0.1))]) == 1
    assert greedy(options, [(-1.0,), (-1.0, math.log(0.3)), (-1.0, math.log(0.3))]) == 0
    assert greedy(options, [(-1.0,), (-1.0, math.log(0.3)), (-1.0, math.log(0.45))]) == 2


@given(
    st.dictionaries(st.text("ab", max_size=3), st.permutations([30, 33, 37]) | st.permutations([1, 4, 95]), min_size=1)
)
def test_the_option_that_greedy_decoding_writes_wins(weights: dict[str, list[int]]) -> None:
    """A model over three tokens, a, b and the end; options may be beginnings of one another: then a longer one may win,
    whose own tokens are likelier than all others together."""

    def probabilities(before: str) -> dict[str, float]:
        row = weights.get(before, [2, 3, 5])
        return dict(zip("ab.", (value / sum(row) for value in row), strict=True))

    written = ""
    for _ in range(4):
        row = probabilities(written)
        written += max(row, key=row.__getitem__)
    choices = ["a", "b", "ab", "aba", "ba", "bb.", "a."]
    options = [tuple(map(ord, choice)) for choice in choices]
    logprobs = [tuple(math.log(probabilities(c[:i])[c[i]]) for i in range(len(c))) for c in choices]
    begun = [choice for choice in choices if written.startswith(choice)]
    if begun:
        chosen = choices[greedy(options, logprobs)]
        assert chosen in begun or chosen.startswith(max(begun, key=len))


def test_unconditional_takes_away_what_is_likely_anywhere() -> None:
    options = [(1,), (2,)]
    winner, scores = decide("unconditional_likelihood_normalized", options, [(-1.0,), (-2.0,)], [(-0.5,), (-4.0,)])
    assert winner == 1 and scores == (-0.5, 2.0)


@given(
    st.lists(
        st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6, unique=True
    )
)
def test_greedy_is_what_greedy_decoding_among_the_options_gives(options: list[tuple[int, ...]]) -> None:
    """Where no option is the beginning of another: walk from the root, always to the likeliest child that exists."""
    if any(a != b and b[: len(a)] == a for a in options for b in options):
        return
    logprobs = [tuple(logprob(option[:j], option[j]) for j in range(len(option))) for option in options]
    walked: tuple[int, ...] = ()
    while walked not in options:
        children = {option[len(walked)] for option in options if option[: len(walked)] == walked}
        walked = (*walked, max(sorted(children), key=lambda token: logprob(walked, token)))
    assert options[greedy(options, logprobs)] == walked


@given(st.text("ab c", max_size=5), st.lists(st.text("ab c", min_size=1, max_size=4), min_size=1, max_size=5))
def test_splitting_loses_no_token(before: str, choices: list[str]) -> None:
    joined = [encode(before + choice) for choice in choices]
    shared, options = split_options(encode(before), joined)
    assert [[*shared, *option] for option in options] == joined
    assert list(shared) == encode(before)[: len(shared)]
    assert all(options)


# --- the boundary between a text and its options --------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["the Answer:", "the Answer: ", " Hello Hello", "x" * 50, " a  b ", "\n\n", " é:"])
@pytest.mark.parametrize("bos", [False, True])
def test_of_a_long_text_only_the_end_is_tokenized_with_each_option(ending: str, bos: bool) -> None:
    backend = FakeBackend(bos=bos)
    before = "Hello there, this is a long text. " * 12 + ending
    choices = ["Yes", " No", "ab", "Hello"]
    state, meta = run_select(backend, before, choices, "token_length_normalized")
    begin = [BOS] if bos else []
    shared, options = split_options(encode(before), [encode(before + choice) for choice in choices])
    assert list(meta.token_ids) == options
    assert meta.logprobs == tuple(scores_of([*begin, *shared], list(option)) for option in options)
    assert state.ids == begin + encode(before + state["x"])
    with_options = [p.text for p in backend.tokenized if isinstance(p, TextPrompt) and p.text.endswith("ab")]
    assert max(map(len, with_options)) < 100


def test_a_long_text_without_words_is_tokenized_whole(backend: FakeBackend) -> None:
    before = "a" * 300
    state, meta = run_select(backend, before, ["b", "c"], "token_length_normalized")
    assert list(meta.token_ids) == split_options(encode(before), [encode(before + "b"), encode(before + "c")])[1]
    assert state.ids == encode(before + state["x"])
