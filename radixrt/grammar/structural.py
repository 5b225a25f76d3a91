"""Structural tags: text that is free until a trigger, then a tag whose content is JSON of a schema, then free again.

Read in the two shapes that clients send (SGLang and older vLLM: `structures` and `triggers`; vLLM and xgrammar: a
`format` of type `triggered_tags`), or as tags with a separator: alone, between two constant texts, behind free text
(`sequence` of `any_text` and `optional`), or beside JSON (`or`). Written as a grammar of llguidance: each stretch of
free text is one lexeme that ends with the first trigger in it, so no trigger can pass as plain text.

Control tokens that the constraint names stand for themselves in the tag's own words, and never come elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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
    free: tuple[str, ...] | None = None
    """With a separator: free text stands in front of all that, or alone, and holds none of these; None: it does not."""
    instead: Tag | None = None
    """With a separator: or the text is this tag."""

    @property
    def all_tags(self) -> tuple[Tag, ...]:
        return self.tags if self.instead is None else (*self.tags, self.instead)


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
    return _way(form, "/format")


def _way(form: dict[str, Any], where: str) -> StructuralTag:
    kind = form.get("type")
    if kind in ("triggered_tags", "tags_with_separator"):
        return _tags(form, where)
    if kind not in ("sequence", "or"):
        _refuse(f"{where}/type", f"{kind!r} cannot be enforced here", ELSEWHERE)
    _known(form, {"type", "elements"}, where)
    parts, inside = _list(form.get("elements"), f"{where}/elements"), f"{where}/elements"
    kinds = [one.get("type") if isinstance(one, dict) else None for one in parts]
    if kind == "sequence" and kinds == ["const_string", "tags_with_separator", "const_string"]:
        return _enclosed(parts, inside)
    if kind == "sequence" and kinds == ["any_text", "optional"]:
        return _behind_text(parts, inside)
    if kind == "or" and kinds[:1] == ["json_schema"] and len(kinds) == 2 and isinstance(parts[1], dict):
        return _beside_json(parts, inside)
    _refuse(
        inside,
        "only tags_with_separator between two const_string, behind any_text (as optional), or beside a json_schema "
        "can be enforced here",
        ELSEWHERE,
    )


def _enclosed(parts: list[Any], inside: str) -> StructuralTag:
    """Tags with a separator between two constant texts: a list of them."""
    texts = []
    for i in (0, 2):
        _known(parts[i], {"type", "value"}, f"{inside}/{i}")
        texts.append(_text(parts[i], "value", f"{inside}/{i}"))
    return msgspec.structs.replace(_tags(parts[1], f"{inside}/1"), before=texts[0], after=texts[1])


def _behind_text(parts: list[Any], inside: str) -> StructuralTag:
    _known(parts[0], {"type", "excludes"}, f"{inside}/0")
    excluded = parts[0].get("excludes", [])
    if not isinstance(excluded, list) or not all(isinstance(one, str) and one for one in excluded):
        _refuse(f"{inside}/0/excludes", "must be a list of strings that are not empty")
    return msgspec.structs.replace(_separated_way(parts[1], inside), free=tuple(dict.fromkeys(excluded)))


def _separated_way(optional: dict[str, Any], inside: str) -> StructuralTag:
    _known(optional, {"type", "content"}, f"{inside}/1")
    if not isinstance(content := optional.get("content"), dict):
        _refuse(f"{inside}/1/content", "must be an object")
    found = _way(content, f"{inside}/1/content")
    if found.separator is None or found.free is not None or found.instead is not None:
        _refuse(f"{inside}/1/content", "must be tags_with_separator, or those between two const_string", ELSEWHERE)
    return found


def _beside_json(parts: list[Any], inside: str) -> StructuralTag:
    _known(parts[0], {"type", "json_schema"}, f"{inside}/0")
    place = f"{inside}/0/json_schema"
    instead = Tag("", _schema(parts[0].get("json_schema"), place), "", place)
    found = _way(parts[1], f"{inside}/1")
    if found.separator is None or found.free is not None or found.instead is not None:
        _refuse(f"{inside}/1", "must be tags_with_separator, or those between two const_string", ELSEWHERE)
    return msgspec.structs.replace(found, instead=instead)


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


def lark(tag: StructuralTag, names: list[str], controls: Mapping[str, int]) -> str:
    """A Lark grammar whose sub-grammars, one for each of `all_tags`, have these names.

    `controls`: control tokens by their texts. ConstraintError where one of them has no place.
    """
    words = _Words(controls)
    if tag.separator is not None:
        return _separated(tag, tag.separator, names, words)
    if controls:
        _refuse("/triggers", "a trigger cannot be a control token: put the tags behind any_text", ELSEWHERE)
    any_trigger = "|".join(map(literal, tag.triggers))
    rules: list[str] = []
    for i, trigger in enumerate(tag.triggers):
        rests = [
            " ".join(filter(None, (words.quoted(one.begin[len(trigger) :]), f"@{name}", words.quoted(one.end))))
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


def _separated(tag: StructuralTag, separator: str, names: list[str], words: _Words) -> str:
    ways = [
        " ".join(filter(None, (words.quoted(one.begin), f"@{name}", words.quoted(one.end))))
        for one, name in zip(tag.tags, names, strict=False)
    ]
    more = "" if tag.stop_after_first else f" ({words.quoted(separator)} one)*"
    start = f"one{more}" if tag.at_least_one else f"(one{more})?"
    start = " ".join(filter(None, (words.quoted(tag.before), start, words.quoted(tag.after))))
    rules = [f"one: {' | '.join(ways)}"]
    if tag.instead is not None:
        start = f"@{names[-1]} | {start}"
    if tag.free is not None:
        if not all(words.begins_with_control(tag.before or one.begin) for one in tag.tags):
            _refuse("", "what stands behind any_text must begin with a control token", ELSEWHERE)
        never = "|".join(map(literal, dict.fromkeys((*tag.free, *words.controls))))
        rules += [f"rest: {start}", f"FREE: /(?s:.+)/ & ~/(?s:.*)({never})(?s:.*)/"]
        start = "FREE? rest?"
    return "\n".join([f"start: {start}", *rules, ""])


class _Words:
    """The tag's own words in Lark."""

    def __init__(self, controls: Mapping[str, int]) -> None:
        self.controls = controls
        longest = sorted(map(re.escape, controls), key=len, reverse=True)
        self._cut = re.compile(f"({'|'.join(longest)})") if controls else None

    def quoted(self, text: str) -> str:
        """The text, with its control tokens as tokens; empty for none."""
        parts = self._cut.split(text) if self._cut is not None else [text]
        return " ".join(
            f"<[{self.controls[part]}]>" if part in self.controls else json.dumps(part, ensure_ascii=False)
            for part in parts
            if part
        )

    def begins_with_control(self, text: str) -> bool:
        return text.startswith(tuple(self.controls))


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
