"""Structural tags as JSON, in xgrammar's words: how the grammar room is told what the text must look like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

Format: TypeAlias = dict[str, Any]


def tag(begin: str, schema: Any, end: str) -> Format:
    """`begin`, JSON of the schema, `end`."""
    return {"type": "tag", "begin": begin, "content": {"type": "json_schema", "json_schema": schema}, "end": end}


def separated(tags: Sequence[Format], separator: str, *, many: bool) -> Format:
    """One of the tags and nothing else; with `many` one or more, with `separator` between two."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not many,
    }


def enclosed(begin: str, tags: Format, end: str) -> Format:
    """`begin`, separated tags, `end`."""
    texts = [{"type": "const_string", "value": text} for text in (begin, end)]
    return {"type": "sequence", "elements": [texts[0], tags, texts[1]]}


def behind_text(excluded: str, tags: Format) -> Format:
    """Free text without `excluded`; what separated tags (enclosed or not) allow may stand behind it."""
    return {
        "type": "sequence",
        "elements": [{"type": "any_text", "excludes": [excluded]}, {"type": "optional", "content": tags}],
    }


def beside_json(schema: Any, tags: Format) -> Format:
    """JSON of the schema, or what separated tags (enclosed or not) allow; nothing else."""
    return {"type": "or", "elements": [{"type": "json_schema", "json_schema": schema}, tags]}


def triggered(triggers: Sequence[str], tags: Sequence[Format], *, many: bool, needed: bool = False) -> Format:
    """Free text; where a trigger stands, one of the tags begins. Without `many` the first tag ends the text."""
    return {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": list(tags),
        "at_least_one": needed,
        "stop_after_first": not many,
    }


def source(form: Format) -> str:
    """The text of a structural_tag constraint."""
    return json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False, separators=(",", ":"))
