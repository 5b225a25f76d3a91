"""What guesses must not change (float32): text and log-probabilities, greedy and seeded; and that they spare steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixrt import Constraint, Engine, Generation, SamplingParams
from radixrt.checkpoint import open_checkpoint
from radixrt.errors import StartupError
from tests.tiny import write_tiny_llama

LIST = "one, two, three, four, five, six, seven. " * 4
RECORD = Constraint(kind="json_schema", value='{"type":"object","properties":{"name":{"enum":["Ada","Bo"]},'
                    '"tags":{"type":"array","items":{"enum":["red","green"]},"minItems":4,"maxItems":4}},'
                    '"required":["name","tags"],"additionalProperties":false}')  # fmt: skip
CASES: list[tuple[str, dict, Constraint | None]] = [
    (LIST, {"temperature": 0, "max_tokens": 60, "logprobs": 2}, None),
    (LIST, {"temperature": 0.3, "top_p": 0.9, "seed": 5, "max_tokens": 60, "logprobs": 2}, None),
    (LIST, {"temperature": 0.5, "seed": 6, "n": 3, "max_tokens": 40}, None),
    (LIST, {"temperature": 0, "max_tokens": 60, "frequency_penalty": 0.4, "presence_penalty": 0.3}, None),
    (LIST, {"temperature": 0, "max_tokens": 60, "repetition_penalty": 1.2, "min_tokens": 30}, None),
    (LIST, {"temperature": 0, "max_tokens": 60, "stop": ["five"]}, None),
    (LIST, {"temperature": 0, "max_tokens": 60, "stop_token_ids": (28,)}, None),
    (LIST, {"temperature": 0, "max_tokens": 80}, RECORD),
    (LIST, {"temperature": 0.8, "seed": 9, "max_tokens": 80}, RECORD),
    (LIST, {"temperature": 0.8, "seed": 3, "n": 3, "max_tokens": 80}, RECORD),
    (LIST, {"temperature": 0.8, "seed": 4, "max_tokens": 80, "logprobs": 1}, RECORD),
    (LIST, {"temperature": 0.8, "seed": 4, "max_tokens": 80, "frequency_penalty": 0.5}, RECORD),
    (LIST, {"temperature": 0.8, "seed": 4, "max_tokens": 13}, RECORD),
    (LIST, {"temperature": 0.8, "seed": 4, "max_tokens": 80, "stop": ["tags"]}, RECORD),
    (LIST, {"temperature": 1.0, "seed": 8, "n": 4}, Constraint(kind="choice", choices=("delivery", "repair"))),
]  # fmt: skip


def answers(engine: Engine) -> list[Generation]:
    """The cases one by one, then all at once: what they gave then."""

    async def together() -> list[Generation]:
        return await asyncio.gather(
            *[engine.agenerate(prompt, SamplingParams(**params), constraint=held) for prompt, params, held in CASES]
        )

    alone = [engine.generate(prompt, SamplingParams(**params), constraint=held) for prompt, params, held in CASES]
    return [*alone, *asyncio.run(together())]


def same(one: Generation, other: Generation) -> None:
    for a, b in zip(one.choices, other.choices, strict=True):
        assert (a.token_ids, a.text, a.finish_reason, a.stop_reason) == (
            b.token_ids, b.text, b.finish_reason, b.stop_reason,
        )  # fmt: skip
        for x, y in zip(a.logprobs or (), b.logprobs or (), strict=True):
            assert x.token_id == y.token_id
            assert x.logprob == pytest.approx(y.logprob, abs=1e-3)
            assert [top.logprob for top in x.top] == pytest.approx([top.logprob for top in y.top], abs=1e-3)


@pytest.fixture(scope="module")
def plain(tiny_path: Path) -> Iterator[list[Generation]]:
    with Engine(str(tiny_path), dtype="float32", max_drafts=0) as engine:
        yield answers(engine)
        stats = engine.stats()
        assert stats.draft_tokens == 0 and stats.drafts_by_source == {}


def test_guesses_change_nothing(plain: list[Generation], tiny_path: Path, tmp_path: Path) -> None:
    """With the grammar, the tree and a draft model of other weights (as tiny, and as fond of repeating itself)."""
    draft = write_tiny_llama(tmp_path / "d", open_checkpoint(tiny_path).vocabulary().tokenizer_json(), seed=1)
    with Engine(
        str(tiny_path),
        dtype="float32",
        draft_model=str(draft),
        draft_sources="model,forced,tree",
        max_draft_rows=64,
        check=True,
    ) as engine:
        got = answers(engine)
        stats = engine.stats()
    for one, other in zip(plain, got, strict=True):
        same(one, other)
    verified, held = stats.drafts_by_source["model"]
    assert verified >= held > 100
    assert all(held > 0 for _, held in stats.drafts_by_source.values())
    assert sum(answer.usage.draft_tokens for answer in got) == stats.draft_tokens
    assert sum(answer.usage.accepted_draft_tokens for answer in got) == stats.accepted_draft_tokens


def test_a_copying_answer_takes_fewer_steps(engine: Engine, smollm2_path: Path) -> None:
    """The real model repeats a list; the tree foretells it. The same without guesses, token by token."""
    params = [SamplingParams(temperature=t, seed=2, max_tokens=28, logprobs=1) for t in (0, 0.4)]
    before = engine.stats()
    guessed = [engine.generate(LIST, one) for one in params]
    after = engine.stats()
    tokens = sum(len(answer.token_ids) for answer in guessed)
    verified = after.drafts_by_source["tree"][1] - before.drafts_by_source["tree"][1]
    assert after.steps - before.steps == pytest.approx(tokens - verified, abs=2 * len(guessed))
    assert verified > 0.3 * tokens
    with Engine(str(smollm2_path), weights="float32", max_drafts=0) as plain:
        for one, answer in zip(params, guessed, strict=True):
            same(plain.generate(LIST, one), answer)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"draft_sources": "forced,guesswork"}, "guesswork"),
        ({"draft_sources": "model"}, "--draft-model"),
    ],
)
def test_sources_that_are_not_there_are_refused_before_anything_starts(fields: dict, words: str) -> None:
    with pytest.raises(StartupError, match=words):
        Engine("no/such/model", **fields)
