"""What a model writes at temperature 1.5 under a schema parses and validates by jsonschema, or was cut by its length.

The tiny model's text means nothing, so it goes wherever the masks let it; the real one writes what models write.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from radixrt import Constraint, Engine, SamplingParams
from radixrt.errors import ConstraintError
from tests.schemas import SCHEMAS

WRITTEN = SamplingParams(temperature=1.5, max_tokens=120, n=4)


def drawn(count: int) -> list[dict[str, Any]]:
    """The first `count` schemas of the strategy; the same in every run."""
    found: list[dict[str, Any]] = []

    @settings(
        max_examples=count, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(SCHEMAS)
    def draw(schema: dict[str, Any]) -> None:
        found.append(schema)

    draw()
    return found


@pytest.mark.parametrize(("which", "count"), [("small_engine", 60), ("engine", 8)])
def test_what_is_written_is_valid_or_cut(request: pytest.FixtureRequest, long: bool, which: str, count: int) -> None:
    engine: Engine = request.getfixturevalue(which)
    schemas = drawn(10 * count if long else count)
    whole = asyncio.run(_written(engine, schemas))
    assert whole > count, "most of what was written was whole"


async def _written(engine: Engine, schemas: list[dict[str, Any]]) -> int:
    """Write under every schema, several at once, and judge it; how many texts were whole."""
    gate = asyncio.Semaphore(8)

    async def one(number: int, schema: dict[str, Any]) -> int:
        constraint = Constraint(kind="json_schema", value=json.dumps(schema), any_whitespace=number % 3 == 0)
        async with gate:
            try:
                answer = await engine.agenerate(f"{number}: ", WRITTEN, constraint=constraint)
            except ConstraintError:
                return 0  # refused, not ignored
        whole = 0
        for choice in answer.choices:
            assert choice.finish_reason in ("stop", "length")
            if choice.finish_reason == "stop":
                kind = jsonschema.Draft202012Validator
                kind(schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(choice.text))
                whole += 1
        return whole

    return sum(await asyncio.gather(*[one(number, schema) for number, schema in enumerate(schemas)]))
