"""An engine whose model lies on two ranks that talk through gloo."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from radixrt import Engine, SamplingParams
from radixrt.errors import EngineDead, StartupError

PROMPTS = ["The capital of France is", "Once upon a time, there was a"]


def tokens(engine: Engine) -> list[list[int]]:
    """A greedy and a seeded row that share steps."""
    params = [SamplingParams(max_tokens=6, temperature=t, seed=7) for t in (0.0, 1.0)]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = list(pool.map(lambda each: engine.generate(*each), zip(PROMPTS, params, strict=True)))
    return [[int(i) for i in each.choices[0].token_ids] for each in found]


def test_smollm2_on_two_ranks_gives_the_tokens_of_one(engine: Engine, smollm2_path: Path) -> None:
    """9 heads over 3 key-value heads do not divide by 2. Afterwards a rank dies, and the engine with it."""
    with Engine(str(smollm2_path), weights="float32", kv_tokens=2048, check=True, tp=2) as split:
        assert {"runner", "runner-1"} <= split.process_ids.keys()
        assert tokens(split) == tokens(engine)
        options = [[216, 36], [216, 37]]
        found, expected = (each.score("2 + 2 =", options).logprobs for each in (split, engine))
        assert [list(each) for each in found] == [pytest.approx(each, abs=1e-3) for each in expected]
        stream = split.stream(PROMPTS[0], SamplingParams(max_tokens=1000, temperature=0.0, ignore_eos=True))
        next(iter(stream))
        os.kill(split.process_ids["runner-1"], signal.SIGKILL)
        with pytest.raises(EngineDead):
            list(stream)
        assert not split.alive


def test_less_than_a_rank_is_refused(tiny_path: Path) -> None:
    with pytest.raises(StartupError, match="tp must be 1 or more"):
        Engine(str(tiny_path), tp=0)
