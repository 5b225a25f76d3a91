"""Programs on the real model: healed joins, programs over HTTP, and the room's own README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import radixrt
from radixrt.errors import InvalidRequest
from radixrt.lang import ProgramError, assistant, function, gen, select, system, user
from radixrt.messages import TextPrompt
from radixrt.params import SamplingParams
from tests.server.conftest import serving
from tests.waiting import HANG_S, until

if TYPE_CHECKING:
    from radixrt import Client, Engine

README = Path(__file__).parents[2] / "lang" / "README.md"


def best_that_begins_with(engine: Engine, ids: list[int], begin: bytes) -> int | None:
    """The likeliest next token whose bytes begin so, if it is among the twenty likeliest of all."""
    (answer,) = engine.generate(ids, SamplingParams(temperature=0, max_tokens=1, logprobs=20)).choices
    assert answer.logprobs is not None
    return next((top.token_id for top in answer.logprobs[0].top if top.bytes.startswith(begin)), None)


@pytest.mark.parametrize("before", ["see http:", "The link is http:", "The capital of France is", "for i in range(10"])
def test_a_healed_join_goes_on_as_the_model_would(engine: Engine, before: str) -> None:
    @function
    def program(s, heal):
        s += before + gen("u", max_tokens=4, temperature=0, heal=heal)

    plain = list(engine.tokenize(before).ids)
    kept = program.run(heal=False, backend=engine)
    by_hand = engine.generate(plain, SamplingParams(max_tokens=4, temperature=0))
    assert kept.ids == [*plain, *by_hand.token_ids] and kept["u"] == by_hand.text

    state = program.run(heal=None, backend=engine)
    assert state.text() == before + state["u"]
    assert engine.detokenize(state.ids) == state.text()
    assert state.ids[: len(plain) - 1] == plain[:-1]  # only the last token may differ: the rest stays cached
    last = engine.tokenize(TextPrompt(text=before)).pieces[-1]
    expected = best_that_begins_with(engine, plain[:-1], last)
    if expected is not None:
        assert state.ids[len(plain) - 1] == expected
        rest = engine.generate([*plain[:-1], expected], SamplingParams(max_tokens=4, temperature=0)).token_ids
        count = len(state.ids) - len(plain)
        assert state.ids[len(plain) :] == list(rest[:count])
        assert len(state.meta("u").token_ids) <= 4


def test_a_colon_grows_into_an_address(engine: Engine) -> None:
    @function
    def program(s):
        s += "The link is http:" + gen("u", max_tokens=4, temperature=0)

    assert program.run(backend=engine)["u"].startswith("//")


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[Client]:
    from tests.server.fake_backend import FakeBackend

    with serving(engine, FakeBackend()) as served, radixrt.Client(served.url, timeout=HANG_S) as client:
        yield client


def test_programs_over_http_are_those_of_the_engine(engine: Engine, client: Client) -> None:
    @function
    def program(s, word):
        s += system("You sort words.") + user(word)
        s += assistant(select("kind", ["tree", "fish"]) + "\nWhy? " + gen("why", max_tokens=5, temperature=0))
        forks = s.fork(2)
        forks += user("A number?") + assistant(gen("number", type=int, max_tokens=8, temperature=0))
        forks.join()

    here, there = (program.run(word="perch", backend=backend) for backend in (engine, client))
    assert here.ids == there.ids and here.messages() == there.messages()
    assert here["number"] == there["number"] and here.get("why", str) == there["why"]
    assert here.usage.prompt_tokens == there.usage.prompt_tokens
    for one, other in zip(here.meta("kind").logprobs, there.meta("kind").logprobs, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    streamed = program.stream(word="perch", backend=client)
    assert "".join(streamed.text_iter("why")) == here["why"]
    (batched,) = program.run_batch([{"word": "perch"}], backend=client)
    assert batched.ids == here.ids


def test_a_pattern_ends_a_gen_where_its_match_begins(engine: Engine) -> None:
    prompt = "The three primary colours are"
    pattern = r"\.\s|,\s+and"
    free = engine.generate(prompt, SamplingParams(temperature=0, max_tokens=40)).text
    match = re.search(pattern, free)
    assert match is not None

    @function
    def program(s):
        s += prompt + gen("x", temperature=0, max_tokens=40, stop_regex=pattern) + "!" + gen("y", max_tokens=1)

    state = program.run(backend=engine)
    assert state["x"] == free[: match.start()]
    assert state.meta("x").finish_reason == "stop" and state.meta("x").stop_reason == pattern
    assert state.text().startswith(prompt + state["x"] + "!")
    parts = list(engine.stream(prompt, SamplingParams(temperature=0, max_tokens=40, stop_regex=pattern)))
    assert "".join(part.text for part in parts) == state["x"]
    with pytest.raises(InvalidRequest, match="no regular expression"):
        engine.generate(prompt, SamplingParams(stop_regex="("))


@pytest.fixture
def lent(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """`with radixrt.Engine(...)` gives the engine of all tests."""

    class Lent:
        def __init__(self, model: str) -> None:
            assert model == "smollm2-135m"

        def __enter__(self) -> Engine:
            return engine

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(radixrt, "Engine", Lent)


@pytest.mark.usefixtures("lent")
def test_the_readmes_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, Any] = {"tickets": ["It hangs.", "A dark theme, please."]}
    exec(compile(example, str(README), "exec"), names)  # noqa: S102 - our own words
    assert names["state"]["label"] in ("bug", "wish") and names["state"]["reason"]
    assert [state["label"] in ("bug", "wish") for state in names["states"]] == [True, True]


@pytest.mark.usefixtures("lent")
def test_the_recipe_for_tools_runs() -> None:
    recipe = (
        (README.parents[1] / "README.md").read_text().split("## Tools\n")[1].split("```python\n")[1].split("```")[0]
    )
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(recipe, "README.md", "exec", dont_inherit=True), names)  # noqa: S102 - our own words
    state = names["state"]
    (call,) = state["step"].tool_calls
    assert call.name == "price" and call().endswith(f"euros for {call.arguments['dish']}") and state["answer"]
    assert call() in state.text()


@pytest.mark.parametrize("over_http", [False, True])
def test_a_timeout_frees_the_engine(engine: Engine, client: Client, over_http: bool) -> None:
    @function
    def program(s):
        forks = s.fork(3)
        forks += "Once upon a time" + gen("tale", max_tokens=4000, ignore_eos=True)
        forks.join()

    before = engine.stats().finished.get("abort", 0)
    with pytest.raises(ProgramError) as raised:
        program.run(backend=client if over_http else engine, timeout=0.5)
    assert raised.value.code == "timeout"
    until(lambda: not ((stats := engine.stats()).running or stats.waiting))
    assert engine.stats().finished.get("abort", 0) - before == 3, "each was cancelled, none ran to its end"


def test_a_trace_tells_what_the_cache_held(engine: Engine) -> None:
    policy = "Tickets about money go to the desk in the cellar, all others to the desk upstairs. " * 3

    @function
    def program(s):
        s += system(policy) + user("Where do I go?") + assistant(gen("x", max_tokens=3, temperature=0, logprobs=0))

    program.run(backend=engine)
    state = program.run(backend=engine)
    pieces = state.trace["branches"][0]["pieces"]
    assert "".join(piece["text"] for piece in pieces) == state.text()
    cached = "".join(piece["text"] for piece in pieces if piece["origin"] == "cached")
    assert policy.strip() in cached and state.text().startswith(cached)
    sampled = next(piece for piece in pieces if piece["origin"] == "sampled")
    assert "".join(text for text, _ in sampled["tokens"]) == state["x"]
