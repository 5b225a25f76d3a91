"""Programs in the scheduler: segments in one row, against the fake model run by hand, segment by segment."""

from __future__ import annotations

import random
from itertools import count

import numpy as np
import pytest

from radixrt.grammar import TokenRefused
from radixrt.messages import RunSegments, StepFailed
from radixrt.params import Constraint, SamplingParams
from radixrt.scheduler.among import Among
from radixrt.segments import Heal, Segment
from tests.scheduler.fakes import EOS, VOCAB, Rig, expected, next_token
from tests.scheduler.test_scheduler import idle

numbers = count(1000)


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def segment(ids: list[int], constraint: str | None = None, heal: Heal | None = None, **sampling: object) -> Segment:
    return Segment(
        request_id=next(numbers),
        ids=ints(ids),
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        constraint=None if constraint is None else Constraint(kind="regex", value=constraint),
        heal=heal,
    )


def begin(rig: Rig, segments: list[Segment], **fields: object) -> int:
    number = next(numbers)
    rig.scheduler.programs.take(RunSegments(program_id=number, keep=0, segments=segments, **fields))  # type: ignore[arg-type]
    rig.collect()
    return number


def close(rig: Rig, number: int) -> None:
    rig.scheduler.cancel(number)
    rig.collect()


def by_hand(segments: list[Segment], before: list[int]) -> tuple[list[list[int]], list[int]]:
    """Each segment's tokens, and all that stands behind the last one."""
    texts, tokens = [], list(before)
    for part in segments:
        tokens += part.ids.tolist()
        constraint = part.constraint.value if part.constraint is not None else None
        text, _ = expected(tokens, part.sampling.max_tokens or 0, part.sampling.seed or 0, constraint)
        texts.append(text)
        tokens += text
    return texts, tokens


@pytest.mark.parametrize("lookahead", [0, 1])
def test_segments_run_in_one_row_without_a_step_between_them(lookahead: int) -> None:
    rig = Rig(2000, lookahead=lookahead, max_drafts=0)
    parts = [segment([5 + i, 6, 7], max_tokens=7, seed=i, ignore_eos=True) for i in range(6)]
    number = begin(rig, parts)
    admitted = []
    steps = 0
    while rig.step():
        steps += 1
        admitted.append([row.admitted for row in rig.scheduler.rows.running])
        assert not rig.scheduler.rows.waiting
    tokens: list[int] = []
    for part in parts:
        tokens += part.ids.tolist()
        text = []
        for _ in range(7):
            text.append(next_token((*tokens, *text), part.sampling.seed or 0))
        assert rig.texts[part.request_id, 0] == text and rig.reasons[part.request_id, 0] == "length"
        tokens += text
    # What stands is computed once (a token that was planned ahead in vain is computed again), and the next step of a
    # gen's last token is the one that holds the text behind it.
    assert rig.runner.computed <= len(tokens) - 1 + lookahead * len(parts)
    assert steps <= 6 * 7 + lookahead * len(parts)
    assert {seniority for rows in admitted for seniority in rows} == {1}
    usage = rig.usage[parts[3].request_id]
    assert (usage.prompt_tokens, usage.cached_tokens) == (3 * 10 + 3, 3 * 10 - 1)  # type: ignore[attr-defined]
    close(rig, number)
    idle(rig)


def test_a_program_waits_with_its_path_locked_and_goes_on_cut_back() -> None:
    rig = Rig(60)
    first = segment([5, 6, 7, 8], max_tokens=10, ignore_eos=True, seed=1)
    number = begin(rig, [first])
    rig.run()
    text = rig.texts[first.request_id, 0]
    assert rig.scheduler.cache.tree.tokens - rig.scheduler.cache.tree.evictable >= 13
    second = segment([9], max_tokens=3, ignore_eos=True, seed=2)
    rig.scheduler.programs.take(RunSegments(program_id=number, keep=4 + 6, segments=[second]))
    rig.run()
    kept = (5, 6, 7, 8, *text[:6], 9)
    assert rig.texts[second.request_id, 0][0] == next_token(kept, 2)
    assert rig.usage[second.request_id].cached_tokens == 10  # type: ignore[attr-defined]
    # Short of slots, a waiting program lets go of what it holds.
    other = rig.submit([1 + i % 50 for i in range(40)], max_tokens=15, ignore_eos=True)
    rig.run()
    assert rig.reasons[other, 0] == "length"
    third = segment([3], max_tokens=2, ignore_eos=True, seed=2)
    rig.scheduler.programs.take(RunSegments(program_id=number, keep=-1, segments=[third]))
    rig.run()
    assert rig.reasons[third.request_id, 0] == "length"
    close(rig, number)
    idle(rig)


def test_a_stopped_row_makes_room_for_what_follows_in_the_same_event() -> None:
    rig = Rig(500)
    first = segment([5, 6], max_tokens=50, ignore_eos=True, seed=1)
    number = begin(rig, [first])
    for _ in range(8):
        rig.step()
    rig.scheduler.stop_row(first.request_id, 0, 4)
    second = segment([8, 9], max_tokens=2, ignore_eos=True, seed=2)
    rig.scheduler.programs.take(RunSegments(program_id=number, keep=2 + 3, segments=[second]))
    assert [row.request.id for row in rig.scheduler.rows.running] == [second.request_id]
    rig.run()
    text = rig.texts[first.request_id, 0]
    assert rig.usage[first.request_id].completion_tokens == 4  # type: ignore[attr-defined]
    assert rig.texts[second.request_id, 0][0] == next_token((5, 6, *text[:3], 8, 9), 2)
    close(rig, number)
    idle(rig)


@pytest.mark.parametrize("refuse", [False, True])
def test_a_healed_join_takes_the_token_that_the_model_wants(refuse: bool) -> None:
    rig = Rig(500)
    allowed = [7, 20, 21, 22, 23]
    wanted = next_token((5, 6), 3, allowed)
    assert wanted != 7
    heal = Heal(request_id=next(numbers), allowed=ints(allowed), refused=ints([wanted] if refuse else []))
    part = segment([5, 6, 7], heal=heal, max_tokens=5, seed=3, ignore_eos=True)
    after = segment([9], max_tokens=1, seed=4, ignore_eos=True)
    number = begin(rig, [part, after])
    rig.run()
    assert rig.texts[heal.request_id, 0] == [wanted]
    tokens = [5, 6, 7 if refuse else wanted]
    text = rig.texts[part.request_id, 0]
    assert len(text) == (5 if refuse else 4)
    assert text[0] == next_token(tuple(tokens), 3)
    assert rig.texts[after.request_id, 0] == [next_token((*tokens, *text, 9), 4)]
    close(rig, number)
    idle(rig)


def test_one_of_some_tokens_is_a_matcher() -> None:
    matcher = Among(frozenset([0, 31, 32, 63]), most=1)
    bitmask = np.full((2, 2), -1, dtype=np.int32)
    matcher.fill(bitmask, 1)
    words = bitmask[1].view(np.uint32)
    assert [t for t in range(64) if words[t // 32] >> (t % 32) & 1] == [0, 31, 32, 63]
    matcher.accept(32)
    assert matcher.must_stop and not matcher.may_stop
    matcher.rollback(1)
    assert not matcher.must_stop
    other = matcher.fork()
    other.accept(63)
    assert other.must_stop and not matcher.must_stop
    for each, token in ((other, 0), (matcher, 1)):
        with pytest.raises(TokenRefused):
            each.accept(token)


def test_gens_that_sample_nothing_and_many_samples_go_on_from_the_first() -> None:
    rig = Rig(2000)
    parts = [
        segment([5, 6, 7], max_tokens=0),
        segment([8], max_tokens=4, n=3, seed=5, ignore_eos=True),
        *[segment([9], max_tokens=0) for _ in range(300)],
        segment([10], max_tokens=2, seed=1, ignore_eos=True),
    ]
    number = begin(rig, parts)
    rig.run()
    text = rig.texts[parts[1].request_id, 0]
    assert len(text) == 4
    last = rig.texts[parts[-1].request_id, 0]
    assert last[0] == next_token((5, 6, 7, 8, *text, *[9] * 300, 10), 1)
    assert [rig.reasons[parts[1].request_id, i] for i in range(3)] == ["length"] * 3
    close(rig, number)
    idle(rig)


def test_a_constraint_that_is_slow_or_bad() -> None:
    rig = Rig(500)
    parts = [segment([5], max_tokens=3, seed=1, ignore_eos=True), segment([6], "slow 4", max_tokens=20, seed=2)]
    number = begin(rig, parts)
    rig.run()
    assert (parts[1].request_id, 0) not in rig.reasons
    rig.scheduler.compiler.released.add("slow 4")  # type: ignore[attr-defined]
    rig.scheduler.compiled()
    rig.run()
    before = [5, *rig.texts[parts[0].request_id, 0], 6]
    assert rig.texts[parts[1].request_id, 0] == expected(before, 20, 2, "slow 4")[0]
    bad = segment([6], "bad 4", max_tokens=20)
    rig.scheduler.programs.take(RunSegments(program_id=number, keep=-1, segments=[bad, segment([7], max_tokens=1)]))
    rig.run()
    assert "bad" in rig.errors[bad.request_id]
    close(rig, number)
    idle(rig)


def test_what_cannot_fit_is_refused_behind_what_came_before_it() -> None:
    rig = Rig(100)
    parts = [segment([5], max_tokens=3, ignore_eos=True), segment([6] * 50, max_tokens=80), segment([7], max_tokens=1)]
    number = begin(rig, parts)
    rig.run()
    assert rig.reasons[parts[0].request_id, 0] == "length"
    assert "KV pool" in rig.errors[parts[1].request_id]
    assert (parts[2].request_id, 0) not in rig.texts
    close(rig, number)
    idle(rig)


def test_a_failed_step_ends_programs_that_run_and_not_those_that_wait() -> None:
    rig = Rig(1000)
    waiting = segment([5, 6], max_tokens=3, seed=1, ignore_eos=True)
    sleeper = begin(rig, [waiting])
    rig.run()
    runs = segment([5, 6, 9], max_tokens=30, seed=1, ignore_eos=True)
    runner = begin(rig, [runs])
    rig.step()
    rig.advance()
    while rig.runner.plans:
        rig.scheduler.fail_step(StepFailed(step=rig.runner.fail(), message="boom"))
    rig.collect()
    assert "boom" in rig.errors[runs.request_id]
    assert rig.scheduler.cache.tree.tokens == 0
    close(rig, runner)
    more = segment([8], max_tokens=2, seed=1, ignore_eos=True)
    rig.scheduler.programs.take(RunSegments(program_id=sleeper, keep=-1, segments=[more]))
    rig.run()
    tokens = (5, 6, *rig.texts[waiting.request_id, 0], 8)
    assert rig.texts[more.request_id, 0][0] == next_token(tokens, 1)
    close(rig, sleeper)
    idle(rig)


def test_branches_begin_on_their_parents_path() -> None:
    rig = Rig(2000)
    trunk = segment([5] * 40, max_tokens=3, seed=1, ignore_eos=True)
    parent = begin(rig, [trunk])
    rig.run()
    computed = rig.runner.computed
    before = [5] * 40 + rig.texts[trunk.request_id, 0]
    children, parts = [], []
    for _ in range(4):
        child = next(numbers)
        rig.scheduler.programs.take(RunSegments(program_id=child, keep=len(before), segments=[], like=parent))
        children.append(child)
    close(rig, parent)  # the children hold what they share
    locked = rig.scheduler.cache.tree.tokens - rig.scheduler.cache.tree.evictable
    assert locked >= len(before) - 1
    for i, child in enumerate(children):
        parts.append(segment([9 + i], max_tokens=2, seed=i, ignore_eos=True))
        rig.scheduler.programs.take(RunSegments(program_id=child, keep=-1, segments=[parts[-1]]))
    rig.run()
    for i, part in enumerate(parts):
        assert rig.texts[part.request_id, 0][0] == next_token((*before, 9 + i), i)
    assert rig.runner.computed - computed <= 4 * 5
    for child in children:
        close(rig, child)
    idle(rig)
    orphan = segment([1], max_tokens=1)
    begin(rig, [orphan], like=parent)
    assert orphan.request_id not in rig.errors  # keep=0: nothing of the parent is wanted
    rig.scheduler.programs.take(RunSegments(program_id=next(numbers), keep=5, segments=[orphan], like=parent))
    rig.collect()
    assert "is gone" in rig.errors[orphan.request_id]


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_under_pressure(seed: int) -> None:
    """Several programs in a pool that is too small for all: each gives what it gives alone, and nothing is left."""
    rng = random.Random(seed)
    rig = Rig(
        rng.choice([160, 400, 2000]),
        lookahead=rng.choice([0, 1]),
        max_num_batched_tokens=rng.choice([7, 64]),
        max_num_seqs=rng.choice([2, 16]),
        prefix_cache=seed % 5 != 4,
    )
    programs: dict[int, list[Segment]] = {}
    open_ends: dict[int, list[Segment]] = {}
    for _ in range(8):
        parts = [
            segment(
                [1 + rng.randrange(VOCAB - 1) for _ in range(rng.randrange(1, 8))],
                rng.choice([None, None, "ok 4"]),
                max_tokens=rng.randrange(1, 9),
                seed=rng.randrange(3),
            )
            for _ in range(rng.randrange(1, 6))
        ]
        split = rng.randrange(len(parts) + 1)
        number = begin(rig, parts[:split])
        programs[number], open_ends[number] = parts, parts[split:]
    dropped = set()
    for _ in range(4000):
        moved = rig.step()
        for number, rest in list(open_ends.items()):
            if rest and rng.random() < 0.3:
                rig.scheduler.programs.take(RunSegments(program_id=number, keep=-1, segments=[rest.pop(0)]))
                moved = True
        if rng.random() < 0.01 and len(dropped) < 2:
            number = rng.choice([*programs])
            dropped.add(number)
            close(rig, number)
            open_ends.pop(number, None)
        if not moved and not any(open_ends.values()):
            break
    else:
        raise AssertionError("the programs do not come to an end")
    for number, parts in programs.items():
        if number in dropped:
            continue
        texts, _ = by_hand(parts, [])
        assert [rig.texts.get((part.request_id, 0), []) for part in parts] == texts
        close(rig, number)
    assert not rig.errors and EOS == 0
    idle(rig)
