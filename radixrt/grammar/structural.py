"""Structural tags: text that is free until a trigger, then a tag whose content is JSON of a schema, then free again.

Read in the two shapes that clients send (SGLang and older vLLM: `structures` and `triggers`; vLLM and xgrammar: a
`format` of type `triggered_tags`), or as tags with a separator, alone or between two constant texts. Written as a
grammar of llguidance: each stretch of free text is one lexeme that ends with the first trigger in it, so no
trigger can pass as plain text.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgspec

from radixrt.errors import ConstraintError
from radixrt.grammar.complement import literal
from radixrt.grammar.keywords import ELSEWHERE
from radixrt.grammar.limits import Limits
from radixrt.grammar.schema_text import parse

PARAM = "structural_tag"
MAX_TAGS = 256


class Tag(msgspec.Struct, frozen=True):
    begin: str
    schema: str
    """JSON text."""
    end: str
    place: str = ""
    """JSON pointer to the schema."""


class StructuralTag(msgspec.Struct, frozen=True):
    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool = False
    stop_after_first: bool = False
    """The text ends with the first tag."""
    separator: str | None = None
    """What stands between two tags, where no other text may; there are no triggers then."""
    before: str = ""
    """With a separator: text in front of the first tag."""
    after: str = ""
    """With a separator: text behind the last tag."""


def read_structural_tag(text: str, limits: Limits) -> StructuralTag:
    """Raises ConstraintError, its param a JSON pointer under `structural_tag`."""
    value = parse(text, max_depth=limits.max_depth, param=PARAM)
    if not isinstance(value, dict):
        _refuse("", "must be an object")
    if "structures" in value:
        found = _legacy(value)
    else:
        found = _format(value)
    for i, trigger in enumerate(found.triggers):
        if any(trigger in other for j, other in enumerate(found.triggers) if i != j):
            _refuse("/triggers", f"the trigger {trigger!r} is a part of another one, which would never be reached")
    for tag in found.tags if found.separator is None else ():
        if not any(tag.begin.startswith(trigger) for trigger in found.triggers):
            _refuse("", f"the tag {tag.begin!r} begins with none of the triggers")
    for trigger in found.triggers:
        if not any(tag.begin.startswith(trigger) for tag in found.tags):
            _refuse("/triggers", f"no tag begins with the trigger {trigger!r}")
    return found


def _legacy(value: dict[str, Any]) -> StructuralTag:
    _known(value, {"type", "structures", "triggers"}, "")
    tags = []
    for i, one in enumerate(_list(value.get("structures"), "/structures")):
        place = f"/structures/{i}"
        _known(one, {"begin", "schema", "end"}, place)
        schema = _schema(one.get("schema"), f"{place}/schema")
        tags.append(Tag(_text(one, "begin", place), schema, _text(one, "end", place), f"{place}/schema"))
    return StructuralTag(_triggers(value.get("triggers"), "/triggers"), tuple(tags))


def _format(value: dict[str, Any]) -> StructuralTag:
    _known(value, {"type", "format"}, "")
    form = value.get("format")
    if not isinstance(form, dict):
        _refuse("/format", "must be an object (or give `structures` and `triggers`)")
    if form.get("type") == "sequence":
        return _enclosed(form)
    if form.get("type") not in ("triggered_tags", "tags_with_separator"):
        _refuse("/format/type", f"{form.get('type')!r} cannot be enforced here", ELSEWHERE)
    return _tags(form, "/format")


def _enclosed(form: dict[str, Any]) -> StructuralTag:
    """Tags with a separator between two constant texts: a list of them."""
    _known(form, {"type", "elements"}, "/format")
    parts = _list(form.get("elements"), "/format/elements")
    kinds = [one.get("type") if isinstance(one, dict) else None for one in parts]
    if kinds != ["const_string", "tags_with_separator", "const_string"]:
        _refuse("/format/elements", "only tags_with_separator between two const_string can be enforced here", ELSEWHERE)
    texts = []
    for i in (0, 2):
        _known(parts[i], {"type", "value"}, f"/format/elements/{i}")
        texts.append(_text(parts[i], "value", f"/format/elements/{i}"))
    return msgspec.structs.replace(_tags(parts[1], "/format/elements/1"), before=texts[0], after=texts[1])


def _tags(form: dict[str, Any], where: str) -> StructuralTag:
    between = "separator" if form["type"] == "tags_with_separator" else "triggers"
    _known(form, {"type", between, "tags", "at_least_one", "stop_after_first"}, where)
    tags = []
    for i, one in enumerate(_list(form.get("tags"), f"{where}/tags")):
        place = f"{where}/tags/{i}"
        _known(one, {"type", "begin", "content", "end"}, place)
        content = one.get("content")
        if not isinstance(content, dict) or content.get("type") != "json_schema":
            _refuse(f"{place}/content", "only a content of type json_schema can be enforced here", ELSEWHERE)
        _known(content, {"type", "json_schema"}, f"{place}/content")
        end = one.get("end")
        if isinstance(end, list) and len(end) == 1:
            end = end[0]
        if not isinstance(end, str):
            _refuse(f"{place}/end", "must be one string", ELSEWHERE if isinstance(end, list) else None)
        inside = f"{place}/content/json_schema"
        tags.append(Tag(_text(one, "begin", place), _schema(content.get("json_schema"), inside), end, inside))
    flags = {}
    for name in ("at_least_one", "stop_after_first"):
        if not isinstance(form.get(name, False), bool):
            _refuse(f"{where}/{name}", "must be true or false")
        flags[name] = form.get(name, False)
    if between == "separator":
        return StructuralTag((), tuple(tags), separator=_text(form, "separator", where), **flags)
    return StructuralTag(_triggers(form.get("triggers"), f"{where}/triggers"), tuple(tags), **flags)


def lark(tag: StructuralTag, names: list[str]) -> str:
    """A Lark grammar whose sub-grammars, one a tag, have these names."""
    if tag.separator is not None:
        return _separated(tag, tag.separator, names)
    any_trigger = "|".join(map(literal, tag.triggers))
    rules: list[str] = []
    for i, trigger in enumerate(tag.triggers):
        rests = [
            " ".join(filter(None, (_quoted(one.begin[len(trigger) :]), f"@{name}", _quoted(one.end))))
            for one, name in zip(tag.tags, names, strict=True)
            if one.begin.startswith(trigger)
        ]
        rules.append(f"segment_{i}: FREE_{i} ({' | '.join(rests)})")
        rules.append(f"FREE_{i}: /(?s:.*){literal(trigger)}/ & ~/(?s:.*)({any_trigger})(?s:.+)/")
    segments = "(" + " | ".join(f"segment_{i}" for i in range(len(tag.triggers))) + ")"
    if tag.stop_after_first:
        start = segments if tag.at_least_one else f"{segments} | REST?"
    else:
        start = f"{segments}{'+' if tag.at_least_one else '*'} REST?"
    rest = f"REST: /(?s:.+)/ & ~/(?s:.*)({any_trigger})(?s:.*)/"
    return "\n".join([f"start: {start}", *rules, *([rest] if "REST" in start else []), ""])


def _separated(tag: StructuralTag, separator: str, names: list[str]) -> str:
    ways = [
        " ".join(filter(None, (_quoted(one.begin), f"@{name}", _quoted(one.end))))
        for one, name in zip(tag.tags, names, strict=True)
    ]
    more = "" if tag.stop_after_first else f" ({_quoted(separator)} one)*"
    start = f"one{more}" if tag.at_least_one else f"(one{more})?"
    start = " ".join(filter(None, (_quoted(tag.before), start, _quoted(tag.after))))
    return f"start: {start}\none: {' | '.join(ways)}\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _triggers(value: Any, place: str) -> tuple[str, ...]:
    found = _list(value, place)
    if not all(isinstance(one, str) and one for one in found):
        _refuse(place, "must hold strings that are not empty")
    return tuple(dict.fromkeys(found))


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        _refuse(place, "must be a list, not empty")
    if len(value) > MAX_TAGS:
        _refuse(place, f"holds {len(value)} entries; the limit is {MAX_TAGS}")
    return value


def _text(value: dict[str, Any], name: str, place: str) -> str:
    text = value.get(name)
    if not isinstance(text, str):
        _refuse(f"{place}/{name}", "must be a string")
    return text


def _schema(value: Any, place: str) -> str:
    if not isinstance(value, dict | bool):
        _refuse(place, "must be a JSON Schema")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _known(value: Any, names: set[str], place: str) -> None:
    if not isinstance(value, dict):
        _refuse(place, "must be an object")
    for name in sorted(value.keys() - names):
        _refuse(f"{place}/{name}", f"the field {name!r} is not known, and would be ignored")


def _refuse(place: str, why: str, code: str | None = None) -> NoReturn:
    raise ConstraintError(f"structural_tag{place}: {why}", param=place or PARAM, code=code)
