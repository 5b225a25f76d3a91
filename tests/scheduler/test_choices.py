"""Rows that a constraint ends soon: nothing is guessed that no sample needs, and no step holds them for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from radixrt.grammar import TokenRefused
from radixrt.messages import StepPlan
from radixrt.params import Constraint
from radixrt.scheduler.drafts.ending import FIRST_CHOICE, Endings
from radixrt.scheduler.drafts.tree import TreeSource
from radixrt.scheduler.drafts.walk import useful, walk
from tests.scheduler.fakes import EvenGrammar, EvenMatcher, FakeCompiler, Rig, next_token

APART = [[10, 20, 22], [12, 30], [14, 40, 42, 44]]
"""Labels that part with their first token."""
ALIKE = [[14, 20, 22], [14, 30, 32], [10, 40, 42, 44]]


class Labels(EvenMatcher):
    """Exactly one of the labels, each in one spelling."""

    def __init__(self, labels: list[list[int]], taken: Sequence[int] = ()) -> None:
        super().__init__(0)
        self.labels = labels
        self.taken = list(taken)

    @property
    def may_stop(self) -> bool:
        return self.taken in self.labels

    @property
    def must_stop(self) -> bool:
        return self.may_stop

    def allowed(self) -> list[int]:
        at = len(self.taken)
        return sorted({label[at] for label in self.labels if label[:at] == self.taken and len(label) > at})

    def accept(self, token: int, *, guessed: bool = False) -> None:
        if token not in self.allowed():
            raise TokenRefused(f"token {token} is not allowed")
        self.taken.append(token)

    def rollback(self, count: int) -> None:
        del self.taken[len(self.taken) - count :]

    def required(self) -> int | None:
        allowed = self.allowed()
        return allowed[0] if len(allowed) == 1 else None

    def forced(self) -> list[int]:
        return []


class LabelGrammar(EvenGrammar):
    def __init__(self, labels: list[list[int]]) -> None:
        super().__init__(0)
        self.labels = labels

    def matcher(self, end_ids: Sequence[int] = (), *, any_spelling: bool = False) -> Labels:
        return Labels(self.labels)


class OneGrammar(FakeCompiler):
    """The same grammar for every request, as the compile service gives it."""

    def __init__(self, grammar: EvenGrammar) -> None:
        super().__init__()
        self.grammar = grammar

    def request(self, constraint: Constraint) -> EvenGrammar:
        return self.grammar


def classify(labels: list[list[int]], lookahead: int, **sampling: object) -> tuple[Rig, list[StepPlan], int]:
    """Forty requests, six at once, over prompts that end alike, so that the tree foretells labels; all are checked."""
    rig = Rig(4000, draft_sources=("forced", "tree"), lookahead=lookahead)
    rig.scheduler.compiler = OneGrammar(LabelGrammar(labels))
    plans: list[StepPlan] = []
    plan = rig.scheduler.plan

    def watched() -> StepPlan | None:
        made = plan()
        plans.extend([] if made is None else [made])
        return made

    rig.scheduler.plan = watched  # type: ignore[method-assign]
    prompts = {}
    for i in range(40):
        prompt = [50, i, 2, 3, 4, 5]
        prompts[rig.submit(prompt, constraint="labels 1", seed=i, max_tokens=8, **sampling)] = prompt
        if i % 6 == 5:
            rig.run()
    rig.run()
    for i, (number, prompt) in enumerate(prompts.items()):
        matcher = Labels(labels)
        while not matcher.must_stop:
            matcher.accept(next_token((*prompt, *matcher.taken), i, matcher.allowed()))
        assert (rig.texts[number, 0], rig.reasons[number, 0]) == (matcher.taken, "stop")
    assert len({tuple(text) for text in rig.texts.values()}) > 1
    return rig, plans, len(prompts)


@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_a_choice_that_one_sample_decides_takes_one_sample(lookahead: int) -> None:
    rig, plans, requests = classify(APART, lookahead)
    assert not any(plan.drafts.any() for plan in plans)
    assert rig.scheduler.drafter.proposed["tree"] == 0
    # Nobody is in a step for nothing, but for the first six, who were before it was known how they end.
    assert requests <= sum(plan.rows.size for plan in plans) <= requests + 6 * lookahead
    assert sum(plan.rows.size for plan in plans[3:]) == sum(len(plan.opens) for plan in plans[3:]) > 20


def test_of_labels_that_begin_alike_only_what_they_share_is_guessed() -> None:
    rig, plans, requests = classify(ALIKE, 1)
    lines = [int(n) for plan in plans for n in plan.drafts]
    assert max(lines) == 1
    assert rig.scheduler.drafter.accepted["tree"] > 5
    assert sum(int(plan.sample.sum()) for plan in plans) < 2 * requests


def test_where_each_token_is_sampled_guesses_reach_to_the_last_but_one() -> None:
    rig, plans, _ = classify(APART, 1, logprobs=0)
    guessed = set()
    for plan in plans:
        ends = np.cumsum(plan.new_lens)
        guessed |= {t for end, n in zip(ends, plan.drafts, strict=True) for t in plan.tokens[end - n : end].tolist()}
    assert {10, 14, 20, 40} & guessed and not {22, 30, 44} & guessed
    assert rig.scheduler.drafter.accepted["tree"] > 5


def test_a_guess_is_worth_what_is_sampled_behind_it() -> None:
    matcher = Labels(ALIKE)
    assert walk(matcher, [14, 20, 22], 0.9, 0.1, 8, jumps=True).chain == [14]
    assert walk(matcher, [10, 40, 42], 0.9, 0.1, 8, jumps=True).chain == []
    assert walk(matcher, [10, 40, 42], 0.9, 0.1, 8, jumps=False).chain == [10, 40, 42]
    assert walk(matcher, [10, 40], 0.9, 0.1, 8, jumps=False).chain == [10, 40, 42]
    assert useful(matcher, [14, 20, 22], jumps=True) == 1
    assert useful(matcher, [20, 22], [14], jumps=True) == 0
    assert useful(matcher, [20, 22], [14], jumps=False) == 1
    assert useful(matcher, [10, 40, 42, 44], jumps=False) == 3
    assert useful(matcher, [14, 99], jumps=True) == 1  # refused behind it
    assert useful(matcher, [99], jumps=True) == useful(matcher, [14], [99], jumps=True) == 0
    assert matcher.taken == []


def test_how_often_a_sample_is_the_last_is_learned_of_each_constraint() -> None:
    rig = Rig(4000, draft_sources=("forced", "tree"), max_num_seqs=4)
    labels, record = LabelGrammar(APART), EvenGrammar(20)
    endings: Endings = rig.scheduler.drafter.endings
    odds = {}
    for grammar in (labels, record):
        rig.scheduler.compiler = OneGrammar(grammar)
        for i in range(12):
            number = rig.submit([50, i, 2], constraint="any 1", seed=i, max_tokens=60)
        row = rig.scheduler.requests[number].rows[0]
        assert endings.odds(row) == 0.0  # no choice by name, and none has ended
        rig.run()
        odds[grammar] = endings.odds(row)
        row.request.constraint = Constraint(kind="choice", choices=("a", "b"))
        assert endings.odds(row) > odds[grammar]
    assert odds[labels] > 0.9 and 0.01 < odds[record] < 0.1
    fresh = LabelGrammar(ALIKE)
    row.request.grammar = fresh
    assert endings.odds(row) == FIRST_CHOICE
    row.request.grammar = None
    assert endings.odds(row) == 0.0


def test_no_guess_is_looked_for_where_rows_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    propose = TreeSource.propose
    monkeypatch.setattr(TreeSource, "propose", lambda self, row, most: asked.append(1) or propose(self, row, most))
    classify(APART, 1)
    assert 0 < len(asked) < 20  # of forty: until it is known


def test_masks_of_labels() -> None:
    """The fake itself: bits are exactly the tokens that can follow."""
    matcher = Labels(APART, [14])
    mask = np.zeros((1, 2), dtype=np.int32)
    matcher.fill(mask, 0)
    assert np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0].tolist() == [40]
