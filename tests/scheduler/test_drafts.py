"""Guesses: where they come from, when they pay, and that they change nothing but the number of steps."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable

import pytest

from radixrt.messages import Namespace, StepPlan
from radixrt.params import SamplingParams
from radixrt.scheduler.drafts.cost import StepCost
from radixrt.scheduler.drafts.drafter import Drafter
from radixrt.scheduler.drafts.guess import Branch, Guess
from radixrt.scheduler.drafts.index import CANDIDATES, LONGEST, ORDER, SuffixIndex
from radixrt.scheduler.drafts.rates import best_length
from radixrt.scheduler.drafts.tree import TreeSource
from radixrt.scheduler.drafts.walk import walk
from radixrt.scheduler.requests import Alone, Limits, Request, Row, State
from tests.scheduler.fakes import EOS, VOCAB, EvenMatcher, Rig, expected


def row_of(tokens: list[int], namespace: Namespace | Alone, **sampling: object) -> Row:
    request = Request(
        id=1,
        prompt=array("i", tokens),
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        constraint=None,
        namespace=namespace,
        priority=0,
        arrived=0.0,
        max_tokens=100,
    )
    return request.rows[0]


def feed(source: TreeSource, row: Row, tokens: list[int]) -> None:
    for token in tokens:
        row.tokens.append(token)
        source.learn(row, token)


# --- the index ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_longest_suffix_is_found(seed: int) -> None:
    rng = random.Random(seed)
    index, sequences, checked = SuffixIndex(), [], 0
    for _ in range(30):
        tokens = [rng.randrange(6) for _ in range(rng.randrange(1, 40))]
        stretch = index.open(tokens[:5])
        for token in tokens[5:]:
            index.extend(stretch, [token])
        sequences.append(tokens)
        text = [rng.randrange(6) for _ in range(8)] + rng.choice(sequences)[: rng.randrange(40)]
        ends = [
            (common, known[at])
            for known in sequences
            for at in range(ORDER, len(known))
            if (common := common_suffix(known[:at], text)) >= ORDER
        ]
        found = index.find(text)
        if not ends:
            assert found is None
        elif len(ends) <= CANDIDATES // 2:
            assert found is not None
            longest = min(max(common for common, _ in ends), LONGEST)
            assert found.length == longest
            nexts = sorted(token for common, token in ends if min(common, LONGEST) == longest)
            assert sorted(stretch.tokens[at] for stretch, at in found.places) == nexts
            checked += 1
    assert checked > 5


def common_suffix(known: list[int], text: list[int]) -> int:
    length = 0
    while length < min(len(known), len(text)) and known[-1 - length] == text[-1 - length]:
        length += 1
    return length


def test_the_index_keeps_to_its_bound_and_forgets_the_oldest() -> None:
    rng = random.Random(0)
    source = TreeSource(most_tokens=500)
    rows = []
    for i in range(200):
        row = row_of([rng.randrange(50) for _ in range(40)], Namespace(salt=str(i % 3)))
        source.admitted(row)
        feed(source, row, [rng.randrange(50) for _ in range(20)])
        rows.append(row)
        if len(rows) > 3:
            source.ended(rows.pop(0))
        indexes = source._indexes.values()
        assert source.tokens == sum(index.tokens for index in indexes) <= 500
        assert all(index.keys <= index.tokens for index in indexes)
    assert source.tokens > 300
    fresh, old = row_of(rows[-1].tokens[-12:-4].tolist(), rows[-1].request.namespace), row_of([1, 2, 3], Namespace())
    source.admitted(fresh)
    assert source.propose(fresh, 4).chain == rows[-1].tokens[-4:].tolist()
    source.admitted(old)
    for row in [*rows, fresh, old]:
        source.ended(row)
    freed = source.tokens
    one = source.forget(lambda namespace: namespace == Namespace(salt="1"))
    assert 0 < one < freed and Namespace(salt="1") not in source._indexes and Namespace(salt="2") in source._indexes
    assert source.forget() == freed - one > 0
    assert source.tokens == 0 and not source._indexes


def test_one_row_longer_than_the_bound_is_dropped_and_goes_on() -> None:
    source = TreeSource(most_tokens=64)
    row = row_of([1, 2, 3, 4], Namespace())
    source.admitted(row)
    feed(source, row, [1, 2, 3, 4] * 50)
    assert source.tokens <= 64
    source.ended(row)


def test_a_namespace_never_draws_on_another() -> None:
    source = TreeSource()
    secret = [7, 8, 9, 10, 11, 12]
    for namespace in (Namespace(tenant="a"), Namespace(tenant="a", salt="s"), Namespace(model="m"), Alone(5)):
        owner = row_of(secret, namespace)
        source.admitted(owner)
        feed(source, owner, [13, 14])
    for namespace in (Namespace(tenant="b"), Namespace(salt="s"), Namespace(), Alone(6)):
        other = row_of(secret, namespace)
        source.admitted(other)
        assert source.propose(other, 8).chain == []
        assert source.expect(other) == (0.0, 0)
    same = row_of(secret, Namespace(tenant="a"))
    source.admitted(same)
    assert source.propose(same, 8).chain == [13, 14]


def test_what_shares_nothing_leaves_nothing() -> None:
    source = TreeSource()
    row = row_of([1, 2, 3] * 5, Alone(1))
    source.admitted(row)
    assert source.propose(row, 4).chain == [1, 2, 3]
    row.move(State.RUNNING)
    row.move(State.FINISHED)
    source.ended(row)
    assert source.tokens == 0 and not source._indexes


def test_continuations_that_differ_become_branches() -> None:
    source = TreeSource()
    for ending in ([20, 21, 22], [20, 21, 23], [30, 31, 32]):
        row = row_of([1, 2, 3, 4, *ending], Namespace())
        source.admitted(row)
        source.ended(row)
    row = row_of([9, 1, 2, 3, 4], Namespace())
    source.admitted(row)
    guess = source.propose(row, 8)
    assert guess.chain[:2] == [20, 21]
    other = {22: 23, 23: 22}[guess.chain[2]]
    assert {(branch.fork, branch.tokens[0]) for branch in guess.branches} == {(0, 30), (2, other)}
    feed(source, row, [30])
    assert source.propose(row, 8).chain == [31, 32]


def test_cutting_takes_branches_first() -> None:
    guess = Guess("tree", [1, 2, 3], 0.5, (Branch(0, [4, 5], 0.3), Branch(1, [6], 0.2)))
    assert guess.size == 6
    assert [guess.cut(n).size for n in range(7)] == [0, 1, 2, 3, 4, 5, 6]
    assert guess.cut(4).branches == (Branch(1, [6], 0.2),)
    assert guess.cut(2).chain == [1, 2]


# --- when it pays ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odds", [0.05, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("price", [0.0, 0.1, 0.3, 0.7, 1.0])
def test_the_length_is_the_best_one(odds: float, price: float) -> None:
    worth = [sum(odds**i for i in range(k + 1)) / (1 + k * price) for k in range(9)]
    assert worth[best_length(odds, price, 8)] == pytest.approx(max(worth))
    assert best_length(odds, 1.0, 8) == 0
    assert best_length(1.0, 0.5, 8) == 8


def test_the_cost_of_a_step_is_learned() -> None:
    cost = StepCost()
    assert cost.price(1) < 0.2 and cost.price(32) > 0.7
    rng = random.Random(0)
    for _ in range(300):
        tokens = rng.randrange(1, 40)
        cost.measured(tokens, 0.010 + 0.0001 * tokens)
        cost.measured(500, 9.9)  # prefill does not count
        cost.measured(tokens, 0.0)  # nor what was not measured
    a, b = cost.line()
    assert a == pytest.approx(0.010, rel=0.05) and b == pytest.approx(0.0001, rel=0.1)
    assert cost.price(32) == pytest.approx(0.0032 / 0.0132, rel=0.1)
    cost.drafted(4, 0.008)
    assert cost.draft_price(1) == pytest.approx(0.002 / 0.0101, rel=0.1)


def test_a_wide_batch_does_not_guess() -> None:
    limits = Limits(context_length=1000, vocab_size=VOCAB, eos_token_ids=(EOS,), draft_sources=("tree",))
    drafter = Drafter.of(limits, 1000)
    row = row_of([1, 2, 3, 4] * 6, Namespace())
    drafter.admitted(row)
    assert drafter.propose(row, 8, 1).size > 0
    for tokens in (1, 4, 16, 40) * 50:
        drafter.cost.measured(tokens, 0.001 * tokens)  # rows cost as much as steps: nothing is to be saved
    assert drafter.propose(row, 8, 1).size == drafter.propose(row, 8, 16).size == 0
    for tokens in (1, 4, 16, 40) * 50:
        drafter.cost.measured(tokens, 0.1)  # rows cost nothing
    assert drafter.propose(row, 8, 16).size > 0
    drafter.limits = Limits(context_length=9, vocab_size=9, eos_token_ids=(EOS,), max_draft_rows=4)
    assert drafter.propose(row, 8, 4).size > 0 and drafter.propose(row, 8, 5).size == 0


def test_no_guess_goes_past_an_end() -> None:
    limits = Limits(context_length=1000, vocab_size=VOCAB, eos_token_ids=(EOS,), draft_sources=("tree",))
    drafter = Drafter.of(limits, 1000)
    for stops, wanted in (((), [1, 2, 3, 4, 5]), ((4,), [1, 2, 3]), ((1,), [])):
        row = row_of([1, 2, 3, 4, 5, EOS, 7, 1, 2, 3, 4, 5, EOS, 7], Namespace(salt=str(stops)), stop_token_ids=stops)
        drafter.admitted(row)
        drafter.tree._acceptance.add(row, 400, 400, 2)  # type: ignore[union-attr]
        assert drafter.propose(row, 8, 1).chain == wanted


# --- whole schedulers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sources", [("tree",), ("model",), ("tree", "model"), ("forced", "tree", "model")])
@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_guesses_spare_steps_and_change_nothing(sources: tuple[str, ...], lookahead: int) -> None:
    steps = {}
    for most in (0, 8):
        rig = Rig(4000, max_drafts=most, draft_sources=sources, lookahead=lookahead)
        numbers = [rig.submit([7, i], max_tokens=200, seed=i, ignore_eos=True) for i in range(3)]
        held = rig.submit([7, 1], constraint="even 30", max_tokens=60, seed=4)
        rig.run()
        assert (rig.texts[held, 0], rig.reasons[held, 0]) == expected([7, 1], 60, 4, "even 30")
        assert all(len(rig.texts[number, 0]) == 200 for number in numbers)
        steps[most] = (rig.scheduler.stats.steps, [rig.texts[number, 0] for number in numbers])
        drafter = rig.scheduler.drafter
        if most:
            assert all(drafter.accepted[source] > 0 for source in sources)
            assert all(drafter.accepted[source] <= drafter.proposed[source] for source in sources)
            assert sum(u.draft_tokens for u in rig.usage.values()) == sum(drafter.proposed.values())
            assert sum(u.accepted_draft_tokens for u in rig.usage.values()) == sum(drafter.accepted.values())
            # Every guess that held spared its request a step.
            assert rig.runner.branches > 0 or "tree" not in sources
        else:
            assert not drafter.proposed
        assert rig.scheduler.cache.available == rig.scheduler.cache.capacity
    assert steps[8][1] == steps[0][1]
    assert steps[8][0] < 0.8 * steps[0][0]


@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_what_is_certain_takes_no_step_and_no_line(lookahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that the constraint requires come without samples; with log-probabilities they are sampled, as guesses."""
    monkeypatch.setattr(EvenMatcher, "required", lambda self: one[0] if len(one := self.allowed()) == 1 else None)
    monkeypatch.setattr(EvenMatcher, "forced", lambda self: [])
    samples, steps = {}, {}
    for most, logprobs in ((0, None), (8, None), (8, 1)):
        rig = Rig(4000, max_drafts=most, draft_sources=("forced",), lookahead=lookahead)
        number = rig.submit([7, 1], constraint="even 60", max_tokens=50, seed=4, logprobs=logprobs)
        plans: list[StepPlan] = []
        plan = rig.scheduler.plan

        def watched(plan: Callable[[], StepPlan | None] = plan, plans: list[StepPlan] = plans) -> StepPlan | None:
            made = plan()
            plans += [] if made is None else [made]
            return made

        monkeypatch.setattr(rig.scheduler, "plan", watched)
        rig.run()
        assert (rig.texts[number, 0], rig.reasons[number, 0]) == expected([7, 1], 50, 4, "even 60")
        assert not any(made.drafts.any() for made in plans)
        samples[most, logprobs] = sum(int(made.sample.sum()) for made in plans)
        steps[most, logprobs] = rig.scheduler.stats.steps
        held = rig.scheduler.drafter.accepted.get("forced", 0)
        # Three tokens of five are certain, and so is the end of the text before its last choice.
        assert held == (30 if most and logprobs is None else 0)
    assert samples[8, None] <= samples[0, None] - 30 + 10 * lookahead
    assert steps[8, None] < steps[0, None]
    assert samples[8, 1] == samples[0, None]


def test_a_guess_goes_along_its_constraint() -> None:
    matcher = EvenMatcher(30)  # any even token, three that are certain, any even token, ...
    assert [matcher.required()] == [None]
    certain = [4, 6, 8]
    for jumps in (False, True):
        assert walk(matcher, [2, 4, 6, 8, 10], 0.9, 0.1, 8, jumps=jumps).chain == [2, *certain, 10]
        assert walk(matcher, [2], 0.9, 0.1, 8, jumps=jumps).chain == [2, *certain]
        other = walk(matcher, [2, 60, 62], 0.9, 0.1, 8, jumps=jumps)
        assert (other.chain, other.own) == ([2, *certain], 1)  # what is required stands in for the guess
        assert walk(matcher, [3, 4], 0.9, 0.1, 8, jumps=jumps).chain == []  # refused
        assert walk(matcher, [2, 4], 0.4, 0.5, 8, jumps=jumps).chain == []  # it does not pay
    assert walk(matcher, [2, 4, 6, 8, 10], 0.9, 0.1, 2, jumps=False).chain == [2, 4]
    assert walk(matcher, [2, 4, 6, 8, 10], 0.9, 0.1, 2, jumps=True).chain == []  # what it leads to is certain anyway
    assert matcher.seen == 0


def test_a_model_that_always_errs_is_asked_less_and_less() -> None:
    rig = Rig(4000, draft_sources=("model",))
    rig.runner.slips = 1
    number = rig.submit([7, 1], max_tokens=500, seed=3, ignore_eos=True)
    rig.run()
    assert len(rig.texts[number, 0]) == 500
    assert rig.scheduler.drafter.accepted == {"model": 0}
    assert 0 < rig.scheduler.drafter.proposed["model"] < 40


def test_a_tree_that_always_errs_is_not_followed() -> None:
    limits = Limits(context_length=10_000, vocab_size=1 << 20, eos_token_ids=(EOS,), draft_sources=("tree",))
    drafter = Drafter.of(limits, 1 << 18)
    row = row_of([1, 2, 3], Namespace())
    row.request.max_tokens = 9000
    drafter.admitted(row)
    guessed = []
    for i in range(400):
        for token in (1, 2, 3):  # known words, each time before a new one
            row.tokens.append(token)
            drafter.learn(row, token)
        guessed.append(drafter.propose(row, 8, 4).size)
        row.tokens.append(100 + i)
        drafter.learn(row, 100 + i)
    assert sum(guessed[:10]) > 0
    assert sum(guessed[50:]) == 0
    # It recovers, though nothing was verified meanwhile: what it foretells is compared all the time.
    for _ in range(30):
        for token in (1, 2, 3, 4, 5, 6):
            row.tokens.append(token)
            drafter.learn(row, token)
            drafter.propose(row, 8, 4)
    assert drafter.propose(row, 8, 4).size > 0
