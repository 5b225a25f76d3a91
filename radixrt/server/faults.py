"""What a 400 says of a field beside its name: the value that was there, shortened, and the words that may be there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from msgspec import inspect

from radixrt.errors import InvalidRequest

SHOWN = 60
"""Characters of a value."""
WORDS = 40
"""Words that are listed."""
KEYED, KEYED_BYTES = 128, 2**16
"""Keys of an object, and bytes of a body, among which the one at fault is looked for."""

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]")

_IN_FUNCTION = re.compile(r"\b(tools\[\d+\])\.function\.(\w+)")
_QUOTED = re.compile(rf"'(.{{{SHOWN + 4},}})'", re.DOTALL)


def told(raw: bytes, kind: Any, path: str, text: str) -> str:
    """What to add to `text`, msgspec's words on the field at `path` of a body of type `kind`."""
    steps = [step[1] or step[2] for step in _STEP.finditer(path)]
    more = ""
    if not text.startswith("Invalid"):  # those hold the value
        found, value = _value(raw, steps)
        more += f", but is {short(value)}" if found else ""
    words = allowed(kind, tuple(steps)) if kind is not None else []
    if words:
        more += f"; allowed: {', '.join(words[:WORDS])}"
    return more


def keyed(raw: bytes, path: str, fails: Callable[[Any], bool]) -> str:
    """`path` with the keys at which msgspec's says [...]: those whose values, alone in their objects, still fail.

    As it is where the body is too large to look for them.
    """
    try:
        body: Any = json.loads(raw) if len(raw) <= KEYED_BYTES else None
        here, named = body, ""
        *parts, last = path.split("[...]")
        for part in parts:
            for step in _STEP.finditer(part):
                here = here[step[1]] if step[1] else here[int(step[2])]
            entries = list(here.items())[:KEYED]
            for key, value in entries:
                here.clear()
                here[key] = value
                if fails(body):
                    break
            else:
                return path
            here, named = value, f"{named}{part}.{key}"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return path
    return named + last


def short(value: Any) -> str:
    """JSON of a value, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@contextmanager
def spelled(names: dict[str, str], tools: str | None = None) -> Iterator[None]:
    """Errors name a parameter as the protocol does: `names` has its names by those of the chat route.

    With `tools`, which is where it has a tool's schema, what the chat route has in a tool's `function`, or in the
    `allowed_tools` of a choice, stands in the tool or the choice itself.
    """
    try:
        yield
    except InvalidRequest as error:
        theirs = names.get(error.param or "")
        if theirs is not None and error.param is not None:
            if error.param != "prompt":  # which is a word of the sentence
                error.message = re.sub(rf"\b{re.escape(error.param)}\b", theirs, error.message)
            error.param = theirs
        elif tools is not None and error.param is not None:
            error.message, error.param = (
                _IN_FUNCTION.sub(lambda m: f"{m[1]}.{tools if m[2] == 'parameters' else m[2]}", text).replace(
                    "tool_choice.allowed_tools.", "tool_choice."
                )
                for text in (error.message, error.param)
            )
        raise


def cut(text: str) -> str:
    """msgspec's words, with a long value in them shortened."""
    return _QUOTED.sub(lambda found: f"'{found[1][:SHOWN]}...'", text)


@lru_cache(maxsize=1024)
def _allowed(kind: Any, steps: tuple[str, ...]) -> tuple[str, ...]:
    kinds = [inspect.type_info(kind)]
    for step in steps[:-1] if steps else ():
        kinds = [inner for each in kinds for inner in _inside(each, step)]
    last = steps[-1] if steps else ""
    tags = [str(each.tag) for each in _flat(kinds) if isinstance(each, inspect.StructType) and each.tag_field == last]
    if tags:
        return tuple(dict.fromkeys(tags))
    ends = [inner for each in kinds for inner in _inside(each, last)]
    values = [
        value if isinstance(value, str) else short(value)
        for each in _flat(ends)
        if isinstance(each, inspect.LiteralType)
        for value in each.values
    ]
    return tuple(dict.fromkeys(values))


def fields(kind: Any, path: str) -> list[str]:
    """Names that the object at `path` (as msgspec writes it) of a body of type `kind` may have."""
    kinds = [inspect.type_info(kind)]
    for step in _STEP.finditer(path):
        key = step[1] or ("#" if step[2].isdigit() else step[2])
        kinds = [inner for each in kinds for inner in _inside(each, key)]
    return [field.encode_name for each in _flat(kinds) if isinstance(each, inspect.StructType) for field in each.fields]


def allowed(kind: Any, steps: tuple[str, ...]) -> list[str]:
    """The words that may stand in the field at `steps` of `kind`; [] where it is not a choice of words."""
    return list(_allowed(kind, tuple("#" if step.isdigit() else step for step in steps)))


def _flat(kinds: list[inspect.Type]) -> Iterator[inspect.Type]:
    for kind in kinds:
        if isinstance(kind, inspect.UnionType):
            yield from _flat(list(kind.types))
        elif isinstance(kind, inspect.Metadata):
            yield from _flat([kind.type])
        else:
            yield kind


def _inside(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    """Types of what `step` leads to: a field's name, # for an entry of a list, ... for a value of an object."""
    for each in _flat([kind]):
        if isinstance(each, inspect.StructType):
            yield from (field.type for field in each.fields if field.encode_name == step)
        elif isinstance(each, inspect.ListType | inspect.VarTupleType) and step == "#":
            yield each.item_type
        elif isinstance(each, inspect.DictType) and step == "...":
            yield each.value_type


def _value(raw: bytes, steps: list[str]) -> tuple[bool, Any]:
    """The value at `steps` of the body; False where the way there is not told whole (an entry of an object)."""
    try:
        value: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return False, None
    for step in steps:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return False, None
    return True, value
