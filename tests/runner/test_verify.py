"""Guesses in the runner: trees of them, penalties, the token that counts as the last one, and a draft model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from radixrt.checkpoint import open_checkpoint
from radixrt.config import RunnerConfig
from radixrt.errors import StartupError
from radixrt.messages import RowOpen, StepMasks
from radixrt.runner.draft import SCRATCH, DraftModel, PlainPasses, load_draft
from radixrt.runner.rows import PlanError
from radixrt.runner.step import Stepper
from tests.tiny import write_tiny_llama

from .fakes import FakeModel, plan

V = 64
PROMPT = [5, 6, 7]


def no_masks() -> StepMasks:
    raise AssertionError("nobody is masked")


def make(model: FakeModel, draft: FakeModel | None = None, slots: int = 200) -> Stepper:
    beside = None
    if draft is not None:
        passes = PlainPasses(draft, torch.zeros(1, 2, 1, slots + SCRATCH, 2), vocabulary=V)
        beside = DraftModel(passes, slots=slots, vocabulary=V, context_length=512)
    return Stepper(model, torch.zeros(1, 2, 1, slots, 2), vocab_size=V, vocabulary=V, context_length=512, draft=beside)


def alone(model: FakeModel, count: int, opened: RowOpen) -> tuple[list[int], list[float]]:
    """Tokens and log-probabilities of the row one token a step."""
    stepper, n = make(model), len(PROMPT)
    result = stepper.run(plan(0, [{"row": 0, "tokens": PROMPT, "at": 0, "slots": range(n)}], opens=[opened]), no_masks)
    tokens, logprobs = [int(result.tokens[0])], [float(result.logprobs[0])]
    for at in range(n, n + count - 1):
        entry = {"row": 0, "tokens": [-1], "at": at, "slots": [at], "private": range(at)}
        result = stepper.run(plan(at, [entry]), no_masks)
        tokens.append(int(result.tokens[0]))
        logprobs.append(float(result.logprobs[0]))
    return tokens, logprobs


OPENED = [
    RowOpen(row=0, temperature=0.0, logprobs=1),
    RowOpen(row=0, temperature=1.0, seed=3, logprobs=1),
    RowOpen(row=0, temperature=1.0, seed=3, frequency_penalty=1.5, presence_penalty=1.0, logprobs=1,
            output_ids=np.zeros(0, np.int32)),
    RowOpen(row=0, temperature=0.0, repetition_penalty=2.0, logprobs=1, prompt_ids=np.array(PROMPT, np.int32),
            output_ids=np.zeros(0, np.int32)),
    RowOpen(row=0, temperature=0.7, top_p=0.8, top_k=9, min_length=8, end_ids=[1, 2, 3], seed=8, logprobs=1),
]  # fmt: skip


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize("held", [0, 1, 2, 3])
def test_a_row_goes_on_behind_its_guesses_as_without(opened: RowOpen, held: int) -> None:
    """Of three guesses `held` are right; the next step asks for the last token, whatever line it was."""
    model = FakeModel(V)
    wanted, logprobs = alone(model, 7, opened)
    chain = [token if i < held else (token + 1) % V for i, token in enumerate(wanted[:3])]
    stepper = make(model)
    entry = {"row": 0, "tokens": [*PROMPT, *chain], "at": 0, "slots": range(6), "drafts": 3}
    result = stepper.run(plan(0, [entry], opens=[opened]), no_masks)
    got = result.tokens.tolist()[: held + 1]
    assert result.logprobs.tolist()[: held + 1] == pytest.approx(logprobs[: held + 1])
    for step in range(1, 4):
        at = len(PROMPT) + len(got) - 1
        entry = {"row": 0, "tokens": [-1], "at": at, "slots": [at], "private": range(at)}
        got.append(int(stepper.run(plan(step, [entry]), no_masks).tokens[0]))
    assert got == wanted[: held + 4]


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize("fork", [0, 1, 2])
def test_a_branch_that_holds_is_as_good_as_the_chain(opened: RowOpen, fork: int) -> None:
    """The chain is wrong from `fork` on; a branch there is right for two tokens; a third one is wrong."""
    model = FakeModel(V)
    wanted, logprobs = alone(model, 8, opened)
    wrong = [(token + 1) % V for token in wanted]
    chain = [*wanted[:fork], *wrong[fork:3]]
    branch = [*wanted[fork : fork + 2], wrong[fork + 2]]
    n = len(PROMPT)
    main = {"row": 0, "tokens": [*PROMPT, *chain], "at": 0, "slots": range(n + 3), "drafts": 3}
    side = {"row": 0, "tokens": branch, "at": n + fork, "slots": [50, 51, 52], "private": range(n + fork), "drafts": 2}
    for order in ((main, side), (side, main)):
        entries = list(order)
        places = [[entries.index(side), entries.index(main), fork]]
        stepper = make(model)
        result = stepper.run(plan(0, entries, opens=[opened], branches=places), no_masks)
        lines = [result.tokens.tolist()[:4], result.tokens.tolist()[4:]]
        values = [result.logprobs.tolist()[:4], result.logprobs.tolist()[4:]]
        if entries[0] is side:
            lines = [result.tokens.tolist()[3:], result.tokens.tolist()[:3]]
            values = [result.logprobs.tolist()[3:], result.logprobs.tolist()[:3]]
        assert [*lines[0][: fork + 1], *lines[1][:2]] == wanted[: fork + 3]
        assert [*values[0][: fork + 1], *values[1][:2]] == pytest.approx(logprobs[: fork + 3])
        private = [*range(n + fork), 50, 51]
        entry = {"row": 0, "tokens": [-1], "at": n + fork + 2, "slots": [60], "private": private}
        assert stepper.run(plan(1, [entry]), no_masks).tokens.tolist() == [wanted[fork + 3]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"row": 1}, "another row"),
        ({"drafts": 0}, "behind each"),
        ({"sample": False, "drafts": 0}, "behind each"),
        ({"tokens": [-1, 4]}, "on a branch"),
    ],
)
def test_a_branch_that_makes_no_sense_is_refused(change: dict, words: str) -> None:
    main = {"row": 0, "tokens": [5, 6, 7], "at": 0, "slots": [0, 1, 2], "drafts": 1}
    side = {"row": 0, "tokens": [8, 9], "at": 2, "slots": [3, 4], "private": [0, 1], "drafts": 1, **change}
    opens = [RowOpen(row=0), RowOpen(row=1)]
    stepper = make(FakeModel(V))
    with pytest.raises(PlanError, match=words):
        stepper.run(plan(0, [main, side], opens=opens, branches=[[1, 0, 0]]), no_masks)
    with pytest.raises(PlanError, match="fork"):
        stepper.run(plan(1, [main, {**side, "row": 0, "tokens": [8, 9], "drafts": 1, "sample": True}],
                         branches=[[1, 0, 1]]), no_masks)  # fmt: skip
    with pytest.raises(PlanError, match="twice"):
        stepper.run(plan(2, [main, {**main, "slots": [3, 4, 5]}]), no_masks)


def test_a_draft_model_that_is_the_model_guesses_every_token() -> None:
    model = FakeModel(V)
    for opened in OPENED[:2]:
        wanted, _ = alone(model, 8, opened)
        stepper = make(model, FakeModel(V))
        entry = {"row": 0, "tokens": PROMPT, "at": 0, "slots": [9, 8, 7]}
        result = stepper.run(plan(0, [entry], opens=[opened], propose=[3]), no_masks)
        assert [*result.tokens.tolist(), *result.proposals[0].tolist()] == wanted[:4]
        # Two are tried, of which one is wrong, and a branch takes over: the model goes on behind what held.
        entries = [
            {"row": 0, "tokens": [wanted[0], (wanted[1] + 1) % V], "at": 3, "slots": [3, 4], "private": [9, 8, 7],
             "drafts": 1},
            {"row": 0, "tokens": [wanted[1]], "at": 4, "slots": [5], "private": [9, 8, 7, 3]},
        ]  # fmt: skip
        result = stepper.run(plan(1, entries, branches=[[1, 0, 0]], propose=[2, 0]), no_masks)
        assert result.proposals.tolist() == [wanted[3:5]]
        assert result.draft_passes == 2


def test_the_draft_model_computes_a_shared_prefix_once_and_forgets_what_is_overwritten() -> None:
    draft = FakeModel(V)
    stepper = make(FakeModel(V), draft, slots=3000)
    prefix = [1 + i % 60 for i in range(500)]
    rows = [{"row": r, "tokens": [r], "at": 500, "slots": [600 + r], "private": range(500)} for r in range(4)]
    first = {"row": 9, "tokens": prefix, "at": 0, "slots": range(500), "sample": False}
    opens = [RowOpen(row=r, temperature=0.0) for r in range(10)]
    stepper.run(plan(0, [first], opens=opens), no_masks)
    assert draft.forwards == 0
    seen = []
    forward = draft.forward
    draft.forward = lambda tokens, *rest: (seen.append(len(tokens)), forward(tokens, *rest))[1]
    result = stepper.run(plan(1, rows, propose=[1, 1, 1, 1]), no_masks)
    assert sum(seen) == 500 + 4 + 4
    for r, guess in enumerate(result.proposals[:, 0].tolist()):
        assert [int(result.tokens[r]), guess] == draft.greedy([*prefix, r], 2)
    # Another path in the same slots.
    other = {"row": 9, "tokens": [3, 2, 1], "at": 0, "slots": [0, 1, 2]}
    result = stepper.run(plan(2, [other], propose=[2]), no_masks)
    assert [*result.tokens.tolist(), *result.proposals[0].tolist()] == draft.greedy([3, 2, 1], 3)
    # What a tier brings back is of tokens that nobody named.
    stepper.restores(np.array([[1, 2]], np.int32))
    entry = {"row": 9, "tokens": [-1], "at": 3, "slots": [3], "private": [0, 1, 2]}
    assert stepper.run(plan(3, [entry], propose=[2]), no_masks).proposals.tolist() == [[-1, -1]]


def test_lines_of_one_step_sum_to_the_distribution_of_single_steps() -> None:
    """Chi-square over many seeds: pairs of tokens sampled along guesses, against the model's own probabilities."""
    model, seeds = FakeModel(V), 500
    stepper = make(model, FakeModel(V, seed=1), slots=200)
    counts: dict[tuple[int, int], int] = {}
    begin = {"row": 0, "tokens": PROMPT, "at": 0, "slots": range(3)}
    for seed in range(seeds):
        opened = RowOpen(row=0, temperature=1.0, seed=seed, top_k=4)
        result = stepper.run(plan(0, [begin], opens=[opened], propose=[2]), no_masks)
        first = int(result.tokens[0])
        chain = result.proposals[0].tolist()
        entry = {"row": 0, "tokens": [first, *chain], "at": 3, "slots": range(3, 6), "private": range(3), "drafts": 2}
        tokens = stepper.run(plan(1, [entry]), no_masks).tokens.tolist()
        second = tokens[0]
        third = tokens[1] if second == chain[0] else None
        if third is None:
            entry = {"row": 0, "tokens": [-1], "at": 4, "slots": [4], "private": range(4)}
            third = int(stepper.run(plan(2, [entry]), no_masks).tokens[0])
        counts[second, third] = counts.get((second, third), 0) + 1
        stepper.run(plan(3, [{"row": 1, "tokens": [1], "at": 0, "slots": [9]}], opens=[RowOpen(row=1)], closes=[0]),
                    no_masks)  # fmt: skip
    wanted = _pairs(model)
    assert counts.keys() <= wanted.keys()
    statistic = sum((counts.get(pair, 0) - seeds * p) ** 2 / (seeds * p) for pair, p in wanted.items() if seeds * p > 5)
    cells = sum(seeds * p > 5 for p in wanted.values())
    assert cells >= 10
    # 99.9 % of chi-square with so many degrees of freedom (Wilson and Hilferty).
    limit = cells * (1 - 2 / (9 * cells) + 3.09 * math.sqrt(2 / (9 * cells))) ** 3
    assert statistic < limit


def _pairs(model: FakeModel) -> dict[tuple[int, int], float]:
    """Probabilities of (second, third) token behind PROMPT, each drawn among the four most likely."""

    def after(tokens: list[int]) -> dict[int, float]:
        logits = model.logits_after(tokens).astype(np.float64)
        best = np.argsort(-logits, kind="stable")[:4]
        weights = np.exp(logits[best] - logits[best].max())
        return dict(zip(best.tolist(), (weights / weights.sum()).tolist(), strict=True))

    pairs: dict[tuple[int, int], float] = {}
    for a, p in after(PROMPT).items():
        for b, q in after([*PROMPT, a]).items():
            for c, r in after([*PROMPT, a, b]).items():
                pairs[b, c] = pairs.get((b, c), 0.0) + p * q * r
    return pairs


def test_a_draft_model_of_another_vocabulary_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    target = open_checkpoint(tiny_path)
    parts = json.loads(target.vocabulary().tokenizer_json())
    vocab = parts["model"]["vocab"]
    vocab["Ġriver"], vocab["Ġlake"] = vocab["Ġlake"], vocab["Ġriver"]
    other = write_tiny_llama(tmp_path / "other", json.dumps(parts))
    config = RunnerConfig(model_path=str(tiny_path), dtype="float32", threads=1, context_length=None, kv_tokens=None,
                          runner_address="", ipc_dir="", log_level="warning", draft_path=str(other))  # fmt: skip
    with pytest.raises(StartupError, match=r"another vocabulary .* ' (river|lake)' here|another vocabulary .*Ġ"):
        load_draft(config, target, lambda *_: None, torch.device("cpu"))
