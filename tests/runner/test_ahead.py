"""A runner that works ahead gives what the plain one gives, on a device that does everything as late as it may."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from radixrt.checkpoint import ModelConfig, RopeScaling
from radixrt.kernels import torch as plain
from radixrt.kernels import triton
from radixrt.messages import RowOpen, ScoreSpec, StepMasks, StepPlan, StepResult
from radixrt.models.dummy import dummy_model
from radixrt.runner import cells
from radixrt.runner.ahead import AheadStepper, Flight
from radixrt.runner.cells import Planner
from radixrt.runner.draft import SCRATCH, DraftModel, GuessingPasses, PlainPasses
from radixrt.runner.draft_ahead import AheadPasses
from radixrt.runner.draws import draw_plain, draw_triton
from radixrt.runner.rows import PlanError
from radixrt.runner.step import Stepper

from .fakes import FakeModel, plan
from .late_device import LateDevice

V = 64
SLOTS = 800


class Scheduler:
    """Makes plans, each before the tokens of the last one are known: rows come, share, go on, and go."""

    def __init__(self, seed: int, proposes: bool = False) -> None:
        self.proposes = proposes
        self.asked: set[int] = set()  # rows whose guesses come with the answer to the last plan
        self.rng = np.random.default_rng(seed)
        self.free = list(range(SLOTS))
        self.rng.shuffle(self.free)
        self.prefix = [self.free.pop() for _ in range(70)]
        self.rows: dict[int, list[int]] = {}  # id -> private slots, behind the prefix
        self.sampled: set[int] = set()
        self.guessed: set[int] = set()
        self.masks: dict[int, StepMasks] = {}

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def opened(self, row: int) -> RowOpen:
        rng = self.rng
        more: dict = {}
        if self.chance(0.3):
            more = {"frequency_penalty": 1.5, "repetition_penalty": 1.2, "prompt_ids": rng.integers(0, V, 3)}
        if self.chance(0.3):
            more |= {"bias_ids": [int(rng.integers(V))], "bias": [3.0], "suppress_ids": [5], "min_length": 75,
                     "end_ids": [int(rng.integers(V))]}  # fmt: skip
        return RowOpen(
            row=row,
            temperature=float(rng.choice([0.0, 0.7, 1.0])),
            top_k=int(rng.choice([0, 3])),
            top_p=float(rng.choice([1.0, 0.8])),
            min_p=float(rng.choice([0.0, 0.05])),
            seed=int(rng.integers(1 << 40)),
            logprobs=int(rng.choice([-1, -1, 0, 2])),
            **more,
        )

    def first(self) -> StepPlan:
        """Computes the prefix, for nobody yet."""
        tokens = self.rng.integers(0, V, len(self.prefix)).tolist()
        return plan(0, [{"row": -1, "tokens": tokens, "at": 0, "slots": self.prefix, "sample": False}])

    def next(self, step: int, decode_only: bool) -> StepPlan:
        """`decode_only`: steps of a token a row, but for guesses and scores where the scheduler proposes."""
        rng, opens, closes, entries, scores = self.rng, [], [], [], []
        for row in [row for row in self.rows if self.chance(0.1) and row not in self.asked]:
            closes.append(row)
            self.free += self.rows.pop(row)
            self.sampled.discard(row)
            self.guessed.discard(row)
        resting = set(self.guessed)
        for row, slots in self.rows.items():
            if self.chance(0.1) or row in resting:
                continue  # it waits a step: for guesses, until it is known which of them held
            tokens, drafts = [-1 if row in self.sampled else int(rng.integers(V))], 0
            if (not decode_only or self.proposes) and self.chance(0.1):
                drafts = 1
                tokens.append(int(rng.integers(3)))
                self.guessed.add(row)
            new = [self.free.pop() for _ in tokens]
            entries.append({"row": row, "tokens": tokens, "at": 70 + len(slots), "slots": new, "drafts": drafts,
                            "private": list(slots)})  # fmt: skip
            slots += new
        for _ in range(int(rng.integers(0, 3)) if not decode_only or not self.rows else 0):
            row = min(set(range(64)) - self.rows.keys())  # as early as it can be, so that ids are used again
            count = int(rng.integers(1, 5)) if not decode_only or self.proposes else 1
            slots = [self.free.pop() for _ in range(count)]
            opens.append(self.opened(row))
            entries.append({"row": row, "tokens": rng.integers(0, V, count).tolist(), "at": 70, "slots": slots})
            if count > 2 and self.chance(0.5):
                scores.append(ScoreSpec(row_index=len(entries) - 1, first=0, targets=rng.integers(0, V, 2), top=1))
            self.rows[row] = slots
        if entries:
            self.guessed -= resting
        for entry in entries:
            entry["sample"] = self.chance(0.9) or entry["tokens"][0] == -1 or bool(entry.get("drafts"))
            if entry["sample"]:
                self.sampled.add(entry["row"])
        masked = [i for i, entry in enumerate(entries) if entry["sample"] and self.chance(0.3)]
        if masked:
            lines = sum(1 + entries[i].get("drafts", 0) for i in masked)
            bits = rng.integers(0, 1 << 30, (lines, V // 32)).astype(np.int32)
            if self.chance(0.1):
                bits[0] = 0  # nothing is allowed: the row fails, and what is planned on it
            self.masks[step] = StepMasks(step=step, bitmask=bits)
        if self.chance(0.05) and entries:
            entries[0]["slots"] = [SLOTS + 9]  # a step that fails as a whole
        spans = [(self.prefix, 0, len(entries))] if entries else []
        propose = None
        if self.proposes and entries:
            propose = [int(rng.integers(0, 4)) if entry["sample"] else 0 for entry in entries]
            self.asked = {entry["row"] for entry, count in zip(entries, propose, strict=True) if count}
        return plan(step, entries, opens=opens, closes=closes, spans=spans, masked=masked, scores=scores,
                    propose=propose)  # fmt: skip

    def history(self, steps: int, decode_only: bool = False) -> Iterator[StepPlan]:
        yield self.first()
        for step in range(1, steps):
            if (made := self.next(step, decode_only)).rows.size:
                yield made


Outcome = StepResult | str


def in_turn(stepper: Stepper, plans: list[StepPlan], masks: dict[int, StepMasks]) -> list[Outcome]:
    """Step after step."""
    outcomes: list[Outcome] = []
    for each in plans:
        try:
            outcomes.append(stepper.run(each, lambda: masks[each.step]))  # noqa: B023
        except PlanError as error:
            outcomes.append(str(error))
    return outcomes


def in_flight(stepper: AheadStepper, plans: list[StepPlan], masks: dict[int, StepMasks]) -> list[Outcome]:
    """Each launched before the one before it is settled."""
    outcomes: list[Outcome] = []
    flight: Flight | None = None

    def settle() -> None:
        nonlocal flight
        if flight is not None:
            outcomes.append(stepper.settle(flight))
        flight = None

    for each in plans:
        try:
            launched = stepper.launch(each)
        except PlanError as error:
            settle()
            outcomes.append(str(error))
            continue
        settle()
        stepper.draw(launched, lambda: masks[each.step])  # noqa: B023
        flight = launched
    settle()
    return outcomes


def same(found: list[Outcome], expected: list[Outcome], tolerance: float) -> int:
    """Compares; returns how many tokens there were."""
    count = 0
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, str) or isinstance(ours, str):
            assert ours == theirs
            continue
        assert ours.step == theirs.step
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.top_ids.tolist() == theirs.top_ids.tolist()
        assert (ours.proposals is None) == (theirs.proposals is None)
        if theirs.proposals is not None and ours.proposals is not None:
            assert ours.proposals.tolist() == theirs.proposals.tolist()
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=tolerance)
        assert ours.top_logprobs == pytest.approx(theirs.top_logprobs, abs=tolerance)
        for one, other in zip(ours.scores, theirs.scores, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=tolerance)
            assert one.top_ids.tolist() == other.top_ids.tolist()
        count += len(theirs.tokens)
    return count


@pytest.mark.parametrize("seed", range(8))
def test_random_histories_give_the_tokens_of_the_plain_runner(seed: int, long: bool) -> None:
    scheduler = Scheduler(seed)
    plans = list(scheduler.history(200 if long else 40))
    sizes = {"vocab_size": V, "vocabulary": V - 3, "context_length": 512}
    expected = in_turn(Stepper(FakeModel(V), torch.zeros(1, 2, 1, SLOTS, 2), **sizes), plans, scheduler.masks)
    device = LateDevice()
    ahead = AheadStepper(device, FakeModel(V), torch.zeros(1, 2, 1, SLOTS + 1, 2), **sizes, drawer=draw_plain)
    with torch.inference_mode():
        found = in_flight(ahead, plans, scheduler.masks)
    assert same(found, expected, 1e-6) > 30
    assert device.waits <= len(plans)  # one a step at most, staging included


def fake_draft(passes: GuessingPasses) -> DraftModel:
    return DraftModel(passes, slots=SLOTS, vocabulary=V - 3, context_length=512)


@pytest.mark.parametrize("seed", range(2))
def test_a_draft_model_guesses_what_it_guesses_beside_the_plain_runner(seed: int, long: bool) -> None:
    """And waits once more in steps whose rows ask for guesses, however many passes that takes."""
    scheduler = Scheduler(seed, proposes=True)
    plans = list(scheduler.history(200 if long else 30))
    sizes = {"vocab_size": V, "vocabulary": V - 3, "context_length": 512}
    pool = torch.zeros(1, 2, 1, SLOTS + SCRATCH + 1, 2)
    plain_passes = PlainPasses(FakeModel(V, seed=1), pool.clone(), vocabulary=V - 3)
    expected = in_turn(
        Stepper(FakeModel(V), torch.zeros(1, 2, 1, SLOTS, 2), **sizes, draft=fake_draft(plain_passes)),
        plans, scheduler.masks,
    )  # fmt: skip
    device = LateDevice()
    passes = AheadPasses(device, FakeModel(V, seed=1), pool, vocabulary=V - 3, drawer=draw_plain)
    with torch.inference_mode():
        ahead = AheadStepper(
            device, FakeModel(V), torch.zeros(1, 2, 1, SLOTS + 1, 2), **sizes, drawer=draw_plain,
            draft=fake_draft(passes),
        )  # fmt: skip
        found = in_flight(ahead, plans, scheduler.masks)
    assert same(found, expected, 1e-6) > 30
    guessing = sum(isinstance(each, StepResult) and each.draft_passes > 0 for each in expected)
    assert guessing > 10 and device.waits <= len(plans) + guessing


CONFIG = ModelConfig(
    architecture="qwen3", hidden_size=32, intermediate_size=48, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=16,
    vocab_size=V, context_length=512, rms_norm_eps=1e-6, rope_theta=1e4, rope_scaling=RopeScaling(),
    tie_word_embeddings=False, attention_bias=False, qk_norm=True, sliding_window=None, dtype="float32",
    quantization=None,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")
@pytest.mark.parametrize("drawer", [draw_plain, draw_triton])
def test_recorded_decode_steps_give_the_tokens_of_the_plain_runner(
    drawer: Callable, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's kernels, over cells that are padded, filled anew and replayed: with guesses, scores, and a draft model
    whose passes are recorded too."""
    if drawer is draw_plain and not long:
        pytest.skip("--long")
    monkeypatch.setattr(cells, "LEAST_ITEMS", 3)  # the interpreter takes its time for programs that do nothing

    def model(kernels: object) -> object:
        made = dummy_model(CONFIG, dtype=torch.float32, spread=0.3)
        for part in (made, *made.layers):
            part.kernels = kernels  # type: ignore[assignment]
        return made

    def pool(slots: int) -> torch.Tensor:
        return torch.zeros(CONFIG.num_layers, 2, CONFIG.num_kv_heads, slots, CONFIG.head_dim)

    scheduler = Scheduler(3 if long else 49, proposes=True)
    plans = list(scheduler.history(40 if long else 8, decode_only=True))
    assert any(each.drafts.any() for each in plans) and any(each.scores for each in plans)
    sizes = {"vocab_size": V, "vocabulary": V - 3, "context_length": 512}
    device = LateDevice()
    with torch.inference_mode():
        passes: GuessingPasses = PlainPasses(model(plain), pool(SLOTS + SCRATCH), vocabulary=V - 3)
        beside = Stepper(model(plain), pool(SLOTS), **sizes, draft=fake_draft(passes))
        expected = in_turn(beside, plans, scheduler.masks)
        planner = Planner(CONFIG, None, device.device, torch.float32)
        passes = AheadPasses(
            device, model(triton), pool(SLOTS + SCRATCH + 1), vocabulary=V - 3, drawer=drawer, planner=planner
        )
        ahead = AheadStepper(
            device, model(triton), pool(SLOTS + 1), **sizes, drawer=drawer, planner=planner, draft=fake_draft(passes)
        )
        found = in_flight(ahead, plans, scheduler.masks)
    assert same(found, expected, 1e-4) > 5
    assert device.recorded >= 1 and device.replayed > device.recorded
