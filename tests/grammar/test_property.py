"""Property: whatever is sampled under a schema's masks parses and validates by jsonschema, in both kinds of space."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_json import write

from radixrt.checkpoint import Vocabulary
from radixrt.errors import ConstraintError
from radixrt.grammar import GrammarDeadEnd
from radixrt.grammar.backends import Backends
from radixrt.params import Constraint
from tests.schemas import SCHEMAS


def test_whatever_is_sampled_parses_and_validates(compiler: Backends, vocabulary: Vocabulary, vocab_size: int) -> None:
    count = {"refused": 0, "written": 0, "cut": 0}

    @settings(max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(SCHEMAS, st.integers(0, 2**32), st.booleans())
    def walk(schema: dict[str, Any], seed: int, loose: bool) -> None:
        try:
            grammar = compiler.compile(Constraint(kind="json_schema", value=json.dumps(schema), any_whitespace=loose))
        except ConstraintError:
            count["refused"] += 1
            return
        rng = random.Random(seed)
        for _ in range(3):
            try:
                text = write(grammar, vocabulary, vocab_size, rng, 100)
            except GrammarDeadEnd as error:
                pytest.fail(f"a dead end: {error.message}")
            if text is None:
                count["cut"] += 1
                continue
            jsonschema.Draft202012Validator(
                schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
            ).validate(json.loads(text))
            count["written"] += 1

    walk()
    assert count["written"] > 150, count
