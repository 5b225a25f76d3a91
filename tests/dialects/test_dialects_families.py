"""Which dialect a template speaks, what its constraint says, and that its parser reads what its constraint allows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixrt.dialects import DIALECTS, Arguments, CallParser, CallStart, Function, detect, formats

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTIONS = [Function.of("get_weather", SCHEMA), Function.of("now", None, 1)]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}...<tool_call>\n{...}\n</tool_call>", "hermes"),
        ("{{ tools }}<tool_call>\n<function=f>", None),
        ("{{ tools }}[TOOL_CALLS]", "mistral"),
        ("{{ tools }}[TOOL_CALLS]f[ARGS]{}", "mistral-args"),
        ("{{ tools }}[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}", None),
        ('<|start_header_id|>{{ tools }}{"name": ..., \'"parameters": \'}', "llama"),
        ("{{ tools }}", None),
    ],
)
def test_detection(template: str, name: str | None) -> None:
    assert detect(template, knows_tools=True) == name
    assert detect(template, knows_tools=False) == "hermes"


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_every_tag_is_read_as_the_call_that_it_is(name: str) -> None:
    dialect = DIALECTS[name]
    for function, tag in zip(FUNCTIONS, dialect.tags(FUNCTIONS), strict=True):
        assert tag["content"]["json_schema"] == function.schema
        parser = CallParser(dialect, ["get_weather", "now"])
        events = [*parser.push(f'{tag["begin"]}{{"city": "x"}}{tag["end"]}'), *parser.finish(cut=False)]
        assert events == [CallStart(0, function.name), Arguments(0, '{"city": "x"}')] and parser.complete


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_formats(name: str) -> None:
    dialect = DIALECTS[name]
    free = dialect.free(FUNCTIONS, many=True)
    assert free["type"] == "triggered_tags" and free["at_least_one"] is False
    assert all(any(tag["begin"].startswith(t) for t in free["triggers"]) for tag in free["tags"])
    forced = dialect.forced(FUNCTIONS, many=False)
    tags = forced["elements"][1] if name == "mistral" else forced
    assert tags["type"] == "tags_with_separator" and tags["stop_after_first"] is True and tags["at_least_one"] is True
    assert json.loads(formats.source(forced)) == {"type": "structural_tag", "format": forced}


def test_only_a_whole_head_opens_a_call_of_llama() -> None:
    text = '{"name" : "now", "parameters": {}}'
    parser = CallParser(DIALECTS["llama"], ["now"])
    assert [*parser.push(text), *parser.finish(cut=False)] and parser.count == 0


def test_ids() -> None:
    for dialect in DIALECTS.values():
        assert len({dialect.new_id() for _ in range(50)}) == 50
    assert all(len(i) == 9 and i.isalnum() for i in (DIALECTS["mistral"].new_id() for _ in range(20)))


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (None, {"type": "object", "additionalProperties": False}),
        ({}, {"type": "object", "additionalProperties": False}),
        ({"type": "object", "properties": {}}, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"type": "object", "additionalProperties": True}, {"type": "object", "additionalProperties": True}),
        ({"type": "object", "required": ["x"]}, {"type": "object", "required": ["x"]}),
        ({"type": "object", "minProperties": 1}, {"type": "object", "minProperties": 1}),
        ({"$ref": "#/$defs/A", "$defs": {"A": {}}}, {"type": "object", "$ref": "#/$defs/A", "$defs": {"A": {}}}),
        (
            {"properties": {"r": {"type": "object", "properties": {"n": {}}}, "l": {"items": {"type": "object"}}}},
            {
                "type": "object",
                "properties": {
                    "r": {"type": "object", "properties": {"n": {}}, "additionalProperties": False},
                    "l": {"items": {"type": "object", "additionalProperties": False}},
                },
                "additionalProperties": False,
            },
        ),
    ],
)
def test_undeclared_parameters_do_not_exist(given: dict[str, Any] | None, made: dict[str, Any]) -> None:
    assert Function.of("f", given).schema == made
