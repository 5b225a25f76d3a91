"""Situations from public reports (R14, R34, R35, R40, R58) through a whole engine on a tiny random model."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path

import jsonschema
import pytest

from radixrt import Constraint, Engine, SamplingParams
from radixrt.errors import ContextLengthExceeded
from radixrt.runner.threads import usable_cores

SCHEMA_A = {
    "type": "object",
    "properties": {"level": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["level", "ok"],
    "additionalProperties": False,
}
SCHEMA_B = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 5}


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Engine:
    with Engine(str(tiny_path), dtype="float32", kv_tokens=1024, check=True) as engine:
        yield engine


def as_json(schema: object) -> Constraint:
    return Constraint(kind="json_schema", value=json.dumps(schema))


def test_constrained_and_free_requests_do_not_touch_each_other(tiny: Engine) -> None:
    """R14: twenty rounds, staggered, in half of them one request is given up on the way."""
    rng = random.Random(0)
    params = SamplingParams(max_tokens=40, temperature=0)
    free = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    alone = tiny.generate("Tell me something", free).token_ids

    async def one(delay: int, prompt: str, sampling: SamplingParams, constraint: Constraint | None) -> str | None:
        for _ in range(delay):
            await tiny.astats()  # a round trip to the scheduler: staggers the starts without a clock
        result = await tiny.agenerate(prompt, sampling, constraint=constraint)
        if constraint is None:
            assert result.token_ids == alone
        return result.text if result.finish_reason == "stop" else None

    async def round_(number: int) -> None:
        delays = rng.sample(range(6), 4)
        tasks = [
            asyncio.create_task(one(delays[0], f"a {number}", params, as_json(SCHEMA_A))),
            asyncio.create_task(one(delays[1], f"b {number}", params, as_json(SCHEMA_B))),
            asyncio.create_task(one(delays[2], f"c {number}", params, Constraint(kind="regex", value="[a-f0-9]{8}"))),
            asyncio.create_task(one(delays[3], "Tell me something", free, None)),
        ]
        given_up = rng.randrange(3) if number % 2 else None
        if given_up is not None:
            for _ in range(delays[given_up] + 2):
                await tiny.astats()
            tasks[given_up].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for i, result in enumerate(results):
            if isinstance(result, BaseException):
                assert i == given_up and isinstance(result, asyncio.CancelledError), result
        a, b, c, _ = results
        if isinstance(a, str):
            jsonschema.validate(json.loads(a), SCHEMA_A)
        if isinstance(b, str):
            jsonschema.validate(json.loads(b), SCHEMA_B)
        if isinstance(c, str):
            assert re.fullmatch("[a-f0-9]{8}", c)
        assert given_up == 2 or isinstance(c, str)

    async def rounds() -> None:
        for number in range(20):
            await round_(number)

    asyncio.run(rounds())
    stats = tiny.stats()
    assert (stats.running, stats.waiting, stats.kv_used) == (0, 0, 0)


def test_a_small_pool_serves_one_after_the_other_and_two_at_once(tiny: Engine) -> None:
    """R34, R35: evict instead of hanging; what cannot fit is refused at once; nothing is held at the end."""
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    evicted = tiny.stats().evicted_tokens
    for i in range(30):
        prompt = [100 + (37 * i + k) % 900 for k in range(300)]
        assert len(tiny.generate(prompt, params).token_ids) == 8
    assert tiny.stats().evicted_tokens > evicted

    long = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
    prompts = [[100 + 7 * i] * 500 for i in range(2)]
    alone = [tiny.generate(prompt, long).token_ids for prompt in prompts]

    async def both() -> list[tuple[int, ...]]:
        results = await asyncio.gather(*[tiny.agenerate(prompt, long) for prompt in prompts])
        return [result.token_ids for result in results]

    assert asyncio.run(both()) == alone
    with pytest.raises(ContextLengthExceeded, match="1024"):
        tiny.generate([7] * 1100, SamplingParams(max_tokens=1))
    assert tiny.stats().kv_used == 0


def test_threads_are_the_users_choice(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R58: --threads wins over OMP_NUM_THREADS, which wins over what affinity allows; more than that is warned of."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with Engine(str(tiny_path)) as engine:
        assert engine.info.threads == 1
    assert "compute threads" not in caplog.text
    many = usable_cores() + 1
    with Engine(str(tiny_path), threads=many) as engine:
        assert engine.info.threads == many
    assert f"{many} compute threads are more than the {many - 1} cores" in caplog.text
