"""Steps over a model whose every answer can be worked out from the tokens alone."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from radixrt.messages import RowOpen, ScoreSpec, StepMasks, StepResult
from radixrt.runner.randoms import uniforms
from radixrt.runner.rows import PlanError
from radixrt.runner.step import Stepper

from .fakes import FakeModel, plan
from .reference import kept_probabilities, near_an_edge, token_at

V = 64


@pytest.fixture
def model() -> FakeModel:
    return FakeModel(V)


def make_stepper(model: FakeModel, vocabulary: int = V, slots: int = 200) -> Stepper:
    kv = torch.zeros(1, 2, 1, slots, 2)
    return Stepper(model, kv, vocab_size=V, vocabulary=vocabulary, context_length=512)


@pytest.fixture
def stepper(model: FakeModel) -> Stepper:
    return make_stepper(model)


def no_masks() -> StepMasks:
    raise AssertionError("nobody is masked")


def mask_of(*allowed: list[int]) -> np.ndarray:
    bits = np.zeros((len(allowed), V), np.uint8)
    for line, ids in zip(bits, allowed, strict=True):
        line[list(ids)] = 1
    return np.packbits(bits, axis=-1, bitorder="little").view(np.int32)


def decode(stepper: Stepper, prompt: list[int], count: int, opened: RowOpen) -> list[int]:
    """Tokens of one row alone: the prompt, then steps that ask for the last token."""
    n = len(prompt)
    entry = {"row": opened.row, "tokens": prompt, "at": 0, "slots": range(n)}
    out = [int(stepper.run(plan(0, [entry], opens=[opened]), no_masks).tokens[0])]
    for i in range(1, count):
        entry = {"row": opened.row, "tokens": [-1], "at": n + i - 1, "slots": [n + i - 1], "private": range(n + i - 1)}
        out.append(int(stepper.run(plan(i, [entry]), no_masks).tokens[0]))
    return out


def test_prefill_and_decode_of_one_row(model, stepper):
    assert decode(stepper, [5, 6, 7], 12, RowOpen(row=3, temperature=0.0)) == model.greedy([5, 6, 7], 12)


def test_rows_share_spans_chunks_and_steps(model, stepper):
    """A shared prefix written once, read by two rows; one of them prefills in chunks while the other decodes."""
    prefix, a, b = [1, 2, 3, 4], [10], [20, 21, 22]
    greedy = {"temperature": 0.0}
    first = stepper.run(
        plan(
            0,
            [
                {"row": 0, "tokens": prefix + a, "at": 0, "slots": [9, 8, 7, 6, 50]},
                # the prefix is written by row 0 in this very step
                {"row": 1, "tokens": b[:1], "at": 4, "slots": [60], "sample": False},
            ],
            opens=[RowOpen(row=0, **greedy), RowOpen(row=1, **greedy)],
            spans=[([9, 8, 7, 6], 1, 2)],
        ),
        no_masks,
    )
    wanted_a, wanted_b = model.greedy(prefix + a, 3), model.greedy(prefix + b, 2)
    assert first.tokens.tolist() == wanted_a[:1]
    second = stepper.run(
        plan(
            1,
            [
                {"row": 0, "tokens": [-1], "at": 5, "slots": [51], "private": [50]},
                {"row": 1, "tokens": b[1:], "at": 5, "slots": [61, 62], "private": [60]},
            ],
            spans=[([9, 8, 7, 6], 0, 2)],
        ),
        no_masks,
    )
    assert second.tokens.tolist() == [wanted_a[1], wanted_b[0]]
    third = stepper.run(
        plan(
            2,
            [
                {"row": 1, "tokens": [-1], "at": 7, "slots": [63], "private": [60, 61, 62]},
                {"row": 0, "tokens": [-1], "at": 6, "slots": [52], "private": [50, 51]},
            ],
            spans=[([9, 8, 7, 6], 0, 2)],
        ),
        no_masks,
    )
    assert third.tokens.tolist() == [wanted_b[1], wanted_a[2]]


def test_a_step_that_samples_nothing(stepper):
    entry = {"row": 0, "tokens": [1, 2], "at": 0, "slots": [0, 1], "sample": False}
    result = stepper.run(plan(7, [entry], opens=[RowOpen(row=0, logprobs=3)]), no_masks)
    assert result.step == 7
    assert result.tokens.tolist() == []
    assert result.top_ids.shape[0] == 0


def test_random_tokens_depend_on_seed_and_position_alone(model, stepper):
    prompt = [9, 8, 7, 6]
    opened = RowOpen(row=0, temperature=1.3, top_p=0.9, seed=-5)
    alone = decode(stepper, prompt, 8, opened)
    tokens = list(prompt)
    for token in alone:
        u = uniforms(np.array([2**64 - 5], np.uint64), np.array([len(tokens)]))[0]
        chances = kept_probabilities(model.logits_after(tokens), 1.3, 0, 0.9)
        assert near_an_edge(chances, u) or token == token_at(chances, u)
        tokens.append(token)
    # In company, under another row id, re-opened in the middle: the same.
    for i in range(8):
        known = prompt + alone[:i]
        n = len(known)
        entries = [
            {"row": 100 + i, "tokens": [i, 3], "at": 0, "slots": [100, 101]},
            {"row": 200 + i, "tokens": known, "at": 0, "slots": range(n)},
        ]
        opens = [RowOpen(row=100 + i, seed=i), RowOpen(row=200 + i, temperature=1.3, top_p=0.9, seed=-5)]
        assert stepper.run(plan(i, entries, opens=opens), no_masks).tokens[1] == alone[i]


def test_logprobs_are_the_models_own(model, stepper):
    prompt = [5, 4]
    logits = model.logits_after(prompt).astype(np.float64)
    own = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    banned = [int(i) for i in np.argsort(-logits)[:3]]
    entries = [
        {"row": 0, "tokens": prompt, "at": 0, "slots": [0, 1]},
        {"row": 1, "tokens": prompt, "at": 0, "slots": [2, 3]},
        {"row": 2, "tokens": prompt, "at": 0, "slots": [4, 5]},
    ]
    opens = [
        RowOpen(row=0, temperature=0.0, logprobs=2, suppress_ids=banned),
        RowOpen(row=1, temperature=0.0),
        RowOpen(row=2, temperature=0.0, logprobs=5, bias_ids=[60], bias=[100.0], frequency_penalty=2.0),
    ]
    result = stepper.run(plan(0, entries, opens=opens), no_masks)
    order = np.argsort(-logits)
    assert result.tokens.tolist() == [order[3], order[0], 60]
    assert result.top_ids.shape == (3, 5)
    np.testing.assert_allclose(result.logprobs[[0, 2]], own[[order[3], 60]], atol=1e-5)
    assert result.top_ids[0, :2].tolist() == order[:2].tolist()
    assert result.top_ids[2].tolist() == order[:5].tolist()
    np.testing.assert_allclose(result.top_logprobs[2], own[order[:5]], atol=1e-5)


def test_scores_of_prompt_tokens(model, stepper):
    text = [5, 9, 2, 2, 30]
    entries = [
        {"row": 1, "tokens": [7], "at": 0, "slots": [90]},
        {"row": 0, "tokens": text, "at": 0, "slots": range(5), "sample": False},
    ]
    spec = ScoreSpec(row_index=1, first=1, targets=np.array(text[2:], np.int32), top=2)
    result = stepper.run(plan(0, entries, opens=[RowOpen(row=0), RowOpen(row=1)], scores=[spec]), no_masks)
    (score,) = result.scores
    for i, target in enumerate(text[2:]):
        logits = model.logits_after(text[: i + 2]).astype(np.float64)
        own = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert score.logprobs[i] == pytest.approx(own[target], abs=1e-4)
        assert score.top_ids[i].tolist() == np.argsort(-own)[:2].tolist()


def test_penalties_follow_what_was_sampled_also_ahead_of_the_scheduler(model, stepper):
    opened = RowOpen(row=0, temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0, repetition_penalty=1.5,
                     prompt_ids=np.array([3, 4], np.int32))  # fmt: skip
    got = decode(stepper, [3, 4], 20, opened)
    tokens = [3, 4]
    for token in got:
        logits = model.logits_after(tokens).copy()
        for seen in set(tokens):
            times = tokens[2:].count(seen)
            logits[seen] = logits[seen] / 1.5 if logits[seen] > 0 else logits[seen] * 1.5
            logits[seen] -= 2.0 * times + 2.0 * (times > 0)
        assert token == logits.argmax()
        tokens.append(token)
    # After a retraction the row is opened again with its tokens, and goes on as if nothing had happened.
    half = got[:10]
    again = RowOpen(row=0, temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0, repetition_penalty=1.5,
                    prompt_ids=np.array([3, 4], np.int32), output_ids=np.array(half, np.int32))  # fmt: skip
    assert decode(stepper, [3, 4, *half], 10, again) == got[10:]


def test_end_tokens_wait_for_the_minimum_length(model, stepper):
    best = model.greedy([5, 6], 1)[0]
    second = int(np.argsort(-model.logits_after([5, 6]))[1])
    for least, expected in ((3, second), (2, best)):
        # the sampled token's position is 2: two tokens stand before it
        opened = RowOpen(row=0, temperature=0.0, min_length=least, end_ids=[best])
        assert decode(stepper, [5, 6], 1, opened) == [expected]


def test_ids_that_the_tokenizer_lacks_are_never_sampled(model):
    best = model.greedy([5, 6], 1)[0]
    stepper = make_stepper(model, vocabulary=best)
    got = decode(stepper, [5, 6], 1, RowOpen(row=0, temperature=0.0, bias_ids=[best, V + 9], bias=[100.0, 100.0]))
    assert got == [int(model.logits_after([5, 6])[:best].argmax())]


def test_masks_bind_their_rows_and_come_last(model, stepper):
    entries = [{"row": r, "tokens": [r, 5], "at": 0, "slots": [2 * r, 2 * r + 1]} for r in range(4)]
    entries[1]["sample"] = False
    opens = [RowOpen(row=r, temperature=0.0, bias_ids=[7], bias=[100.0], logprobs=0) for r in range(4)]
    asked = []

    def masks() -> StepMasks:
        asked.append(model.forwards)
        return StepMasks(step=0, bitmask=mask_of([11], []))

    result = stepper.run(plan(0, entries, opens=opens, masked=[2, 3]), masks)
    assert result.tokens.tolist() == [7, 11, -1]
    assert np.isfinite(result.logprobs).all()
    assert (result.logprobs <= 0).all()
    assert asked == [1]  # only after the forward pass


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lines_of_a_row_with_guesses_are_what_it_samples_without(model, stepper, temperature):
    """Right guesses, then a wrong one: each line is the token that one step at a time gives behind the same tokens."""
    opened = RowOpen(row=0, temperature=temperature, seed=5, logprobs=1)
    alone = decode(make_stepper(model), [5, 6], 4, opened)
    wrong = (alone[2] + 1) % V
    entries = [
        {"row": 1, "tokens": [9, 9], "at": 0, "slots": [30, 31]},
        {"row": 0, "tokens": [5, 6, alone[0], alone[1], wrong], "at": 0, "slots": [0, 1, 2, 3, 4], "drafts": 3},
        {"row": 2, "tokens": [8], "at": 0, "slots": [40], "sample": False},
    ]
    opens = [opened, RowOpen(row=1, temperature=0.0), RowOpen(row=2)]
    masks = mask_of(list(range(V)), list(range(V)), [3], list(range(V)))
    result = stepper.run(plan(0, entries, opens=opens), no_masks)
    assert result.tokens.tolist()[:4] == [*model.greedy([9, 9], 1), *alone[:3]]
    assert len(result.tokens) == 5
    again = make_stepper(model).run(plan(0, entries, opens=opens, masked=[1]), lambda: StepMasks(step=0, bitmask=masks))
    assert again.tokens.tolist()[:4] == [*model.greedy([9, 9], 1), alone[0], alone[1], 3]
    assert result.logprobs[1:4].max() <= 0


@pytest.mark.parametrize(
    ("drafts", "sample", "words"), [(2, True, "fewer"), (-1, True, "fewer"), (1, False, "not sampled")]
)
def test_guesses_must_fit_their_row(stepper, drafts, sample, words):
    entry = {"row": 0, "tokens": [5, 6], "at": 0, "slots": [0, 1], "drafts": drafts, "sample": sample}
    with pytest.raises(PlanError, match=words):
        stepper.run(plan(0, [entry], opens=[RowOpen(row=0)]), no_masks)


def test_a_dead_row_goes_on_dead_and_its_neighbour_alive(model, stepper):
    entries = [{"row": r, "tokens": [r, 5], "at": 0, "slots": [2 * r, 2 * r + 1]} for r in range(2)]
    opens = [RowOpen(row=r, temperature=0.0) for r in range(2)]
    stepper.run(plan(0, entries, opens=opens, masked=[0]), lambda: StepMasks(step=0, bitmask=mask_of([])))
    entries = [{"row": r, "tokens": [-1], "at": 2, "slots": [50 + r], "private": [2 * r, 2 * r + 1]} for r in range(2)]
    result = stepper.run(plan(1, entries), no_masks)
    assert result.tokens.tolist() == [-1, model.greedy([1, 5], 2)[1]]


def test_a_failed_step_loses_its_tokens_and_nothing_else(model, stepper):
    prompt = {"row": 0, "tokens": [1, 2], "at": 0, "slots": [0, 1]}
    stepper.run(plan(0, [prompt], opens=[RowOpen(row=0, temperature=0.0)]), no_masks)
    model.fail = True
    step = {"row": 0, "tokens": [-1], "at": 2, "slots": [2], "private": [0, 1]}
    with pytest.raises(RuntimeError):
        stepper.run(plan(1, [step], opens=[RowOpen(row=5, temperature=0.0)], closes=[]), no_masks)
    model.fail = False
    ahead = [
        {"row": 0, "tokens": [-1], "at": 3, "slots": [3], "private": [0, 1, 2]},
        {"row": 5, "tokens": [9], "at": 0, "slots": [20]},  # opened by the step that failed
    ]
    assert stepper.run(plan(2, ahead), no_masks).tokens.tolist() == [-1, model.greedy([9], 1)[0]]


def test_a_closed_row_is_unknown_and_its_id_free_again(model, stepper):
    entry = {"row": 0, "tokens": [1], "at": 0, "slots": [0]}
    stepper.run(plan(0, [entry], opens=[RowOpen(row=0, temperature=0.0, suppress_ids=[1])]), no_masks)
    with pytest.raises(PlanError, match="not open"):
        stepper.run(plan(1, [entry], closes=[0]), no_masks)
    again = plan(2, [entry], closes=[0, 77], opens=[RowOpen(row=0, temperature=0.0)])
    assert stepper.run(again, no_masks).tokens.tolist() == model.greedy([1], 1)
    assert len(stepper.rows) == 1


def good() -> dict:
    return {
        "step": 0,
        "entries": [
            {"row": 0, "tokens": [1, 2], "at": 4, "slots": [10, 11], "private": [4, 5]},
            {"row": 1, "tokens": [3], "at": 4, "slots": [12], "sample": False},
        ],
        "spans": [([0, 1], 0, 2)],
    }


def test_rows_without_an_id_are_scored_at_the_places_that_are_asked_for(model, stepper):
    """A trie of two branches under a prompt that is written in the same step; one place predicts two tokens."""
    answer = stepper.run(
        plan(
            0,
            [
                {"row": -1, "tokens": [5, 6], "at": 0, "slots": [0, 1], "sample": False},
                {"row": -1, "tokens": [7], "at": 2, "slots": [2], "private": [0, 1], "sample": False},
                {"row": -1, "tokens": [8], "at": 2, "slots": [3], "private": [0, 1], "sample": False},
            ],
            scores=[
                ScoreSpec(
                    row_index=0, first=0, targets=np.array([7, 8, 9], np.int32), at=np.array([1, 1, 1], np.int32)
                ),
                ScoreSpec(row_index=2, first=0, targets=np.array([3], np.int32), at=np.array([0], np.int32)),
            ],
        ),
        no_masks,
    )
    alone = [
        stepper.run(
            plan(
                1 + i,
                [{"row": 0, "tokens": ids, "at": 0, "slots": range(10, 10 + len(ids)), "sample": False}],
                opens=[RowOpen(row=0)], closes=[0],
                scores=[ScoreSpec(row_index=0, first=len(ids) - 1, targets=np.array([target], np.int32))],
            ),
            no_masks,
        ).scores[0].logprobs[0]
        for i, (ids, target) in enumerate([([5, 6], 7), ([5, 6], 8), ([5, 6], 9), ([5, 6, 8], 3)])
    ]  # fmt: skip
    assert [*answer.scores[0].logprobs, *answer.scores[1].logprobs] == pytest.approx(alone, abs=1e-6)
    assert len(set(alone)) == 4


BROKEN = {
    "rows: unknown": {"rows": [0, 9]},
    "rows: twice": {"rows": [0, 0]},
    "rows: negative": {"rows": [0, -2]},
    "sample: of a row without an id": {"rows": [-1, 1]},
    "tokens: the last one of a row without an id": {"rows": [0, -1], "tokens": [1, 2, -1]},
    "rows: far": {"rows": [0, 2**31 - 1]},
    "rows: empty": {"rows": []},
    "new_lens: zero": {"new_lens": [3, 0]},
    "new_lens: sum": {"new_lens": [2, 2]},
    "new_lens: short": {"new_lens": [3]},
    "tokens: too large": {"tokens": [1, V, 3]},
    "tokens: too small": {"tokens": [1, -2, 3]},
    "tokens: nothing sampled yet": {"tokens": [-1, 2, 3]},
    "positions: too large": {"positions": [4, 512, 4]},
    "positions: negative": {"positions": [-1, 5, 4]},
    "positions: short": {"positions": [4, 5]},
    "slots: outside": {"slots": [10, 200, 12]},
    "slots: negative": {"slots": [10, -1, 12]},
    "slots: twice": {"slots": [10, 10, 12]},
    "private_lens: sum": {"private_lens": [1, 0]},
    "private_lens: negative": {"private_lens": [3, -1]},
    "private_slots: outside": {"private_slots": [4, 200]},
    "span_slots: outside": {"span_slots": [0, 999]},
    "spans: slots": {"spans": [[1, 2, 0, 2]]},
    "spans: rows": {"spans": [[0, 2, 0, 3]]},
    "spans: empty range": {"spans": [[0, 2, 1, 1]]},
    "spans: negative": {"spans": [[-1, 2, 0, 1]]},
    "sample: short": {"sample": np.ones(1, np.uint8)},
    "masked: not sampled": {"masked": [1]},
    "masked: outside": {"masked": [2]},
    "masked: twice": {"masked": [0, 0]},
    "scores: row": {"scores": [ScoreSpec(row_index=2, first=0, targets=np.array([1], np.int32))]},
    "scores: beyond": {"scores": [ScoreSpec(row_index=1, first=0, targets=np.array([1, 2], np.int32))]},
    "scores: place": {
        "scores": [
            ScoreSpec(row_index=0, first=1, targets=np.array([1, 2], np.int32), at=np.array([0, 1], np.int32)),
        ]
    },
    "scores: places": {
        "scores": [ScoreSpec(row_index=0, first=0, targets=np.array([1], np.int32), at=np.array([0, 1], np.int32))]
    },
    "scores: target": {"scores": [ScoreSpec(row_index=1, first=0, targets=np.array([V], np.int32))]},
    "scores: top": {"scores": [ScoreSpec(row_index=1, first=0, targets=np.array([1], np.int32), top=V + 1)]},
    "slots: two-dimensional": {"slots": np.zeros((3, 1), np.int32)},
    "tokens: floats": {"tokens": np.zeros(3, np.float32)},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_plan_is_refused_before_the_model_runs(model, stepper, name):
    opens = [RowOpen(row=0), RowOpen(row=1)]
    assert stepper.run(plan(**good(), opens=opens), no_masks).tokens.shape == (1,)
    stepper.rows.open(RowOpen(row=0))
    ran = model.forwards
    changed = {
        field: np.array(value, np.int32) if isinstance(value, list) and field != "scores" else value
        for field, value in BROKEN[name].items()
    }
    with pytest.raises(PlanError, match=name.split(":")[0]):
        stepper.run(msgspec.structs.replace(plan(**good()), **changed), no_masks)
    assert model.forwards == ran


@pytest.mark.parametrize(
    "opened",
    [RowOpen(row=-1), RowOpen(row=1 << 20), RowOpen(row=1, bias_ids=[1], bias=[])],
    ids=["low", "high", "bias"],
)
def test_a_malformed_row_is_refused_and_the_others_are_opened(model, stepper, opened):
    entry = {"row": 0, "tokens": [1], "at": 0, "slots": [0]}
    with pytest.raises(PlanError):
        stepper.run(plan(0, [entry], opens=[opened, RowOpen(row=0, temperature=0.0)]), no_masks)
    assert stepper.run(plan(1, [entry]), no_masks).tokens.tolist() == model.greedy([1], 1)


@pytest.mark.parametrize("bitmask", [mask_of([1], [2]), np.zeros(2, np.int32), np.zeros((1, 8), np.uint8)])
def test_masks_that_do_not_fit_fail_the_step(stepper, bitmask):
    entry = {"row": 0, "tokens": [1], "at": 0, "slots": [0]}
    with pytest.raises(PlanError, match="masks"):
        stepper.run(plan(0, [entry], opens=[RowOpen(row=0)], masked=[0]), lambda: StepMasks(step=0, bitmask=bitmask))
    stepper.rows.close(0)


def test_many_rows(model, stepper):
    """More rows than the tables start with."""
    rows = [5, 300, 1000]
    entries = [{"row": r, "tokens": [i], "at": 0, "slots": [i]} for i, r in enumerate(rows)]
    opens = [RowOpen(row=r, temperature=0.0) for r in rows]
    expected = [model.greedy([i], 2) for i in range(3)]
    assert stepper.run(plan(0, entries, opens=opens), no_masks).tokens.tolist() == [e[0] for e in expected]
    entries = [{"row": r, "tokens": [-1], "at": 1, "slots": [10 + i], "private": [i]} for i, r in enumerate(rows)]
    assert stepper.run(plan(1, entries), no_masks).tokens.tolist() == [e[1] for e in expected]


class Chooses(FakeModel):
    """A model that gives its most likely tokens without logits, as the compiled path does. Of lines that need them it
    says no more than the masks that it was given allow."""

    most = 8
    chosen, made = 0, 0  # lines

    def chooses(self, lines: int) -> bool:
        return lines <= self.most

    def logits(self, hidden) -> torch.Tensor:
        self.made += len(hidden)
        return super().logits(hidden)

    def choose(self, hidden, allowed, mask_of, masks, whole) -> tuple[torch.Tensor, torch.Tensor]:
        logits = super().logits(hidden)
        for row in [] if mask_of is None else np.flatnonzero(mask_of >= 0):
            bits = np.unpackbits(masks[mask_of[row]].view(np.uint8), bitorder="little")
            logits[row, torch.from_numpy(bits == 0)] = -torch.inf
        made = logits[torch.from_numpy(whole)]
        logits[:, allowed:] = -torch.inf
        tokens = torch.where(logits.amax(-1).isfinite(), logits.argmax(-1), -1)
        tokens[torch.from_numpy(whole)] = 12345  # not to be read
        self.made += len(whole)
        self.chosen += len(hidden) - len(whole)
        return tokens, made


def same(ours: StepResult, theirs: StepResult) -> bool:
    return ours.tokens.tolist() == theirs.tokens.tolist() and all(
        np.array_equal(getattr(ours, name), getattr(theirs, name))
        for name in ("logprobs", "top_ids", "top_logprobs")
    )  # fmt: skip


GREEDY, RANDOM = RowOpen(row=1, temperature=0.0), RowOpen(row=1, temperature=1.0, seed=3)
ASKS = RowOpen(row=1, temperature=0.0, logprobs=2)
RULED = RowOpen(row=1, temperature=0.0, suppress_ids=list(range(9)), bias_ids=[40], bias=[2.0])


@pytest.mark.parametrize(
    ("kinds", "made"),
    [
        ([GREEDY], 0),
        ([GREEDY, GREEDY], 0),
        ([GREEDY, RowOpen(row=1, temperature=1.0, top_k=1)], 0),
        ([GREEDY, RANDOM], 1),
        ([GREEDY, ASKS], 1),
        ([GREEDY, RULED], 1),
        ([RANDOM, RANDOM], 2),
        ([GREEDY, GREEDY, RANDOM, GREEDY, ASKS, RULED, RANDOM, GREEDY], 4),
        ([GREEDY, RANDOM, GREEDY, GREEDY, GREEDY, GREEDY, GREEDY, GREEDY, ASKS], 9),
    ],
    ids=["alone", "greedy", "top_k 1", "random", "log-probabilities", "rules", "all random", "each kind", "too many"],
)
@pytest.mark.parametrize("masked", [[], [0], [0, 1, 3, 4, 5]], ids=["no masks", "one masked", "most masked"])
def test_logits_are_left_out_where_nobody_needs_them(kinds: list[RowOpen], made: int, masked: list[int]) -> None:
    """The same answers, in the same order, as with the logits of all lines."""
    opens = [msgspec.structs.replace(each, row=row) for row, each in enumerate(kinds)]
    masked = [row for row in masked if row < len(opens)]
    entries = [{"row": row, "tokens": [5 + row], "at": 0, "slots": [row]} for row in range(len(opens))]
    masks = StepMasks(step=0, bitmask=mask_of(*[[9 + row, 12 + 5 * row, 62, 63] for row in masked]))
    models = Chooses(V), FakeModel(V)
    step = plan(0, entries, opens=opens, masked=masked)
    ours, theirs = (make_stepper(each, vocabulary=60).run(step, lambda: masks) for each in models)
    assert (models[0].chosen, models[0].made) == (len(opens) - made, made)
    assert same(ours, theirs) and (ours.tokens >= 0).all()
    assert all(ours.tokens[row] in (9 + row, 12 + 5 * row) for row in masked)


def test_guessed_and_lost_lines_beside_each_other_with_logits_and_without() -> None:
    """Rows with guesses, on a branch too, greedy, random and with penalties that look at the guesses; under masks, one
    of which allows nothing; then a step that goes on with what was left."""
    opens = [
        RowOpen(row=0, temperature=0.0),
        RowOpen(row=1, temperature=0.0, frequency_penalty=60.0, bias_ids=[9], bias=[100.0], logprobs=1),
        RowOpen(row=2, temperature=0.8, seed=11),
        RowOpen(row=3, temperature=0.0),
        RowOpen(row=4, temperature=0.0, logprobs=0),
    ]
    alone = decode(make_stepper(FakeModel(V)), [5, 6], 3, opens[0])
    prompts = [
        {"row": 0, "tokens": [5, 6, alone[0], alone[1]], "at": 0, "slots": [0, 1, 2, 3], "drafts": 2},
        {"row": 1, "tokens": [7, 9, 9, 9], "at": 0, "slots": [10, 11, 12, 13], "drafts": 3},
        {"row": 0, "tokens": [(alone[1] + 1) % V], "at": 3, "slots": [4], "private": [0, 1, 2]},
        {"row": 2, "tokens": [8, 1], "at": 0, "slots": [20, 21], "drafts": 1},
        {"row": 3, "tokens": [4], "at": 0, "slots": [30]},
        {"row": 4, "tokens": [3], "at": 0, "slots": [40]},
    ]
    any_token = list(range(V))
    bits = [any_token, [9], [2, 3], any_token, [], []]  # of the four lines of row 1, of rows 3 and 4
    first = plan(0, prompts, opens=opens, masked=[1, 4, 5], branches=[[2, 0, 0]])
    behind = [
        {"row": row, "tokens": [-1], "at": at, "slots": [60 + row], "private": range(at)}
        for row, at in ((3, 1), (2, 2), (4, 1), (0, 5))
    ]
    models = Chooses(V), FakeModel(V)
    models[0].most = 12
    answers = []
    for each in models:
        stepper = make_stepper(each)
        answers.append([
            stepper.run(first, lambda: StepMasks(step=0, bitmask=mask_of(*bits))),
            stepper.run(plan(1, behind, masked=[1]), lambda: StepMasks(step=1, bitmask=mask_of([1, 2, 50]))),
        ])  # fmt: skip
    assert all(same(ours, theirs) for ours, theirs in zip(*answers, strict=True))
    start, later = answers[0]
    assert start.tokens.tolist()[:3] == alone and start.tokens.tolist()[-2:] == [-1, -1] and len(start.tokens) == 12
    assert start.tokens[3] == 9 and start.tokens[6] != 9  # behind three guesses of 9 it is penalized
    assert start.logprobs[3:7].all() and not start.logprobs[:3].any()
    assert later.tokens[0] == later.tokens[2] == -1 and later.tokens[1] in (1, 2, 50) and later.tokens[3] >= 0
    assert models[0].made == (4 + 2 + 1) + (1 + 1)
    assert models[0].chosen == (3 + 1 + 1) + (1 + 1)


class Spares(FakeModel):
    """A model that is told which hidden states are read, as the compiled path is; all others are lost."""

    asked: list[int] | None = None

    def forward_of(self, tokens, positions, slots, kv, layout, wanted) -> torch.Tensor:
        self.asked = wanted.tolist()
        return self.forward(tokens, positions, slots, kv, layout)[wanted]


@pytest.mark.parametrize(
    ("samples", "drafts", "scores", "asked"),
    [
        ([True, True], 0, [], [2, 4]),
        ([True, False], 0, [], [2]),
        ([False, False], 0, [], []),
        ([True, True], 1, [], [2, 3, 4]),
        ([True, True], 0, [ScoreSpec(row_index=0, first=0, targets=np.array([6], np.int32))], None),
    ],
    ids=["both sample", "one samples", "none samples", "guesses", "scores"],
)
def test_hidden_states_that_nobody_reads_are_not_asked_for(
    samples: list[bool], drafts: int, scores: list[ScoreSpec], asked: list[int] | None
) -> None:
    """The same answers as with all of them."""
    opens = [RowOpen(row=row, temperature=0.0) for row in (0, 1)]
    entries = [
        {"row": 0, "tokens": [5, 6, 7], "at": 0, "slots": [0, 1, 2], "sample": samples[0]},
        {"row": 1, "tokens": [8, 9], "at": 0, "slots": [4, 5], "sample": samples[1], "drafts": drafts},
    ]
    models = Spares(V), FakeModel(V)
    results = [make_stepper(each).run(plan(0, entries, opens=opens, scores=scores), no_masks) for each in models]
    assert models[0].asked == asked
    assert results[0].tokens.tolist() == results[1].tokens.tolist()
    assert len(results[0].scores) == len(scores)
    for ours, theirs in zip(results[0].scores, results[1].scores, strict=True):
        assert np.array_equal(ours.logprobs, theirs.logprobs)
