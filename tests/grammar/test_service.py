"""The compile service: answers without waiting, single flight, limits that kill, nothing left behind."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from radixrt.checkpoint import Vocabulary
from radixrt.errors import ConstraintError, Overloaded, RadixrtError
from radixrt.grammar import CompileService, Grammar, Limits, ServiceLimits
from radixrt.params import Constraint

PRIMES = (9973, 9967)
BOMB = Constraint(
    kind="json_schema", value=json.dumps({"type": "integer", "allOf": [{"multipleOf": p} for p in PRIMES]})
)
GOOD = Constraint(kind="json_schema", value='{"type":"integer"}')
LONG_S = 60.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def fetch(service: CompileService, constraint: Constraint) -> Grammar | RadixrtError:
    """Ask and wait, as the scheduler's loop does."""
    answer = service.request(constraint)
    while answer is None:
        assert select.select([service], [], [], LONG_S)[0], "no answer came"
        service.completed()
        answer = service.request(constraint)
    return answer


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(vocabulary: Vocabulary, vocab_size: int, clock: Clock) -> Iterator[CompileService]:
    made = CompileService(vocabulary, vocab_size, service_limits=ServiceLimits(workers=1), clock=clock)
    yield made
    made.close()


def test_request_is_answered_later_and_then_at_once(service: CompileService, vocab_size: int) -> None:
    assert service.request(GOOD) is None
    assert select.select([service], [], [], LONG_S)[0]
    assert service.completed() == [GOOD]
    assert not select.select([service], [], [], 0)[0], "nothing more to say"
    grammar = service.request(GOOD)
    assert not isinstance(grammar, ConstraintError) and grammar is not None
    bitmask = np.zeros((1, (vocab_size + 31) // 32), dtype=np.int32)
    grammar.matcher().fill(bitmask, 0)
    assert bitmask.any()
    assert (service.compiles, service.cache_hits) == (1, 0)
    assert service.request(GOOD) is grammar
    assert (service.compiles, service.cache_hits) == (1, 1)
    assert service.compile_seconds > 0


def test_equal_constraints_share_one_compile(service: CompileService) -> None:
    again = Constraint(kind="json_schema", value='{"type":"integer"}')
    assert again is not GOOD
    assert [service.request(GOOD), service.request(again), service.request(GOOD)] == [None, None, None]
    other = Constraint(kind="json_schema", value='{"type":"integer"}', any_whitespace=True)
    assert fetch(service, other) is not fetch(service, GOOD)
    assert service.compiles == 2
    assert service.request(again) is service.request(GOOD)


def test_bad_constraints_are_refused_between_good_ones(service: CompileService) -> None:
    fetch(service, GOOD)
    before = service.worker_pids()
    for bad, param, words in (
        (Constraint(kind="json_schema", value='{"properties":{"foo":"bar"}}'), "/properties/foo", "schema"),
        (Constraint(kind="json_schema", value='{"$ref":"#"}'), "/$ref", "leads back to itself"),
        (Constraint(kind="regex", value="[unclosed"), "regex", "not closed"),
        (Constraint(kind="grammar", value="root ::= missing"), "grammar", "missing is not defined"),
        (Constraint(kind="regex", value="[^\\s\\S]"), "regex", "nothing satisfies"),
    ):
        answer = fetch(service, bad)
        assert isinstance(answer, ConstraintError)
        assert answer.param == param and words in answer.message
        assert not isinstance(fetch(service, Constraint(kind="regex", value=f"ok{words}")), ConstraintError)
    assert service.worker_pids() == before, "the same process did all of it"
    assert service.refusals == 5


def test_what_is_too_large_is_refused_without_a_worker(service: CompileService) -> None:
    answer = service.request(Constraint(kind="regex", value="a" * 70_000))
    assert isinstance(answer, ConstraintError) and "limit is 65536" in answer.message
    assert not select.select([service], [], [], 0)[0]


def test_refusals_are_remembered_for_a_while(service: CompileService, clock: Clock) -> None:
    bad = Constraint(kind="regex", value="[unclosed")
    first = fetch(service, bad)
    clock.now += 59
    again = service.request(bad)
    assert isinstance(again, ConstraintError) and isinstance(first, ConstraintError)
    assert again.info() == first.info()
    clock.now += 2
    assert service.request(bad) is None
    assert isinstance(fetch(service, bad), ConstraintError)


def test_a_bomb_costs_its_sender_a_refusal_and_the_worker_its_life(vocabulary: Vocabulary, vocab_size: int) -> None:
    limits = Limits(compile_timeout_s=2.0)
    service = CompileService(vocabulary, vocab_size, limits, service_limits=ServiceLimits(workers=1))
    try:
        fetch(service, GOOD)
        (pid,) = service.worker_pids()
        answer = fetch(service, BOMB)
        assert isinstance(answer, ConstraintError)
        assert "more than 2 s, which is the limit" in answer.message
        assert (answer.param, answer.code) == ("json_schema", "constraint_too_expensive")
        assert service.workers_lost == 1
        assert not is_running(pid)
        assert not isinstance(fetch(service, Constraint(kind="regex", value="[a-f]+")), ConstraintError)
        assert service.worker_pids() != [pid]
    finally:
        service.close()


def test_memory_is_limited(vocabulary: Vocabulary, vocab_size: int) -> None:
    limits = Limits(compile_timeout_s=LONG_S, compile_memory_bytes=32 * 2**20)
    service = CompileService(vocabulary, vocab_size, limits, service_limits=ServiceLimits(workers=1))
    try:
        answer = fetch(service, BOMB)
        assert isinstance(answer, ConstraintError)
        assert "more than 32 MiB of memory, which is the limit" in answer.message
        assert not isinstance(fetch(service, GOOD), ConstraintError)
    finally:
        service.close()


def test_a_killed_worker_is_replaced_and_the_constraint_is_tried_again(service: CompileService) -> None:
    fetch(service, GOOD)
    (pid,) = service.worker_pids()
    os.kill(pid, 9)
    assert not isinstance(fetch(service, Constraint(kind="regex", value="abc")), ConstraintError)
    assert service.workers_lost == 1 and pid not in service.worker_pids()
    assert service.request(GOOD) is not None, "what was compiled is not lost"


def test_what_is_not_the_constraints_doing_is_soon_forgotten(
    service: CompileService, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(service, GOOD)
    other = Constraint(kind="regex", value="abc")
    with monkeypatch.context() as broken:
        broken.setattr("radixrt.grammar.child.sys.executable", "/bin/false")
        os.kill(service.worker_pids()[0], 9)
        answer = fetch(service, other)
    assert isinstance(answer, Overloaded) and answer.code == "compile_worker_failed", "503: it will be well again"
    clock.now += 1
    assert not isinstance(fetch(service, other), ConstraintError)


def test_a_second_worker_takes_what_the_first_is_too_busy_for(vocabulary: Vocabulary, vocab_size: int) -> None:
    service = CompileService(vocabulary, vocab_size, Limits(compile_timeout_s=LONG_S))
    try:
        fetch(service, GOOD)
        assert len(service.worker_pids()) == 1
        assert service.request(BOMB) is None
        assert not isinstance(fetch(service, Constraint(kind="regex", value="[a-f]+")), ConstraintError)
        assert service.request(BOMB) is None, "still at it, and nobody waited for it"
        pids = service.worker_pids()
        assert len(pids) == 2
    finally:
        service.close()
    assert not any(map(is_running, pids))


def test_the_cache_is_bounded_and_drops_what_was_used_least(vocabulary: Vocabulary, vocab_size: int) -> None:
    service = CompileService(vocabulary, vocab_size, service_limits=ServiceLimits(workers=1, cache_entries=2))
    a, b, c = (Constraint(kind="regex", value=text) for text in "abc")
    try:
        for constraint in (a, b, a, c):
            fetch(service, constraint)
        assert service.compiles == 3
        assert service.request(a) is not None and service.request(c) is not None
        assert service.request(b) is None
    finally:
        service.close()


def test_close_leaves_nothing(vocabulary: Vocabulary, vocab_size: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    service = CompileService(vocabulary, vocab_size, Limits(compile_timeout_s=LONG_S))
    fetch(service, GOOD)
    service.request(BOMB)
    pids = service.worker_pids()
    assert pids and all(map(is_running, pids))
    service.close()
    service.close()
    assert not any(map(is_running, pids))
    assert len(os.listdir("/proc/self/fd")) == before
    assert service.completed() == []
    with pytest.raises(RuntimeError, match="closed"):
        service.request(Constraint(kind="regex", value="new"))


def test_a_model_without_end_tokens_is_a_refusal_not_a_crash(vocabulary: Vocabulary, vocab_size: int) -> None:
    bare = Vocabulary(vocabulary.tokenizer_json(), bos_id=None, eos_ids=[], adds_bos=False)
    service = CompileService(bare, vocab_size, service_limits=ServiceLimits(workers=1))
    try:
        answer = fetch(service, GOOD)
        assert isinstance(answer, ConstraintError) and "no end token" in answer.message
    finally:
        service.close()


def test_a_worker_starts_with_the_first_constraint_or_when_it_is_asked_for(
    vocabulary: Vocabulary, vocab_size: int
) -> None:
    for asked in (False, True):
        service = CompileService(vocabulary, vocab_size, service_limits=ServiceLimits(workers=1), start=False)
        assert not service.started and not service.worker_pids()
        if asked:
            service.start()
            service.start()
            assert service.started
        assert not isinstance(fetch(service, GOOD), RadixrtError)
        assert len(service.worker_pids()) == 1
        service.close()
