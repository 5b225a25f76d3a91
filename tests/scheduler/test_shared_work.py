"""Work done once: requests that share a prompt compute it once, whenever they come. Counters are exact."""

from __future__ import annotations

import random

import pytest

from radixrt.messages import Namespace
from tests.scheduler.fakes import Rig, expected

PROMPT = [1 + (i * i + i // 7) % 60 for i in range(1400)]


def distinct_prefixes(prompts: list[list[int]]) -> int:
    """How many tokens must be computed at least: nodes of the prompts' trie."""
    return len({tuple(prompt[: n + 1]) for prompt in prompts for n in range(len(prompt))})


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
@pytest.mark.parametrize("count", [8, 64, 256])
def test_simultaneous_requests_compute_prefix_and_suffixes_only(count: int, policy: str) -> None:
    rig = Rig(8000, max_num_seqs=64, max_num_batched_tokens=512, max_drafts=0, policy=policy)
    prompts = [[*PROMPT, 1 + i % 50, 1 + i // 50] for i in range(count)]
    numbers = [rig.submit(prompt, max_tokens=2, seed=i, ignore_eos=True) for i, prompt in enumerate(prompts)]
    rig.run()
    first_tokens = min(count, 50)
    # The prompt, the suffixes (whose first token some of them share), and one of two output tokens each.
    assert rig.runner.computed == len(PROMPT) + first_tokens + count + count
    assert sum(rig.usage[number].cached_tokens for number in numbers) >= (count - 1) * len(PROMPT)
    if count == 8:
        for i, (number, prompt) in enumerate(zip(numbers, prompts, strict=True)):
            alone = expected(prompt, 2, i)[0]  # which ends at the end token, ignored here
            assert rig.texts[number, 0][: len(alone)] == alone and len(rig.texts[number, 0]) == 2


@pytest.mark.parametrize("budget", [16, 100, 512])
@pytest.mark.parametrize("seed", range(3))
def test_three_levels_are_computed_once_in_whatever_order_and_steps_they_come(budget: int, seed: int) -> None:
    rng = random.Random(seed)
    prompts = []
    for a in range(3):
        for b in range(3):
            for c in range(3):
                prompts.append([*PROMPT[:100], *[10 + a] * 60, *[20 + b] * 40, 30 + c, 1 + rng.randrange(50)])
    rng.shuffle(prompts)
    rig = Rig(8000, max_num_seqs=32, max_num_batched_tokens=budget)
    waiting = list(prompts)
    while waiting or rig.scheduler.requests:
        for _ in range(rng.randrange(3)):
            if waiting:
                rig.submit(waiting.pop(), max_tokens=1, seed=0)
        rig.step()
    assert rig.runner.computed == distinct_prefixes(prompts)


def test_who_comes_while_the_prompt_is_computed_waits_for_it_and_goes_with_it() -> None:
    rig = Rig(8000, max_num_batched_tokens=100)
    rig.submit([*PROMPT, 7], max_tokens=1)
    for _ in range(4):
        rig.step()
    late = [rig.submit([*PROMPT, 8 + i], max_tokens=1) for i in range(20)]
    other = rig.submit([60] * 30, max_tokens=1)
    rig.run()
    assert rig.runner.computed == len(PROMPT) + 1 + 20 + 30
    assert all(rig.usage[number].cached_tokens == len(PROMPT) for number in late)
    assert (other, 0) in rig.reasons


def test_those_who_wait_for_a_prompt_go_on_when_its_request_is_cancelled() -> None:
    rig = Rig(8000, max_num_batched_tokens=100)
    first = rig.submit([*PROMPT, 7], max_tokens=1)
    for _ in range(4):
        rig.step()
    late = [rig.submit([*PROMPT, 8 + i], max_tokens=1, seed=0) for i in range(3)]
    rig.step()
    rig.scheduler.cancel(first)
    rig.run()
    # What the first one computed is still there.
    assert rig.runner.computed == len(PROMPT) + 3
    assert [rig.texts.get((n, 0), []) for n in late] == [expected([*PROMPT, 8 + i], 1, 0)[0] for i in range(3)]


def test_samples_of_one_request_compute_the_prompt_once() -> None:
    rig = Rig(8000, max_num_batched_tokens=300)
    number = rig.submit(PROMPT, max_tokens=1, n=16, seed=3)
    rig.run()
    # The last token of the prompt is computed by each sample, for its logits.
    assert rig.runner.computed == len(PROMPT) - 1 + 16
    assert rig.usage[number].prompt_tokens == len(PROMPT)


def test_namespaces_share_nothing() -> None:
    rig = Rig(8000, max_num_batched_tokens=300)
    for salt in ("a", "b", "a"):
        rig.submit(PROMPT, max_tokens=1, namespace=Namespace(salt=salt))
    rig.run()
    assert rig.runner.computed == 2 * len(PROMPT) + 1


def test_what_rows_share_is_read_once_or_by_each_and_the_tokens_are_the_same() -> None:
    texts, reads = {}, {}
    for share_from in (1, 256, 10**9):
        rig = Rig(8000, share_from=share_from)
        for i in range(6):
            rig.submit([*PROMPT[:300], 1 + i, 2], max_tokens=9, seed=i, ignore_eos=True)
        read: dict[int, int] = {}
        while rig.scheduler.requests:
            rig.step()
            read |= {s.plan.step: s.plan.span_slots.size + s.plan.private_slots.size for s in rig.scheduler.steps}
        texts[share_from], reads[share_from] = rig.texts, sum(read.values())
    assert texts[1] == texts[256] == texts[10**9]
    assert reads[256] < reads[10**9] / 3
