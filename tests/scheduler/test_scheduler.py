"""The scheduler with a fake runner: sharing, chunks, pressure, ends; outputs against the fake model run alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from radixrt.messages import StepFailed
from radixrt.runner.rows import Rows
from radixrt.scheduler.requests import sample_seed
from tests.scheduler.fakes import Rig, expected, logprob, next_token

LONG = [1 + i % 60 for i in range(300)]


def idle(rig: Rig) -> None:
    """Nothing runs, waits, is locked or owned."""
    scheduler = rig.scheduler
    assert not scheduler.requests and not scheduler.rows.running and not scheduler.rows.waiting
    assert scheduler.cache.available == scheduler.cache.capacity
    assert all(node.locks == 0 for _, node in scheduler.cache.tree.walk())
    scheduler.cache.check()


def test_a_request_gets_the_models_tokens() -> None:
    rig = Rig(1000)
    number = rig.submit([5, 6, 7], max_tokens=20, seed=3)
    rig.run()
    text, reason = expected([5, 6, 7], 20, 3)
    assert (rig.texts[number, 0], rig.reasons[number, 0]) == (text, reason)
    assert rig.usage[number].completion_tokens == len(text)
    idle(rig)


@pytest.mark.parametrize(
    ("sampling", "plain"),
    [({}, True), ({"stop_token_ids": (9,)}, True), ({"min_tokens": 2}, False), ({"logprobs": 0}, False)],
)
def test_a_greedy_request_needs_no_logits_unless_it_asks_for_more(sampling: dict[str, Any], plain: bool) -> None:
    """What the scheduler tells of a row leaves the runner its short way, where tokens are chosen without logits."""
    rig = Rig(1000)
    rig.submit([5, 6, 7], max_tokens=20, temperature=0.0, **sampling)
    rig.advance()
    (opened,) = rig.runner.plans[0].opens
    rows = Rows(64)
    rows.open(opened)
    assert rows.plain(np.array([opened.row])).tolist() == [plain]


@pytest.mark.parametrize("lookahead", [0, 1, 2])
@pytest.mark.parametrize("budget", [7, 64, 1000])
def test_chunks_and_lookahead_change_nothing(lookahead: int, budget: int) -> None:
    rig = Rig(2000, lookahead=lookahead, max_num_batched_tokens=budget)
    numbers = [rig.submit(LONG[: 40 + 30 * i], max_tokens=15, seed=i) for i in range(6)]
    rig.run()
    for i, number in enumerate(numbers):
        assert (rig.texts[number, 0], rig.reasons[number, 0]) == expected(LONG[: 40 + 30 * i], 15, i)
    idle(rig)


def test_samples_of_one_request_share_its_prompt() -> None:
    rig = Rig(2000, max_drafts=0)
    number = rig.submit(LONG, max_tokens=5, n=4, seed=11)
    rig.run()
    for index in range(4):
        assert rig.texts[number, index] == expected(LONG, 5, sample_seed(11, index))[0]
    assert rig.usage[number].prompt_tokens == len(LONG)
    # The prompt once, its last token again for each further sample, and each output token but the last.
    assert rig.runner.computed <= len(LONG) + 3 + 4 * 5
    idle(rig)


def test_a_finished_request_warms_the_next_one() -> None:
    rig = Rig(2000)
    first = rig.submit(LONG, max_tokens=6, seed=1)
    rig.run()
    output = rig.texts[first, 0]
    second = rig.submit([*LONG, *output, 5], max_tokens=3, seed=2)
    rig.run()
    assert rig.usage[first].cached_tokens == 0
    # All but the last sampled token, which nobody computed.
    assert rig.usage[second].cached_tokens >= len(LONG) + len(output) - 1
    assert rig.texts[second, 0] == expected([*LONG, *output, 5], 3, 2)[0]


def test_a_running_requests_tokens_are_there_for_the_next_one() -> None:
    rig = Rig(2000)
    first = rig.submit(LONG[:50], max_tokens=60, seed=1, ignore_eos=True)
    for _ in range(12):
        rig.step()
    so_far = list(rig.texts[first, 0])
    assert len(so_far) >= 8 and (first, 0) not in rig.reasons
    second = rig.submit([*LONG[:50], *so_far, 9], max_tokens=2, seed=0)
    rig.run()
    assert rig.usage[second].cached_tokens >= 50 + len(so_far) - 1


def test_without_the_prefix_cache_nothing_is_shared() -> None:
    rig = Rig(2000, prefix_cache=False)
    for _ in range(2):
        rig.submit(LONG, max_tokens=1)
        rig.run()
    assert rig.runner.computed == 2 * len(LONG)
    idle(rig)


def test_a_pool_that_is_nearly_full_evicts_and_goes_on() -> None:
    rig = Rig(1024)
    for i in range(30):
        number = rig.submit([1 + (i * 7 + k) % 60 for k in range(300)], max_tokens=8, seed=i)
        rig.run()
        assert rig.texts[number, 0] == expected([1 + (i * 7 + k) % 60 for k in range(300)], 8, i)[0]
    assert rig.scheduler.cache.tree.evicted > 0
    a = rig.submit([3] * 600, max_tokens=100, seed=1, ignore_eos=True)
    b = rig.submit([4] * 600, max_tokens=100, seed=2, ignore_eos=True)
    rig.run()
    assert len(rig.texts[a, 0]) == len(rig.texts[b, 0]) == 100
    never = rig.submit([5] * 1100, max_tokens=1)
    assert "1024" in rig.errors[never]
    idle(rig)


def test_retraction_loses_nothing() -> None:
    rig = Rig(160, growth=4)
    numbers = [rig.submit([10 + i] * 10, max_tokens=60, seed=i, ignore_eos=True) for i in range(6)]
    rig.run()
    assert rig.scheduler.rows.retractions > 0
    for i, number in enumerate(numbers):
        tokens: list[int] = []
        context = [10 + i] * 10
        while len(tokens) < 60:
            tokens.append(next_token((*context, *tokens), i))
        assert rig.texts[number, 0] == tokens
        assert rig.usage[number].completion_tokens == 60
    idle(rig)


def test_a_constraint_holds_and_ends_by_itself() -> None:
    rig = Rig(2000)
    numbers = [rig.submit([7, i], constraint=f"even {3 + i}", max_tokens=40, seed=i) for i in range(5)]
    plain = rig.submit([7, 1], max_tokens=12, seed=9)
    rig.run()
    for i, number in enumerate(numbers):
        assert (rig.texts[number, 0], rig.reasons[number, 0]) == expected([7, i], 40, i, f"even {3 + i}")
        assert all(token % 2 == 0 for token in rig.texts[number, 0])
    assert (rig.texts[plain, 0], rig.reasons[plain, 0]) == expected([7, 1], 12, 9)


def test_a_constraint_that_is_compiled_later_holds_up_nobody() -> None:
    rig = Rig(2000)
    slow = rig.submit([7, 7], constraint="slow even 3", max_tokens=20, seed=1)
    plain = rig.submit([7, 1], max_tokens=5, seed=9)
    bad = rig.submit([7, 1], constraint="bad 3", max_tokens=5)
    rig.run()
    assert (plain, 0) in rig.reasons and (slow, 0) not in rig.reasons
    assert rig.errors == {bad: "this constraint is bad"}
    rig.scheduler.compiler.released.add("slow even 3")  # type: ignore[attr-defined]
    rig.scheduler.compiled()
    rig.run()
    assert rig.texts[slow, 0] == expected([7, 7], 20, 1, "even 3")[0]
    idle(rig)


def test_stop_tokens_wait_until_the_grammar_accepts() -> None:
    rig = Rig(2000)
    stops = tuple(range(44, 62, 2))
    number = rig.submit([7, 7], constraint="even 6", max_tokens=40, seed=1, stop_token_ids=stops)
    rig.run()
    assert len(rig.texts[number, 0]) >= 6
    assert not set(rig.texts[number, 0]) & set(stops)


@pytest.mark.parametrize("max_drafts", [0, 8])
def test_tokens_that_could_not_be_others_are_told(max_drafts: int) -> None:
    rig = Rig(2000, max_drafts=max_drafts)
    number, free = rig.submit([7, 1], constraint="even 12", max_tokens=60, seed=1), rig.submit([7, 1], max_tokens=9)
    rig.run()
    count = len(rig.texts[number, 0])
    assert count >= 12
    for i, (token, told) in enumerate(zip(rig.texts[number, 0], rig.forced[number, 0], strict=True)):
        forced = i % 5 in (1, 2, 3) and i < 12
        assert told == forced or (not forced and token in (8, 33))  # which the fake matcher's hints name wrongly
    assert not any(rig.forced[free, 0])


@pytest.mark.parametrize("kv_tokens", [120, 4000])
def test_what_a_constraint_forces_is_guessed_and_changes_nothing(kv_tokens: int) -> None:
    steps = {}
    for most in (0, 8):
        rig = Rig(kv_tokens, max_drafts=most)
        numbers = [rig.submit([7, i], constraint=f"even {12 + i}", max_tokens=60, seed=i) for i in range(4)]
        plain = rig.submit([7, 1], max_tokens=20, seed=9, ignore_eos=True)
        rig.run()
        for i, number in enumerate(numbers):
            assert (rig.texts[number, 0], rig.reasons[number, 0]) == expected([7, i], 60, i, f"even {12 + i}")
        assert len(rig.texts[plain, 0]) == 20
        idle(rig)
        steps[most] = rig.scheduler.stats.steps
        drafter = rig.scheduler.drafter
        assert (sum(drafter.accepted.values()) > 10) == (most > 0)
        assert sum(drafter.proposed.values()) >= sum(drafter.accepted.values())
    assert steps[8] < steps[0]


def test_cancelling_frees_everything_at_once() -> None:
    rig = Rig(2000)
    numbers = [rig.submit(LONG[: 50 * (i + 1)], max_tokens=500, n=2, ignore_eos=True) for i in range(5)]
    for _ in range(4):
        rig.step()
    for number in numbers:
        rig.scheduler.cancel(number)
    rig.scheduler.cancel(12345)
    idle(rig)
    rig.run()
    idle(rig)
    assert not rig.usage


def test_a_stop_string_ends_a_sample_and_keeps_its_tokens() -> None:
    rig = Rig(2000)
    number = rig.submit([5, 5], max_tokens=100, n=2, seed=1, ignore_eos=True)
    for _ in range(10):
        rig.step()
    rig.scheduler.stop_row(number, 0, 3)
    rig.run()
    assert rig.reasons[number, 0] == "stop" and rig.reasons[number, 1] == "length"
    assert rig.usage[number].completion_tokens == 3 + 100
    idle(rig)


@pytest.mark.parametrize("start", [0, 1, 5, 39])
@pytest.mark.parametrize("warm", [False, True])
def test_prompt_scores_are_those_of_a_cold_run(start: int, warm: bool) -> None:
    prompt = LONG[:40]
    rig = Rig(2000, max_num_batched_tokens=16)
    if warm:
        rig.submit(prompt, max_tokens=4, seed=0)
        rig.run()
    number = rig.submit(prompt, max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=start)
    rig.run()
    wanted = [logprob(tuple(prompt[:i]), prompt[i]) for i in range(max(start, 1), 40)]
    got = rig.scores[number]
    if start == 0:
        assert np.isnan(got[0])
        got = got[1:]
    assert got.tolist() == pytest.approx(wanted)
    assert rig.reasons[number, 0] == "length" and rig.texts[number, 0] == []
    idle(rig)


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_a_prompt_of_one_token_can_be_scored(max_tokens: int) -> None:
    rig = Rig(100)
    number = rig.submit([5], max_tokens=max_tokens, prompt_logprobs=0)
    rig.run()
    assert rig.scores[number].size == 1 and np.isnan(rig.scores[number][0])
    idle(rig)


def test_nothing_to_generate_warms_the_tree() -> None:
    rig = Rig(1000)
    for _ in range(2):
        number = rig.submit(LONG, max_tokens=0)
        rig.run()
        assert rig.reasons[number, 0] == "length"
    assert rig.runner.computed == len(LONG) - 1
    assert rig.usage[number].cached_tokens == len(LONG) - 1


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        ([], {}, "empty"),
        ([64], {}, "63"),
        ([1] * 50, {"max_tokens": 60}, "110"),
        ([1] * 101, {}, "101"),
        ([1], {"max_tokens": 4, "prompt_logprobs": 0, "prompt_logprobs_start": 1}, "prompt_logprobs_start"),
    ],
)
def test_what_can_never_run_is_refused_at_once(prompt: list[int], sampling: dict[str, int], words: str) -> None:
    rig = Rig(100)
    other = rig.submit([9], max_tokens=5, seed=1)
    number = rig.submit(prompt, **sampling)
    assert words in rig.errors[number]
    rig.run()
    assert rig.texts[other, 0] == expected([9], 5, 1)[0]


def test_max_tokens_defaults_to_what_is_left() -> None:
    rig = Rig(100)
    number = rig.submit([9] * 10, seed=1, ignore_eos=True)
    rig.run()
    assert len(rig.texts[number, 0]) == 90 and rig.reasons[number, 0] == "length"


def test_a_full_queue_refuses() -> None:
    rig = Rig(1000, max_waiting=2, max_num_seqs=2)
    numbers = [rig.submit([1 + i], max_tokens=3) for i in range(6)]
    assert [number in rig.errors for number in numbers] == [False] * 4 + [True] * 2


def test_a_failed_step_fails_what_ran_and_nothing_else() -> None:
    rig = Rig(2000, max_num_seqs=2)
    numbers = [rig.submit(LONG[: 20 + i], max_tokens=10, seed=i) for i in range(4)]
    rig.step()
    failed = rig.runner.fail()
    rig.scheduler.fail_step(StepFailed(step=failed, message="out of memory"))
    rig.collect()
    assert set(rig.errors) == set(numbers[:2])
    # The runner executes what else was sent; its rows are gone.
    rig.run()
    for i in (2, 3):
        assert rig.texts[numbers[i], 0] == expected(LONG[: 20 + i], 10, i)[0]
    idle(rig)
