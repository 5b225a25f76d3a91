"""JSON text -> values, strictly: what a JSON library lets pass in silence is refused."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from radixrt.errors import ConstraintError

_OUTSIDE_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def parse(text: str, *, max_depth: int, param: str) -> Any:
    """The value of a JSON text; objects keep their order.

    Raises ConstraintError for text that is no JSON, nests too deeply, repeats a key, or holds NaN, an infinity or a
    lone surrogate.
    """
    if _depth(text) > max_depth:
        raise ConstraintError(f"the schema nests more than {max_depth} levels deep, which is the limit", param=param)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(items)
        if len(value) != len(items):
            keys = [key for key, _ in items]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ConstraintError(f"the schema holds the key {twice!r} twice in one object", param=param)
        return value

    def constant(name: str) -> NoReturn:
        raise ConstraintError(f"the schema holds {name}, which is not JSON", param=param)

    def real(digits: str) -> float:
        number = float(digits)
        if number in (float("inf"), float("-inf")):
            constant(digits)
        return number

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=real)
        text.encode()
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ConstraintError("the schema holds a lone surrogate, which no text can contain", param=param) from error
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema is not JSON: {error}", param=param) from error
    return value


def _depth(text: str) -> int:
    deepest = depth = 0
    for char in _OUTSIDE_STRINGS.sub("", text):
        if char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest
