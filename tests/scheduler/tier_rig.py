"""A Rig whose runner has a tier: chunks are copied in and out of the fake KV memory, late, wrongly or not at all."""

from __future__ import annotations

import random
from collections import deque

import numpy as np

from radixrt.messages import StepFailed, TierDone, TierState, TierWork
from radixrt.scheduler.tier_saving import key_array, key_list
from radixrt.tiers.keys import CHUNK
from tests.scheduler.fakes import FakeRunner, Rig

Chunk = tuple[tuple[int, int], ...]


class TierRunner(FakeRunner):
    """`store` is the tier; a TierWork is done in order with the plans, its TierDone waits in `done`."""

    def __init__(self, store: dict[bytes, Chunk]) -> None:
        super().__init__()
        self.store = store
        self.failed = 0
        self.full = False
        self.chance: random.Random | None = None
        """Where set: chunks are lost, broken or refused now and then."""
        self.done: deque[tuple[TierWork, TierDone, list[Chunk]]] = deque()
        self.orders: list[TierWork] = []

    def can_run(self) -> bool:
        while self.plans and isinstance(self.plans[0], TierWork):
            self._take(self.plans.popleft())
        return super().can_run()

    def fail(self) -> int:
        self.failed = super().fail()
        return self.failed

    def _unlucky(self, chance: float) -> bool:
        return self.chance is not None and self.chance.random() < chance

    def _take(self, work: TierWork) -> None:
        self.orders.append(work)
        stored, dropped, loaded, refused = [], [], [], 0
        valid = work.settled >= self.failed
        for key, slots in zip(key_list(work.save_keys), work.save_slots.tolist(), strict=True):
            if not valid or self.full or self._unlucky(0.1):
                refused += 1
                continue
            chunk = tuple(self.memory[slot] for slot in slots)
            assert [position for position, _ in chunk] == list(range(chunk[0][0], chunk[0][0] + CHUNK))
            assert chunk[0][0] % CHUNK == 0
            assert self.store.get(key, chunk) == chunk, "a key names one content"
            self.store[key] = chunk
            stored.append(key)
        for key in key_list(work.load_keys):
            if self._unlucky(0.05):
                self.store.pop(key, None)
            if key not in self.store:
                dropped.append(key)
                break
            loaded.append(self.store[key])
        for key in key_list(work.drop_keys):
            if self.store.pop(key, None) is not None:
                dropped.append(key)
        if self.store and self._unlucky(0.1):
            dropped.append(next(iter(self.store)))  # the least recently stored one
            del self.store[dropped[-1]]
        done = TierDone(
            number=work.number,
            loaded=len(loaded),
            load_s=0.001,
            stored=key_array([key for key in stored if key in self.store]),
            dropped=key_array(dropped),
            refused=refused,
            errors=refused,
        )
        self.done.append((work, done, loaded))

    def deliver(self) -> TierDone:
        """The copies of the oldest order reach the pool."""
        work, done, loaded = self.done.popleft()
        for slots, chunk in zip(work.load_slots.tolist(), loaded, strict=False):
            self.memory.update(zip(slots, chunk, strict=True))
        return done


class TierRig(Rig):
    def __init__(self, kv_tokens: int, store: dict[bytes, Chunk] | None = None, **overrides: object) -> None:
        runner = TierRunner({} if store is None else store)
        state = TierState(
            kind="fake", keys=key_array(list(runner.store)), chunk_bytes=1, capacity_bytes=1 << 30, used_bytes=0
        )
        super().__init__(kv_tokens, tier=state, **overrides)
        self.runner: TierRunner = runner
        self.tiering = self.scheduler.tiering
        self.hold_back = False
        """The tier does not answer before there is nothing else to do."""
        self.stuck = False
        """The tier does not answer at all."""

    def sent_first(self) -> None:
        self.runner.plans.extend(self.tiering.pack())

    def deliver(self) -> None:
        self.tiering.done(self.runner.deliver(), self.clock.now)
        self.scheduler.verify()

    def step(self) -> bool:
        self.advance()
        runnable = self.runner.can_run()
        if self.runner.done and not self.stuck and not (self.hold_back and runnable):
            self.deliver()
            return True
        return super().step() if runnable else False

    def fail_step(self) -> bool:
        """The next step raises, if there is one."""
        self.advance()
        if not self.runner.can_run():
            return False
        self.scheduler.fail_step(StepFailed(step=self.runner.fail(), message="test"))
        self.collect()
        return True

    def save(self) -> None:
        """What a `save` query does in the process's loop."""
        for _ in range(10_000):
            number = self.tiering.save_more(self.clock.now)
            self.run()
            if number is not None:
                return
        raise AssertionError("saving does not come to an end")

    def text(self, request: int) -> list[int]:
        return self.texts.get((request, 0), [])


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, 60, length).tolist()
