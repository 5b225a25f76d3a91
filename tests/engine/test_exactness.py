"""What the cache, the batch and the chunks must not change (float32): greedy text, and log-probabilities."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from radixrt import Engine, Generation, SamplingParams

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a village by the sea,",
    "1, 2, 3, 4,",
    "The three laws of thermodynamics are",
    "Water boils at",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is a prefix tree?\nA:",
]
GREEDY = SamplingParams(max_tokens=32, temperature=0, logprobs=3)


def same(one: Generation, other: Generation) -> None:
    """Equal ids and text; log-probabilities within the tolerance of float32 sums in another order."""
    assert one.token_ids == other.token_ids and one.text == other.text
    assert one.finish_reason == other.finish_reason
    for a, b in zip(one.choices[0].logprobs, other.choices[0].logprobs, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-3)
        assert [top.logprob for top in a.top] == pytest.approx([top.logprob for top in b.top], abs=1e-3)


async def together(engine: Engine, prompts: list[str], params: SamplingParams) -> list[Generation]:
    return await asyncio.gather(*[engine.agenerate(prompt, params) for prompt in prompts])


def test_warm_equals_cold(engine: Engine) -> None:
    for prompt in PROMPTS[:4]:
        engine.flush()
        cold = engine.generate(prompt, GREEDY)
        warm = engine.generate(prompt, GREEDY)
        assert cold.usage.cached_tokens == 0
        assert warm.usage.cached_tokens == warm.usage.prompt_tokens - 1
        same(cold, warm)


def test_batched_equals_alone(engine: Engine) -> None:
    alone = []
    for prompt in PROMPTS:
        engine.flush()
        alone.append(engine.generate(prompt, GREEDY))
    engine.flush()
    for one, other in zip(alone, asyncio.run(together(engine, PROMPTS, GREEDY)), strict=True):
        same(one, other)


def test_one_among_long_neighbours_equals_alone(engine: Engine) -> None:
    engine.flush()
    alone = engine.generate(PROMPTS[0], GREEDY)
    engine.flush()
    neighbours = [f"Report number {i}. " + "All systems were quiet during the night shift. " * 30 for i in range(7)]
    results = asyncio.run(together(engine, [*neighbours, PROMPTS[0]], GREEDY))
    same(alone, results[-1])


def test_rows_that_share_a_long_prefix_equal_alone(engine: Engine) -> None:
    stem = "You answer questions about birds in one short sentence. " * 12
    prompts = [f"{stem}\nQuestion {i}: {question}\nAnswer:" for i, question in enumerate(["swans?", "owls?", "wrens?"])]
    alone = []
    for prompt in prompts:
        engine.flush()
        alone.append(engine.generate(prompt, GREEDY))
    engine.flush()
    results = asyncio.run(together(engine, prompts, GREEDY))
    assert sum(result.usage.cached_tokens for result in results) > 200
    for one, other in zip(alone, results, strict=True):
        same(one, other)


def test_chunked_equals_whole(engine: Engine, smollm2_path: Path) -> None:
    prompt = " ".join(f"Item {i} costs {3 * i + 1} coins and weighs {i % 7} grams." for i in range(60)) + " In total,"
    engine.flush()
    whole = engine.generate(prompt, GREEDY)
    with Engine(str(smollm2_path), weights="float32", max_num_batched_tokens=48, lookahead=0, check=True) as small:
        chunked = small.generate(prompt, GREEDY)
    assert whole.usage.prompt_tokens > 48 * 10
    same(whole, chunked)


def test_a_pool_too_small_for_all_gives_everybody_the_same_text(engine: Engine, smollm2_path: Path) -> None:
    params = SamplingParams(max_tokens=44, temperature=0, ignore_eos=True)
    alone = []
    for prompt in PROMPTS:
        engine.flush()
        alone.append(engine.generate(prompt, params).token_ids)
    with Engine(str(smollm2_path), weights="float32", kv_tokens=256, check=True) as tight:
        results = asyncio.run(together(tight, PROMPTS, params))
        stats = tight.stats()
    assert [result.token_ids for result in results] == alone
    assert stats.preemptions > 0
    assert stats.kv_used == 0


def test_a_seed_gives_the_same_samples_again(engine: Engine) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=7, n=3)
    first = engine.generate("My favourite bird is", params)
    engine.flush()
    asyncio.run(together(engine, PROMPTS[:3], GREEDY))
    second = engine.generate("My favourite bird is", params)
    assert [choice.token_ids for choice in first.choices] == [choice.token_ids for choice in second.choices]
    assert len({choice.token_ids for choice in first.choices}) > 1


def test_scores_equal_the_models_log_probabilities(engine: Engine) -> None:
    """Scoring an option, cold or warm, gives what generation reports for the same tokens."""
    prompt = engine.tokenize("The opposite of hot is").ids
    generated = engine.generate(list(prompt), SamplingParams(max_tokens=4, temperature=0, logprobs=0))
    wanted = [entry.logprob for entry in generated.choices[0].logprobs]
    for _ in range(2):
        engine.flush()
        (scores,) = engine.score(list(prompt), [generated.token_ids]).logprobs
        assert list(scores) == pytest.approx(wanted, abs=1e-3)
    (scores,) = engine.score(list(prompt), [generated.token_ids]).logprobs
    assert list(scores) == pytest.approx(wanted, abs=1e-3)
