"""Constraints made to hurt, at full size: refused or bounded, and the service serves the next one as before."""

from __future__ import annotations

import json
import random
import select
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from radixrt.checkpoint import Vocabulary
from radixrt.errors import ConstraintError
from radixrt.grammar import CompileService, Grammar, Limits, MatcherFailed, ServiceLimits
from radixrt.grammar.memory import resident_bytes
from radixrt.params import Constraint

GOOD = Constraint(kind="json_schema", value='{"type":"integer","maximum":7}')
WIDE = Limits(
    max_source_bytes=8 * 2**20, max_choices=200_000, max_properties=5000, max_multiple_of=10**7, compile_timeout_s=1.5
)
"""Limits on size lifted, so that the limits on work have to hold."""


def schema(value: Any) -> Constraint:
    return Constraint(kind="json_schema", value=json.dumps(value))


def nested(depth: int) -> Any:
    return {"anyOf": [nested(depth - 1)] * 2} if depth else {"type": "integer"}


def bombs() -> dict[str, Constraint]:
    one = {"type": "object", "properties": {"common_prefix": {"type": "string"}}, "required": ["common_prefix"]}
    return {
        "enum of 100,000": schema({"enum": [f"value {i}" for i in range(100_000)]}),
        "200 strings of 20 kB": schema({"enum": [f"{i}" + "x" * 20_000 for i in range(200)]}),
        "const of 2 MB": schema({"const": "y" * 2_000_000}),
        "anyOf of 500 objects": schema(
            {"anyOf": [{**one, "properties": one["properties"] | {"n": {"const": i}}} for i in range(500)]}
        ),
        "3,000 optional": schema({"type": "object", "properties": {f"p{i}": {} for i in range(3000)}}),
        "anyOf 2^14": schema(nested(14)),
        "multipleOf": schema({"type": "integer", "multipleOf": 1_000_003}),
        "regex": Constraint(kind="regex", value="(a|b)*a(a|b){20}"),
        "$ref loop": schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        "not of many": schema({"allOf": [{"not": {"required": [f"p{i}" for i in range(200)]}} for _ in range(20)]}),
        "oneOf of oneOf": schema({"oneOf": [{"oneOf": [{"not": {"required": ["a", str(i)]}}, {}]} for i in range(8)]}),
    }


BOMBS = bombs()


@pytest.fixture(scope="module", params=["default", "wide"])
def service(request: pytest.FixtureRequest, vocabulary: Vocabulary, vocab_size: int) -> Iterator[CompileService]:
    limits = Limits() if request.param == "default" else WIDE
    made = CompileService(vocabulary, vocab_size, limits, service_limits=ServiceLimits(workers=1))
    yield made
    made.close()


def fetch(service: CompileService, constraint: Constraint) -> Grammar | ConstraintError:
    answer = service.request(constraint)
    while answer is None:
        select.select([service.fileno()], [], [], 30)
        service.completed()
        answer = service.request(constraint)
    assert isinstance(answer, ConstraintError) or answer.source_bytes > 0
    return answer  # type: ignore[return-value]


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_or_bounded(name: str, service: CompileService, vocab_size: int) -> None:
    answer = fetch(service, BOMBS[name])
    if isinstance(answer, ConstraintError):
        assert answer.status == 400 and answer.message
    else:
        mask = np.zeros((1, (vocab_size + 31) // 32), dtype=np.int32)
        answer.matcher().fill(mask, 0)
        assert mask.any()
    assert not isinstance(fetch(service, GOOD), ConstraintError)


def test_memory_is_back_after_all_of_them(service: CompileService) -> None:
    """After the bombs (this runs last of the module's service) the worker is a fresh or a slim one."""
    fetch(service, schema({"type": "integer", "maximum": 8}))
    (pid,) = service.worker_pids()
    assert 0 < resident_bytes(pid) < 450 * 2**20


def test_an_ambiguous_grammar_of_3000_characters_is_bounded(vocabulary: Vocabulary) -> None:
    """Each step costs more than the one before: the row ends by its budget, long before 3,000 characters."""
    from radixrt.grammar.backends import compile_constraint

    budget = Limits(max_row_s=0.3)
    text = 'root ::= s\ns ::= s s | "a" | "aa" | "b"'
    matcher = compile_constraint(Constraint(kind="grammar", value=text), vocabulary, vocabulary.size, budget).matcher()
    mask = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
    letters = [vocabulary.encode("a")[0], vocabulary.encode("b")[0]]
    rng = random.Random(2)
    steps = 0

    def run() -> None:
        nonlocal steps
        while steps < 3000:
            matcher.fill(mask, 0)
            matcher.accept(rng.choice(letters))
            steps += 1

    with pytest.raises(MatcherFailed, match=r"took .* the limit is 0\.\d s"):
        run()
    assert 0 < steps < 2999
    assert matcher.spent_s <= budget.max_row_s + budget.max_step_s  # type: ignore[attr-defined]
    with pytest.raises(MatcherFailed):
        matcher.fill(mask, 0)
    assert not mask.any()
