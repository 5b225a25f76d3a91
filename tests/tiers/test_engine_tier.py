"""Whole engines over a cache directory: warm after a restart, with the bits that were computed; else cold."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from radixrt import Engine, SamplingParams
from radixrt.results import Generation
from radixrt.tiers import CHUNK

WHOLE = 40 * CHUNK
PROMPT = np.random.default_rng(0).integers(100, 40_000, WHOLE + 1).tolist()
"""All but its last token are whole chunks, so a restored and a remembered prefix leave the same rest to compute."""
PARAMS = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, logprobs=3)


def start(path: Path, cache: Path, **options: object) -> Engine:
    fields = {"dtype": "float32", "kv_tokens": 2000, "context_length": 1024, "threads": 1, "check": True}
    fields["max_drafts"] = 0  # guesses from memory: the same tokens in other steps, with other last bits
    return Engine(str(path), cache_dir=str(cache), **{**fields, **options})  # type: ignore[arg-type]


def ask(engine: Engine, prompt: Sequence[int] = PROMPT, salt: str | None = None) -> Generation:
    return engine.generate(list(prompt), PARAMS, cache_salt=salt)


def remember(engine: Engine) -> None:
    """Put all of PROMPT but its last token into the tree, which a long step rounds otherwise than a step of its own."""
    usage = engine.generate(PROMPT[:WHOLE], msgspec.structs.replace(PARAMS, max_tokens=1)).usage
    assert usage.cached_tokens == 0


def facts(generation: Generation) -> list[object]:
    """Tokens and log-probabilities, every bit of them."""
    (choice,) = generation.choices
    assert choice.logprobs is not None
    return [(t.token_id, t.logprob, [(o.token_id, o.logprob) for o in t.top]) for t in choice.logprobs]


@pytest.fixture(scope="module")
def filled(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[object]]:
    """A directory that an engine filled and closed; what that engine said to PROMPT once it remembered it."""
    cache = tmp_path_factory.mktemp("cache") / "kv"
    with start(tiny_path, cache) as engine:
        remember(engine)
        warm = ask(engine)
        assert warm.usage.cached_tokens == WHOLE
        assert ask(engine, salt="cold").token_ids == warm.token_ids
    return cache, facts(warm)


def test_what_does_not_match_is_dropped(tiny_path, filled, tmp_path, capfd):
    shutil.copytree(filled[0], tmp_path / "kv")
    with start(tiny_path, tmp_path / "kv", dtype="bfloat16") as engine:
        assert ask(engine).usage.cached_tokens == 0
    assert "dropped what the cache directory held: it was made with dtype float32" in capfd.readouterr().err


def test_bytes_are_restored_as_they_were_and_read_as_nothing_else(tiny_path, tmp_path, capfd):
    types = {"dtype": "bfloat16", "kv_dtype": "int8"}
    with start(tiny_path, tmp_path / "kv", **types) as engine:
        remember(engine)
        said = facts(ask(engine))
    with start(tiny_path, tmp_path / "kv", **types) as engine:
        restored = ask(engine)
        assert restored.usage.restored_tokens == WHOLE and facts(restored) == said
    with start(tiny_path, tmp_path / "kv", **types | {"kv_dtype": "float16"}) as engine:
        assert ask(engine).usage.cached_tokens == 0
    assert "it was made with kv_dtype int8, not float16" in capfd.readouterr().err


def test_restored_equals_computed_bit_for_bit_in_the_next_engine(tiny_path, filled):
    cache, said = filled
    with start(tiny_path, cache) as engine:
        stats = engine.stats().tier
        assert stats is not None and stats.kind == "disk" and stats.tokens >= WHOLE and stats.used_bytes > 0
        other = ask(engine, salt="somebody else's")
        assert other.usage.cached_tokens == other.usage.restored_tokens == 0
        again = ask(engine)
        assert again.usage.cached_tokens == again.usage.restored_tokens == WHOLE
        assert facts(again) == said
        # In its own tree by now, and not restored a second time.
        assert (ask(engine).usage.cached_tokens, ask(engine).usage.restored_tokens) == (WHOLE, 0)
        after = engine.stats()
        assert after.tier is not None and after.restored_tokens == after.tier.restored == WHOLE
        assert (after.tier.prefetches, after.tier.prefetch_hits, after.tier.errors) == (1, 1, 0)
        # What is flushed is flushed on the disk, too.
        engine.flush()
        assert engine.save() == 0 and ask(engine).usage.cached_tokens == 0


def test_ranks_load_what_one_saved_and_the_other_way_round(tiny_path, filled, tmp_path):
    """The chunks of two ranks are those of one; sums over ranks round otherwise, so the last bits may differ."""
    shutil.copytree(filled[0], tmp_path / "kv")
    with start(tiny_path, tmp_path / "kv", tp=2, kv_tokens=800, context_length=780) as engine:
        first = ask(engine)
        assert first.usage.cached_tokens == first.usage.restored_tokens == WHOLE
        assert [token for token, _, _ in facts(first)] == [token for token, _, _ in filled[1]]
        assert [value for _, value, _ in facts(first)] == pytest.approx([v for _, v, _ in filled[1]], abs=1e-4)
        other = [token + 1 for token in PROMPT]
        said = ask(engine, other)
        assert engine.stats().tier.errors == 0
    with start(tiny_path, tmp_path / "kv") as engine:  # another engine: this one has learned what a restore costs
        again = ask(engine, other)
        assert again.usage.cached_tokens == again.usage.restored_tokens == WHOLE
        assert again.token_ids == said.token_ids


def test_what_the_pool_cannot_hold_comes_back_from_host_memory(tiny_path):
    with Engine(
        str(tiny_path), dtype="float32", kv_tokens=800, context_length=780, threads=1, check=True,
        cache_host_bytes=64 << 20, max_drafts=0,
    ) as engine:  # fmt: skip
        remember(engine)
        said = facts(ask(engine))
        ask(engine, [token + 1 for token in PROMPT])
        again = ask(engine)
        assert again.usage.restored_tokens > 0 and again.usage.cached_tokens == WHOLE
        assert facts(again) == said
