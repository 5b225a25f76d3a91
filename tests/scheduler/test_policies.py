"""Who goes first: each policy alone and together, bounds on waiting, and how little a step looks at."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest

from radixrt.errors import StartupError
from radixrt.messages import Enqueue, Namespace
from radixrt.params import SamplingParams
from radixrt.scheduler.admission import to_request
from radixrt.scheduler.policies import PolicyOptions
from radixrt.scheduler.policies.common import common_prefix
from radixrt.scheduler.requests import Limits, Row
from radixrt.scheduler.waiting import REFRESHED, TRIES, WaitingQueue
from tests.scheduler.fakes import Rig, expected

WARM = [1 + i % 60 for i in range(300)]
LIMITS = Limits(context_length=100_000, vocab_size=1000, eos_token_ids=(0,))


class Cache:
    """A view of a cache in which `prefixes` are."""

    def __init__(self, *prefixes: list[int], tight: bool = False) -> None:
        self.prefixes = [tuple(prefix) for prefix in prefixes]
        self.tight = tight
        self.asked = 0

    def reach(self, row: Row) -> int:
        self.asked += 1
        tokens = tuple(row.tokens)
        return max((_shared(tokens, prefix) for prefix in self.prefixes), default=0)


def _shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Queue:
    """A queue of rows with names, from which rows are admitted one by one."""

    def __init__(self, view: Cache, **options: object) -> None:
        self.view = view
        self.queue = WaitingQueue(PolicyOptions(**options), view)  # type: ignore[arg-type]
        self.names: dict[Row, str] = {}

    def add(self, name: str, tokens: list[int], now: float = 0.0, **fields: object) -> Row:
        message = Enqueue(
            request_id=len(self.names), ids=np.array(tokens, np.int32), sampling=SamplingParams(), **fields
        )  # type: ignore[arg-type]
        row = to_request(message, LIMITS, 100_000, now).rows[0]
        self.names[row] = name
        self.queue.append(row)
        return row

    def take(self, now: float = 0.0) -> str | None:
        """The first candidate is admitted, and what it computes is in the cache."""
        row = next(self.queue.candidates(now), None)
        if row is None:
            return None
        self.view.prefixes.append(tuple(row.tokens))
        self.queue.admitted(row)
        return self.names[row]

    def order(self, now: float = 0.0) -> list[str]:
        names = []
        while (name := self.take(now)) is not None:
            names.append(name)
        return names


def test_first_come_first_served() -> None:
    queue = Queue(Cache([5] * 10), name="fcfs")
    for i, tokens in enumerate(([1], [5] * 10, [2], [5] * 9)):
        queue.add(str(i), tokens, now=float(i))
    assert queue.order() == ["0", "1", "2", "3"]


def test_longest_prefix_first_and_siblings_of_whoever_was_admitted() -> None:
    queue = Queue(Cache([5] * 10))
    queue.add("cold", [1, 2, 3, 4])
    queue.add("sibling of cold", [1, 2, 3, 9])
    queue.add("other", [7, 7])
    queue.add("warm", [5] * 12)
    queue.add("child of other", [7, 7, 8, 8, 8, 8, 8])
    queue.add("warmer than warm", [5] * 12 + [1])
    assert queue.order() == [
        "warm", "warmer than warm", "cold", "sibling of cold", "other", "child of other",
    ]  # fmt: skip


def test_siblings_go_before_their_equals_when_memory_is_tight() -> None:
    orders = {}
    for tight in (False, True):
        queue = Queue(Cache([1] * 8, [2] * 8, tight=tight))
        for i in range(3):
            queue.add(f"a{i}", [*[1] * 8, 10 + i])
            queue.add(f"b{i}", [*[2] * 8, 10 + i])
        orders[tight] = queue.order()
    assert orders[False] == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert orders[True] == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_an_evicted_prefix_counts_no_more() -> None:
    view = Cache([1] * 50, [2] * 20)
    queue = Queue(view)
    queue.add("was longest", [1] * 60)
    queue.add("is longest", [2] * 60)
    view.prefixes = [(1,) * 5, (2,) * 20]
    assert queue.order() == ["is longest", "was longest"]


def test_a_prefix_that_came_without_notice_is_found_in_turn() -> None:
    view = Cache()
    queue = Queue(view)
    for i in range(40):
        queue.add(str(i), [3 + i] * 5)
    view.prefixes = [(3 + 39,) * 5]
    for _ in range(40 // REFRESHED + 1):
        next(queue.queue.candidates(0.0))
    assert queue.take() == "39"


def test_priorities_go_before_everything_else() -> None:
    queue = Queue(Cache([5] * 50), max_wait_s=1.0)
    queue.add("late", [1], now=0.0)
    queue.add("warm", [5] * 51, now=9.5)
    queue.add("urgent", [2], now=9.9, priority=-3)
    queue.add("patient", [5] * 52, now=0.0, priority=2)
    assert queue.order(now=10.0) == ["urgent", "late", "warm", "patient"]


def test_late_rows_go_by_deadline_where_the_longest_wait_counts_as_one() -> None:
    queue = Queue(Cache([5] * 50), max_wait_s=4.0)
    queue.add("old", [1] * 3, now=0.0)
    queue.add("soon", [2] * 3, now=2.0, timeout_s=1.5)
    queue.add("warm", [5] * 51, now=2.0)
    queue.add("not yet", [3] * 3, now=2.0, timeout_s=3.9)
    assert queue.take(now=2.5) == "warm"  # nobody is late
    assert queue.take(now=2.8) == "soon"  # half its timeout has passed
    queue.add("warm again", [5] * 51, now=2.9)
    assert queue.take(now=4.1) == "old"  # before "not yet", which is late now, but whose deadline is behind 4.0
    assert queue.order(now=4.1) == ["not yet", "warm again"]


@pytest.mark.parametrize("seed", range(3))
def test_a_late_row_is_admitted_within_its_bound_whatever_comes(seed: int) -> None:
    """Endless warm traffic, more than is admitted, everybody late: the k-th in time goes within 9 k + 8 admissions."""
    rng = random.Random(seed)
    view = Cache([5] * 50)
    queue = Queue(view, max_wait_s=1.0)
    now = 0.0
    bounds: dict[str, int] = {}
    order: list[tuple[float, str]] = []
    for admissions in range(120):
        now += 0.5
        for i in range(2):
            name = f"{admissions}.{i}"
            cold = rng.random() < 0.2
            tokens = [rng.randrange(6, 900) for _ in range(5)] if cold else [5] * 50 + [6 + admissions, i]
            queue.add(name, tokens, now=now)
            order.append((now, name))
        for since, name in order:
            if name not in bounds and now >= since + 1.0:
                ahead = sum(1 for arrived, other in order if other == name or arrived <= since)
                bounds[name] = admissions + 9 * ahead + 8
        admitted = queue.take(now)
        order = [item for item in order if item[1] != admitted]
        assert admitted is not None
        assert admissions < bounds.get(admitted, admissions + 1)
        assert all(admissions < bounds[name] for _, name in order if name in bounds)
    assert len(bounds) > 100


def test_a_cold_request_waits_no_longer_than_configured() -> None:
    rig = Rig(4000, max_num_seqs=1, max_wait_s=0.5)
    rig.submit(WARM, max_tokens=2)
    rig.run()
    cold = rig.submit([50] * 20, max_tokens=2)
    for i in range(400):
        rig.submit([*WARM, 1 + i % 60], max_tokens=2)
        rig.step()
        if (cold, 0) in rig.reasons:
            break
    assert 0.5 <= rig.usage[cold].queue_s < 0.6


def test_a_large_cold_request_is_not_overtaken_for_ever_by_small_ones() -> None:
    rig = Rig(400, max_num_seqs=8, max_wait_s=0.5)
    for i in range(6):
        rig.submit([10 + i] * 20, max_tokens=30, ignore_eos=True, seed=i)
    rig.step()
    large = rig.submit([50] * 330, max_tokens=2)
    for i in range(600):
        if len(rig.scheduler.requests) < 12:
            rig.submit([1 + i % 40] * 20, max_tokens=30, ignore_eos=True, seed=i)
        rig.step()
        if (large, 0) in rig.reasons:
            break
    assert rig.usage[large].queue_s < 1.5


def test_one_request_is_not_starved_by_anothers_thousand() -> None:
    for fair, first in ((True, True), (False, False)):
        rig = Rig(4000, max_num_seqs=2, fair=fair, max_wait_s=1e9, max_waiting=5000)
        rig.submit(WARM, max_tokens=1, namespace=Namespace(tenant="many"))
        rig.run()
        for i in range(1000):
            rig.submit([*WARM, 1 + i % 60], max_tokens=4, namespace=Namespace(tenant="many"), ignore_eos=True)
        for _ in range(50):
            rig.step()
        single = rig.submit([50] * 20, max_tokens=1, namespace=Namespace(tenant="one"))
        for _ in range(60):
            rig.step()
        assert ((single, 0) in rig.reasons) == first


def test_shares_are_paid_in_computed_tokens_and_follow_their_weights() -> None:
    rig = Rig(2000, max_num_seqs=2, max_waiting=10_000, namespace_weights={"b": 3.0}, max_num_batched_tokens=64)
    rng = random.Random(0)
    owners = {}
    for i in range(1400):
        tenant = "ab"[i % 2]
        # b's requests are four times as long: shares are of work, not of requests.
        prompt = [rng.randrange(1, 60) for _ in range(10 if tenant == "a" else 40)]
        owners[rig.submit(prompt, max_tokens=2, namespace=Namespace(tenant=tenant), ignore_eos=True)] = (
            tenant,
            len(prompt),
        )
    for _ in range(700):
        rig.step()
    work = {"a": 0, "b": 0}
    for number in rig.usage:
        tenant, length = owners[number]
        work[tenant] += length + 1
    assert rig.scheduler.rows.waiting and min(work.values()) > 2000
    assert work["b"] / work["a"] == pytest.approx(3.0, rel=0.15)


def test_a_share_that_was_alone_owes_nothing() -> None:
    rig = Rig(2000, max_num_seqs=1, max_waiting=1000)
    for i in range(60):
        rig.submit([1 + i % 50] * 40, max_tokens=2, namespace=Namespace(tenant="early"), ignore_eos=True)
    for _ in range(60):
        rig.step()
    done = len(rig.usage)
    for i in range(60):
        rig.submit([1 + i % 50] * 40, max_tokens=2, namespace=Namespace(tenant="late"), ignore_eos=True)
    for _ in range(120):
        rig.step()
    late = sum(1 for number in rig.usage if number > 60)
    early = len(rig.usage) - done - late
    assert late > 10 and early > late / 3


def test_a_request_whose_time_has_passed_fails_without_costing_a_step() -> None:
    rig = Rig(1000, max_num_seqs=1)
    rig.submit([9] * 10, max_tokens=30, ignore_eos=True)
    rig.step()
    hopeless = rig.submit([7] * 50, max_tokens=5, timeout_s=0.1)
    patient = rig.submit([8] * 5, max_tokens=5, seed=2, timeout_s=60)
    before = rig.runner.computed
    rig.clock.now += 0.2
    rig.run()
    assert "timeout" in rig.errors[hopeless] and (hopeless, 0) not in rig.texts
    assert rig.runner.computed - before < 50
    assert rig.texts[patient, 0] == expected([8] * 5, 5, 2)[0]


def test_a_running_request_ends_with_its_timeout_too() -> None:
    rig = Rig(1000)
    number = rig.submit([9] * 10, max_tokens=500, ignore_eos=True, timeout_s=0.2)
    rig.run()
    assert "timeout" in rig.errors[number] and 5 < len(rig.texts[number, 0]) < 40
    assert rig.scheduler.cache.available == 1000


@pytest.mark.parametrize("name", ["lpm", "fcfs"])
def test_a_step_looks_at_few_of_ten_thousand(name: str) -> None:
    view = Cache([5] * 50)
    queue = Queue(view, name=name)
    rng = random.Random(1)
    for i in range(10_000):
        queue.add(str(i), [rng.choice([5, 6, 7])] * 20 + [i % 900, i // 900], priority=0)
    view.asked = 0
    tried = list(queue.queue.candidates(1.0))
    assert len(tried) == (TRIES if name == "lpm" else 1)
    assert view.asked <= 2 * TRIES + REFRESHED
    view.asked = 0
    assert queue.take() is not None
    assert view.asked <= 20 + REFRESHED


def test_cancelled_rows_leave_the_queue_wherever_they_are() -> None:
    queue = Queue(Cache())
    rows = [queue.add(str(i), [1, 2, 3 + i]) for i in range(6)]
    leader = queue.add("leader", [1, 2, 30, 31])
    queue.queue.admitted(leader)
    queue.queue.park(rows[0], leader)
    queue.queue.park(rows[1])
    for row in rows[:3]:
        queue.queue.remove(row)
    assert len(queue.queue) == 3 and rows[0] not in queue.queue
    queue.queue.wake(rows[1])
    assert queue.order() == ["3", "4", "5"]
    with pytest.raises(KeyError):
        queue.queue.remove(rows[0])


def test_common_prefix() -> None:
    rng = random.Random(3)
    for _ in range(500):
        rows = [[rng.randrange(2) for _ in range(rng.randrange(12))] for _ in range(2)]
        most = rng.randrange(14)
        a, b = (array("i", row) for row in rows)
        assert common_prefix(a, b, most) == min(_shared(tuple(rows[0]), tuple(rows[1])), most)


@pytest.mark.parametrize(
    "options",
    [{"name": "random"}, {"max_wait_s": -1.0}, {"max_wait_s": float("nan")}, {"namespace_weights": {"a": 0.0}}],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(StartupError):
        PolicyOptions(**options)  # type: ignore[arg-type]
