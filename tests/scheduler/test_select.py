"""Selects in the scheduler: scores against the fake model run alone, tokens computed, pressure, aborts, histories."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radixrt.messages import StepFailed
from tests.scheduler.fakes import VOCAB, Rig, expected, logprob

PROMPT = [1 + i % 60 for i in range(300)]
TREE = [[5, 6, 7], [5, 6, 8], [5, 9], [10], [5], [5, 6, 7, 11], [12, 13, 14, 15]]
"""Options that share tokens, and some that begin others."""


def idle(rig: Rig) -> None:
    scheduler = rig.scheduler
    assert not scheduler.requests and not scheduler.rows.running and not scheduler.rows.waiting
    assert not scheduler.selects.open and not scheduler.selects.waiting
    assert scheduler.cache.available == scheduler.cache.capacity
    assert all(node.locks == 0 for _, node in scheduler.cache.tree.walk())
    scheduler.cache.check()


def alone(prompt: list[int], option: list[int]) -> list[float]:
    """Each token's log-probability, from the whole sequence before it."""
    return [logprob((*prompt, *option[:j]), option[j]) for j in range(len(option))]


def trie_tokens(options: list[list[int]]) -> int:
    """Distinct beginnings of the options that another token follows: what has to be computed of them."""
    return len({tuple(option[:j]) for option in options for j in range(1, len(option))})


def check(rig: Rig, number: int, prompt: list[int], options: list[list[int]], base: tuple[int, ...] = ()) -> None:
    answer = rig.selected[number]
    for got, head in ((answer.logprobs, prompt), *(((answer.unconditional, list(base)),) if base else ())):
        assert [len(row) for row in got] == [len(option) for option in options]
        for row, option in zip(got, options, strict=True):
            np.testing.assert_allclose(row, alone(head, option), atol=1e-6)
    assert base or answer.unconditional == []


def test_a_select_is_one_step_and_computes_each_token_of_the_trie_once() -> None:
    rig = Rig(2000, max_num_batched_tokens=512)
    number = rig.select(PROMPT, TREE)
    assert rig.step() and not rig.step()
    check(rig, number, PROMPT, TREE)
    assert rig.runner.computed == len(PROMPT) + trie_tokens(TREE)
    assert rig.usage == {} and rig.selected[number].usage.cached_tokens == 0
    idle(rig)


def test_options_over_a_cached_prompt_cost_their_own_tokens() -> None:
    rig = Rig(2000, max_num_batched_tokens=512)
    rig.submit(PROMPT, max_tokens=1)
    rig.run()
    before = rig.runner.computed
    number = rig.select(PROMPT, TREE)
    assert rig.step() and not rig.step()
    check(rig, number, PROMPT, TREE)
    assert rig.runner.computed - before == 1 + trie_tokens(TREE)  # the prompt's last token says what comes first
    assert rig.selected[number].usage.cached_tokens == len(PROMPT) - 1
    assert rig.runner.widest_span >= 3  # the prompt is read once for all branches
    idle(rig)


def test_eight_options_over_a_long_prompt_compute_little_more_than_one() -> None:
    prompt = [1 + i % 60 for i in range(1000)]
    options = [[5 + i, 20, 30] for i in range(8)]
    costs = []
    for count in (1, 8):
        rig = Rig(4000, max_num_batched_tokens=512)
        check_number = rig.select(prompt, options[:count])
        rig.run()
        check(rig, check_number, prompt, options[:count])
        costs.append(rig.runner.computed)
    assert costs == [1000 + 2, 1000 + 16]


def test_without_the_prompt_in_the_same_step() -> None:
    rig = Rig(2000, max_num_batched_tokens=512)
    number = rig.select(PROMPT, TREE, base=(62,))
    assert rig.step() and not rig.step()
    check(rig, number, PROMPT, TREE, base=(62,))
    assert rig.runner.computed == len(PROMPT) + 1 + 2 * trie_tokens(TREE)
    idle(rig)


@pytest.mark.parametrize("budget", [1, 3, 7, 64])
@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_a_trie_that_does_not_fit_is_split_over_steps(budget: int, lookahead: int) -> None:
    rig = Rig(2000, max_num_batched_tokens=budget, lookahead=lookahead)
    numbers = [rig.select(PROMPT[:40], TREE, base=(62,)), rig.select(PROMPT[:40], TREE[1:])]
    rows = [rig.submit(PROMPT[:60], max_tokens=5, seed=i) for i in range(2)]
    rig.run()
    check(rig, numbers[0], PROMPT[:40], TREE, base=(62,))
    check(rig, numbers[1], PROMPT[:40], TREE[1:])
    for i, row in enumerate(rows):
        assert rig.texts[row, 0] == expected(PROMPT[:60], 5, i)[0]
    idle(rig)


def test_selects_and_rows_that_arrive_together_compute_the_prompt_once() -> None:
    rig = Rig(4000, max_num_batched_tokens=64)
    numbers = [rig.select(PROMPT, [[50 + i], [40, 2 + i]]) for i in range(4)]
    rig.submit([*PROMPT, 9], max_tokens=1)
    rig.run()
    for i, number in enumerate(numbers):
        check(rig, number, PROMPT, [[50 + i], [40, 2 + i]])
    # The prompt and the row's own token; for each select the last of the prompt again, and one token of an option.
    assert rig.runner.computed == len(PROMPT) + 1 + 4 + 4
    idle(rig)


def test_a_select_after_a_running_rows_tokens_reads_them() -> None:
    rig = Rig(2000)
    row = rig.submit(PROMPT[:50], max_tokens=40, seed=1, ignore_eos=True)
    for _ in range(12):
        rig.step()
    so_far = list(rig.texts[row, 0])
    number = rig.select([*PROMPT[:50], *so_far], TREE)
    rig.run()
    check(rig, number, [*PROMPT[:50], *so_far], TREE)
    assert rig.selected[number].usage.cached_tokens >= 50 + len(so_far) - 2
    idle(rig)


@pytest.mark.parametrize("kv_tokens", [44, 48, 60])
def test_a_pool_that_holds_one_path_is_enough(kv_tokens: int) -> None:
    rig = Rig(kv_tokens, max_num_batched_tokens=16)
    numbers = [rig.select([i + 1, *PROMPT[:39]], TREE, base=(62,)) for i in range(3)]
    row = rig.submit([7, *PROMPT[:30]], max_tokens=8, seed=1)
    rig.run()
    for i, number in enumerate(numbers):
        check(rig, number, [i + 1, *PROMPT[:39]], TREE, base=(62,))
    assert rig.texts[row, 0] == expected([7, *PROMPT[:30]], 8, 1)[0]
    idle(rig)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_an_aborted_select_leaves_nothing_behind(steps: int) -> None:
    rig = Rig(2000, max_num_batched_tokens=150)
    number = rig.select(PROMPT, TREE, base=(62,))
    other = rig.select(PROMPT, TREE)
    for _ in range(steps):
        rig.advance()
        if rig.runner.plans and steps > 1:
            rig.step()
    rig.scheduler.cancel(number)
    rig.scheduler.cancel(number)
    rig.scheduler.cancel(999)
    rig.run()
    assert number not in rig.selected or steps == 3
    check(rig, other, PROMPT, TREE)
    idle(rig)


def test_a_failed_step_fails_the_selects_that_have_begun() -> None:
    rig = Rig(2000, max_num_batched_tokens=64)
    number, row = rig.select(PROMPT, TREE), rig.submit(PROMPT[:5], max_tokens=3)
    rig.step()
    rig.advance()
    late = rig.select([3, *PROMPT[:20]], TREE)
    while rig.runner.plans:
        rig.scheduler.fail_step(StepFailed(step=rig.runner.fail(), message="broken"))
    rig.collect()
    rig.run()
    assert "broken" in rig.errors[number] and number not in rig.selected
    assert row in rig.errors or (row, 0) in rig.reasons
    check(rig, late, [3, *PROMPT[:20]], TREE)
    idle(rig)


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ([], [[1]], "prompt is empty"),
        ([1], [], "at least one option"),
        ([1], [[1], []], "at least one token"),
        ([1], [[VOCAB]], "token ids"),
        ([VOCAB], [[1]], "token ids"),
        ([1] * 90, [[1] * 20], "need 110 tokens"),
    ],
)
def test_what_can_never_run_is_refused(prompt: list[int], options: list[list[int]], words: str) -> None:
    rig = Rig(100)
    number = rig.select(prompt, options)
    assert words in rig.errors[number]
    idle(rig)


def test_a_full_queue_refuses_selects_too() -> None:
    rig = Rig(2000, max_waiting=2, max_num_seqs=1)
    for _ in range(3):
        rig.select(PROMPT, TREE)
    assert "the queue is full" in rig.errors[rig.select(PROMPT, TREE)]
    rig.run()
    assert len(rig.selected) == 3
    idle(rig)


def test_new_rows_and_selects_do_not_starve_one_another() -> None:
    rig = Rig(4000, max_num_batched_tokens=32, lookahead=0)
    row = rig.submit([3] * 200, max_tokens=1)
    for i in range(60):
        rig.select([4 + i % 50] * 100, TREE)
        rig.step()
        if (row, 0) in rig.reasons:
            break
    assert (row, 0) in rig.reasons
    last = rig.select([60] * 20, TREE, priority=-1)
    for i in range(20):
        rig.submit([2 + i] * 60, max_tokens=1)
        rig.step()
    assert last in rig.selected
    rig.run()
    idle(rig)


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_with_selects(seed: int) -> None:
    """Everything mixed under pressure: rows keep their texts, selects their scores, and nothing stays behind."""
    rng = random.Random(seed)
    rig = Rig(
        rng.choice([120, 200, 400]), max_num_batched_tokens=rng.choice([5, 24, 64]),
        lookahead=rng.choice([0, 1, 2]), max_num_seqs=6, policy=rng.choice(["lpm", "fcfs"]),
    )  # fmt: skip
    selects: dict[int, tuple[list[int], list[list[int]], tuple[int, ...]]] = {}
    rows: dict[int, tuple[list[int], int, int]] = {}
    for _ in range(60):
        kind = rng.random()
        prompt = [rng.randrange(1, 3) for _ in range(rng.randrange(1, 60))]
        if kind < 0.35:
            options = [[rng.randrange(1, 4) for _ in range(rng.randrange(1, 6))] for _ in range(rng.randrange(1, 7))]
            base: tuple[int, ...] = (62,) if rng.random() < 0.3 else ()
            selects[rig.select(prompt, options, base)] = (prompt, options, base)
        elif kind < 0.6:
            count = rng.randrange(1, 30)
            rows[rig.submit(prompt, max_tokens=count, seed=seed)] = (prompt, count, seed)
        elif kind < 0.68 and (selects or rows):
            number = rng.choice([*selects, *rows])
            rig.scheduler.cancel(number)
            if number not in rig.selected:
                selects.pop(number, None)
            if (number, 0) not in rig.reasons:
                rows.pop(number, None)
        else:
            rig.step()
    rig.run()
    for number, (prompt, options, base) in selects.items():
        check(rig, number, prompt, options, base)
    for number, (prompt, count, row_seed) in rows.items():
        assert rig.texts.get((number, 0), []) == expected(prompt, count, row_seed)[0]
    idle(rig)
