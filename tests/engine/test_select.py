"""Selects through a whole engine: scores against whole sequences in transformers (float32), one request, one step."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from radixrt import Client, Engine, SamplingParams
from radixrt.choosing import decide
from radixrt.errors import Aborted, ContextLengthExceeded, InvalidRequest
from radixrt.lang import assistant, function, select, user
from radixrt.params import ChoicesMethod, Constraint
from tests.server.conftest import serving

METHODS: tuple[ChoicesMethod, ...] = (
    "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"
)  # fmt: skip
OPTIONS = [
    " blue", " blue as the sea", " blue as the sky", " red", " reddish", " r", "red", " 🍎", " 🍏🍎", "  two spaces",
    "\n", "!", " Zwölf", " blue as",
]  # fmt: skip
"""They share tokens, begin one another, begin with spaces, and hold characters of several tokens."""

Reference = Callable[[Sequence[int], Sequence[int]], list[float]]


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Iterator[Engine]:
    with Engine(str(tiny_path), dtype="float32", check=True, kv_tokens=4096, max_num_batched_tokens=256) as engine:
        yield engine


@pytest.fixture(scope="module")
def reference(tiny_path: Path) -> Reference:
    """Log-probabilities of an option's tokens, from one whole sequence without cache, batch or trie."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(tiny_path), dtype=torch.float32).eval()

    @functools.cache
    @torch.inference_mode()
    def whole(prompt: tuple[int, ...], option: tuple[int, ...]) -> list[float]:
        logits = model(torch.tensor([[*prompt, *option]]), logits_to_keep=len(option) + 1).logits[0]
        rows = torch.log_softmax(logits, -1)
        return [float(rows[j, token]) for j, token in enumerate(option)]

    return lambda prompt, option: whole(tuple(prompt), tuple(option))


def close(found: Sequence[Sequence[float]], wanted: Sequence[Sequence[float]]) -> bool:
    return len(found) == len(wanted) and all(
        list(row) == pytest.approx(list(other), abs=1e-4) for row, other in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("prompt", ["The sky is", "The sky is ", "Once upon a time, " * 120 + "the sky was", ""])
def test_scores_are_those_of_whole_sequences(
    tiny: Engine, reference: Reference, method: ChoicesMethod, prompt: str
) -> None:
    for _ in range(2):  # cold or warm, whatever the tests before left; then warm
        found = tiny.select(prompt, OPTIONS, method=method)
        head = list(found.written[: len(found.written) - len(found.token_ids[found.index])]) or [1]  # 1: BOS
        for ids, option in zip(found.token_ids, OPTIONS, strict=True):
            assert tiny.detokenize([*head, *ids], skip_special_tokens=True) == prompt + option
        logprobs = [reference(head, ids) for ids in found.token_ids]
        assert close(found.logprobs, logprobs)
        bare = None
        if method == "unconditional_likelihood_normalized":
            bare = [reference([1], ids) for ids in found.token_ids]
            assert found.unconditional is not None and close(found.unconditional, bare)
        index, scores = decide(method, found.token_ids, logprobs, bare)
        assert found.scores == pytest.approx(scores, abs=1e-4)
        assert (found.index, found.choice) == (index, OPTIONS[index])


def test_a_select_is_one_step_and_its_tokens_are_cached_behind_it(tiny: Engine) -> None:
    tiny.flush()
    before = tiny.stats()
    first = tiny.select("Apples are", OPTIONS[:4])
    between = tiny.stats()
    assert between.steps - before.steps == 1 and between.finished["stop"] - before.finished.get("stop", 0) == 1
    second = tiny.select("Apples are", OPTIONS[:4])
    assert first.usage.cached_tokens == 0
    head = len(first.written) - len(first.token_ids[first.index])
    assert second.usage.cached_tokens == head - 1
    goes_on = tiny.generate([*first.written, 5], SamplingParams(max_tokens=1))
    assert goes_on.usage.cached_tokens >= len(first.written) - 1
    assert tiny.stats().kv_used == 0


def test_ids_and_a_trie_wider_than_a_step(tiny: Engine, reference: Reference) -> None:
    options = [[100 + i, 200 + i % 7, 300 + i % 3, 400, 500 + i] for i in range(100)]
    found = tiny.select([5, 6, 7], options)
    assert found.choice is None and found.token_ids == tuple(map(tuple, options))
    for row, option in zip(found.logprobs[::9], options[::9], strict=True):
        assert row == pytest.approx(reference([5, 6, 7], option), abs=1e-4)
    # Another partition of the trie into steps, in which products may sum in another order.
    assert close(tiny.score([5, 6, 7], options).logprobs, found.logprobs)


def test_a_program_asks_once_a_select_and_gets_what_the_engine_gives(tiny: Engine, reference: Reference) -> None:
    @function
    def program(s):
        s += user("Is the sky blue?") + assistant(select("x", ["Yes", "No", "Yes, it is"]))

    before = tiny.stats()
    state = program.run(backend=tiny)
    after = tiny.stats()
    assert after.steps - before.steps == 1
    assert sum(after.finished.values()) - sum(before.finished.values()) == 1
    meta = state.meta("x")
    chat = tiny.select([{"role": "user", "content": "Is the sky blue?"}], ["Yes", "No", "Yes, it is"])
    assert close(chat.logprobs, meta.logprobs)
    assert chat.choice == state["x"]
    prompt = tiny.tokenize([{"role": "user", "content": "Is the sky blue?"}]).ids
    for row, ids in zip(meta.logprobs, meta.token_ids, strict=True):
        assert row == pytest.approx(reference(prompt, ids), abs=1e-4)


def test_over_http(tiny: Engine) -> None:
    with serving(tiny, None) as served, Client(served.url) as client:  # type: ignore[arg-type]
        for method in METHODS:
            there, here = (
                client.select("The sky is", OPTIONS, method=method),
                tiny.select("The sky is", OPTIONS, method=method),
            )
            assert there.scores == pytest.approx(here.scores, abs=1e-5) and there.index == here.index
            assert there.written == here.written and math.isfinite(sum(there.scores))


def test_a_choice_is_always_one_of_the_choices(tiny: Engine) -> None:
    """R16: under the wildest sampling; the tiny model gives every token about the same probability."""
    choices = ("-2", "7", "42", " Mango", "Mango")
    constraint = Constraint(kind="choice", choices=choices)

    async def fifty() -> list[str]:
        params = [SamplingParams(temperature=2.0, seed=seed, max_tokens=20) for seed in range(50)]
        answers = await asyncio.gather(*(tiny.agenerate("Say", one, constraint=constraint) for one in params))
        return [answer.text for answer in answers]

    texts = asyncio.run(fifty())
    assert set(texts) <= set(choices) and len(set(texts)) > 2


def test_forced_text_is_reported(tiny: Engine) -> None:
    """Of a record with one free digit everything else is forced; the tiny model often spells it in other tokens than
    the tokenizer would, and those are not told."""
    constraint = Constraint(kind="regex", value=r'\{"a": [0-9], "b": "x"\}')
    params = SamplingParams(temperature=0, max_tokens=40)
    (choice,) = tiny.generate("Say", params, constraint=constraint).choices
    digit = next(i for i, c in enumerate(choice.text) if c.isdigit())
    covered = {i for start, end in choice.forced for i in range(start, end)}
    assert digit not in covered and 2 * len(covered) > len(choice.text) and covered < set(range(len(choice.text)))
    streamed = [span for delta in tiny.stream("Say", params, constraint=constraint) for span in delta.forced]
    assert {i for start, end in streamed for i in range(start, end)} == covered
    assert tiny.generate("Say", params).choices[0].forced == ()


def test_many_at_once_and_those_that_are_left(tiny: Engine) -> None:
    async def one(i: int) -> tuple[float, ...]:
        return (await tiny.aselect(f"The sky {i % 3} is", OPTIONS)).scores

    async def leave(i: int) -> None:
        with pytest.raises((asyncio.TimeoutError, Aborted)):
            await asyncio.wait_for(tiny.aselect([7 + i] * 1500, OPTIONS), 0.002)

    async def all_of_them() -> list[tuple[float, ...]]:
        results = await asyncio.gather(*(one(i) for i in range(9)), *(leave(i) for i in range(4)))
        return [row for row in results if row is not None]

    results = asyncio.run(all_of_them())
    for i, row in enumerate(results):
        assert row == pytest.approx(results[i % 3], abs=1e-4)
    with pytest.raises(Aborted):
        tiny.select([9] * 1500, OPTIONS, timeout=0.0005)
    assert len(tiny.select("x", ["a", "b"]).scores) == 2
    stats = tiny.stats()
    assert (stats.running, stats.waiting, stats.kv_used) == (0, 0, 0)


@pytest.mark.parametrize(
    ("prompt", "options", "error", "param"),
    [
        ("x", [], InvalidRequest, "options"),
        ("x", ["a", ""], InvalidRequest, "options"),
        ("x", "ab", InvalidRequest, "options"),
        ("x", [[1], []], InvalidRequest, "options"),
        ("x", [[99_999_999]], InvalidRequest, "options"),
        ([99_999_999], ["a"], InvalidRequest, "prompt"),
        ([5] * 2048, ["a"], ContextLengthExceeded, "prompt"),
    ],
)
def test_what_cannot_be_done_is_said(
    tiny: Engine, prompt: str, options: list[str], error: type[Exception], param: str
) -> None:
    with pytest.raises(error) as caught:
        tiny.select(prompt, options)
    assert getattr(caught.value, "param", None) == param
    with pytest.raises(InvalidRequest, match="method"):
        tiny.select("x", ["a"], method="best")  # type: ignore[arg-type]
