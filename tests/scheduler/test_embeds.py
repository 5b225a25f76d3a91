"""Embeddings of a decoder, over the fake runner: right under chunks, sharing, pressure, cancellation and failure."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
import pytest

from radixrt.errors import Aborted
from radixrt.messages import Namespace, StepFailed

from .fakes import VOCAB, Rig, expected, hidden

Kind = Literal["last", "mean"]


def rig(kind: Kind = "last", kv_tokens: int = 400, **overrides: object) -> Rig:
    made = Rig(kv_tokens, **overrides)
    made.scheduler.embeds.pooling = kind
    return made


def text(seed: int, length: int) -> list[int]:
    chooser = random.Random(seed)
    return [chooser.randrange(1, VOCAB) for _ in range(length)]


def true(kind: Kind, ids: list[int]) -> np.ndarray:
    states = [hidden(tuple(ids[: k + 1])) for k in range(len(ids))]
    return states[-1] if kind == "last" else np.sum(states, axis=0) / np.float32(len(ids))


def check(it: Rig, number: int, kind: Kind, texts: list[list[int]]) -> None:
    assert number not in it.errors, it.errors
    np.testing.assert_array_equal(it.pooled[number].vectors, np.stack([true(kind, ids) for ids in texts]))


@pytest.mark.parametrize("kind", ["last", "mean"])
@pytest.mark.parametrize("budget", [5, 64])
def test_vectors_are_those_of_each_text_alone(kind: Kind, budget: int) -> None:
    it = rig(kind, max_num_batched_tokens=budget)
    texts = [text(1, 30), text(1, 30), text(1, 12), text(2, 1), [*text(1, 20), *text(3, 9)]]
    number = it.embed(texts)
    story = it.submit([1, 2, 3], max_tokens=6, seed=0)
    it.run()
    check(it, number, kind, texts)
    assert (it.texts[story, 0], it.reasons[story, 0]) == expected([1, 2, 3], 6, 0)
    usage = it.pooled[number].usage
    assert usage.prompt_tokens == sum(map(len, texts)) and usage.completion_tokens == 0
    assert it.scheduler.stats.finished["embed"] == 1 and it.scheduler.embeds.texts == len(texts)
    assert not it.scheduler.requests and it.scheduler.embeds.surplus == 0


def test_the_last_token_needs_only_what_the_tree_lacks() -> None:
    it = rig("last")
    first = it.embed([text(1, 30)])
    it.run()
    again = it.embed([text(1, 30), [*text(1, 20), 5]])
    it.run()
    assert it.pooled[first].usage.cached_tokens == 0
    assert it.pooled[again].usage.cached_tokens == 29 + 20
    check(it, again, "last", [text(1, 30), [*text(1, 20), 5]])


def test_a_mean_needs_every_token_and_leaves_them_to_others() -> None:
    it = rig("mean")
    it.embed([text(1, 30)])
    it.run()
    again = it.embed([text(1, 30)])
    it.run()
    assert it.pooled[again].usage.cached_tokens == 0
    check(it, again, "mean", [text(1, 30)])
    story = it.submit([*text(1, 30), 4], max_tokens=2, seed=0)
    it.run()
    assert it.usage[story].cached_tokens == 30  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["last", "mean"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_retraction_amid_its_chunks_changes_no_vector(kind: Kind, steps: int) -> None:
    it = rig(kind, max_num_batched_tokens=8)
    texts = [text(1, 30), text(2, 30)]
    number = it.embed(texts)
    for _ in range(steps):
        it.step()
    row = it.scheduler.rows.running[0]
    it.scheduler.rows.retract(row)  # while a step of it is under way
    it.run()
    check(it, number, kind, texts)
    assert it.scheduler.rows.retractions == 1


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_a_crowded_pool_changes_no_vector(kind: Kind) -> None:
    it = rig(kind, kv_tokens=60, max_num_batched_tokens=8)
    stories = [it.submit(text(9, 5), max_tokens=20, seed=n) for n in range(3)]
    it.step()
    texts = [text(n, 25) for n in range(6)]
    numbers = [it.embed(texts[:3]), it.embed(texts[3:], priority=-1)]
    it.run()
    check(it, numbers[0], kind, texts[:3])
    check(it, numbers[1], kind, texts[3:])
    for n, story in enumerate(stories):
        assert (it.texts[story, 0], it.reasons[story, 0]) == expected(text(9, 5), 20, n)


def test_namespaces_share_nothing() -> None:
    it = rig("last")
    it.embed([text(1, 30)], Namespace(tenant="a"))
    it.run()
    other = it.embed([text(1, 30)], Namespace(tenant="b"))
    it.run()
    assert it.pooled[other].usage.cached_tokens == 0


def test_without_prefix_cache_nothing_is_kept() -> None:
    it = rig("last", prefix_cache=False)
    texts = [text(1, 30), text(1, 30)]
    number = it.embed(texts)
    it.run()
    check(it, number, "last", texts)
    assert it.pooled[number].usage.cached_tokens == 0


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_cancelling_takes_all_its_texts_out(kind: Kind) -> None:
    it = rig(kind, max_num_batched_tokens=8)
    number = it.embed([text(n, 20) for n in range(5)])
    it.step()
    it.scheduler.cancel(number)
    other = it.embed([text(7, 9)])
    it.run()
    assert number not in it.pooled and number not in it.errors
    check(it, other, kind, [text(7, 9)])
    assert not it.scheduler.requests and not it.scheduler.rows.running
    assert it.scheduler.stats.finished == {"abort": 1, "embed": 1}


def test_a_failed_step_fails_the_request_once() -> None:
    it = rig("last", max_num_batched_tokens=8)
    number = it.embed([text(n, 20) for n in range(3)])
    it.advance()
    it.scheduler.fail_step(StepFailed(step=it.runner.fail(), message="no memory"))
    it.collect()
    assert "no memory" in it.errors[number]
    other = it.embed([text(7, 9)])
    it.run()
    check(it, other, "last", [text(7, 9)])
    assert it.scheduler.stats.finished == {"error": 1, "embed": 1}


def test_one_text_that_fails_ends_the_others() -> None:
    it = rig("last")
    number = it.embed([text(n, 20) for n in range(3)])
    request = next(iter(it.scheduler.requests.values()))
    it.scheduler.ends.fail(request, Aborted("gone"))
    it.collect()
    assert it.errors == {number: "gone"} and not it.scheduler.requests and not len(it.scheduler.rows.waiting)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([text(1, 5), text(2, 401)], "input 1 has 401 tokens, but the KV pool"),
        ([[1, VOCAB]], "between 0 and 63"),
        ([], "at least one"),
    ],
)
def test_what_can_never_run_is_refused_whole(texts: list[list[int]], words: str) -> None:
    it = rig("last")
    number = it.embed(texts)
    assert words in it.errors[number] and not it.scheduler.requests


def test_a_model_without_a_known_way_refuses() -> None:
    it = rig("last")
    it.scheduler.embeds.fault = "its pooling is max_tokens"
    assert "max_tokens" in it.errors[it.embed([[1, 2]])]


def test_many_texts_are_one_request_in_the_queue() -> None:
    it = rig("last", max_waiting=3, max_num_seqs=1, max_num_batched_tokens=4)
    numbers = [it.embed([text(n, 6) for n in range(20)]) for _ in range(5)]
    assert list(it.errors) == numbers[4:]
    it.run()
    for number in numbers[:4]:
        check(it, number, "last", [text(n, 6) for n in range(20)])
