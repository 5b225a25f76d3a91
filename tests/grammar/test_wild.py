"""Schemas as they are found in the wild: nothing invalid is accepted, and what is valid is, unless it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import jsonschema
import pytest
from wild import CASES, Case

from radixrt.errors import ConstraintError
from radixrt.grammar import Grammar
from radixrt.grammar.backends import Backends
from radixrt.params import Constraint

REFUSED = {
    "unique of any": "/uniqueItems",
    "at least one five": "/contains",
    "not a pattern": "/not",
    "control characters": "/enum",
}
"""Cases that may be refused, and the keyword that the refusal points to."""


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_schema_of_the_wild(case: Case, compiler: Backends, accepts: Callable[[Grammar, str], bool]) -> None:
    judge = jsonschema.validators.validator_for(case.schema, jsonschema.Draft202012Validator)
    validator = judge(case.schema, format_checker=judge.FORMAT_CHECKER)
    for loose in (False, True):
        constraint = Constraint(kind="json_schema", value=json.dumps(case.schema), any_whitespace=loose)
        if case.name in REFUSED:
            with pytest.raises(ConstraintError) as refusal:
                compiler.compile(constraint)
            assert (refusal.value.param or "").startswith(REFUSED[case.name])
        grammar = None if case.name in REFUSED else compiler.compile(constraint)
        for expected, values in ((True, case.valid), (False, case.invalid)):
            for value in values:
                assert validator.is_valid(value) is expected, f"the case itself is wrong: {value!r}"
                texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":"))]
                texts += [json.dumps(value, ensure_ascii=False)] if loose else []
                for text in texts if grammar is not None else ():
                    assert accepts(grammar, text) is expected, text
