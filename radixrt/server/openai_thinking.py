"""Constraints of an answer that begins behind a thought."""

from __future__ import annotations

import json
import re

from radixrt.dialects import Marks, formats
from radixrt.errors import ConstraintError
from radixrt.params import Constraint


def behind(marks: Marks, constraint: Constraint) -> Constraint:
    """The constraint for a prompt that ends inside a thought: free up to the closing mark, then what was asked for.

    Between the two stands an empty line, as thinking models write it. ConstraintError for kinds that have no such form.
    """
    kind = constraint.kind
    if kind in ("json_schema", "json_object") and not constraint.lax:
        schema = json.loads(constraint.value) if kind == "json_schema" else {"type": "object"}
        tag = formats.tag(f"{marks.close}\n\n", schema, "")
        return Constraint(
            kind="structural_tag",
            value=formats.source(formats.triggered([marks.close], [tag], many=False, needed=True)),
            any_whitespace=constraint.any_whitespace,
            whitespace_pattern=constraint.whitespace_pattern,
            backend=constraint.backend,
        )
    if kind == "choice":
        return _grammar(marks, "(" + " | ".join(json.dumps(c, ensure_ascii=False) for c in constraint.choices) + ")")
    if kind == "regex":
        return _grammar(marks, "BODY", f"BODY: /{_in_slashes(constraint.value)}/\n")
    what = "lax" if constraint.lax else kind
    raise ConstraintError(
        f"{what} is not available behind a thought: switch thinking off, or use another constraint",
        param=what,
    )


def _grammar(marks: Marks, body: str, rules: str = "") -> Constraint:
    close = _in_slashes(re.escape(marks.close))
    thought = f"THOUGHT: /(?s:.*){close}/ & ~/(?s:.*){close}(?s:.+)/\n"
    return Constraint(kind="grammar", value=f'start: THOUGHT "\\n\\n" {body}\n{thought}{rules}')


def _in_slashes(pattern: str) -> str:
    """A regular expression between Lark's slashes."""
    return re.sub(
        r"\\.|[/\n]", lambda match: {"/": "\\/", "\n": "\\n"}.get(match[0], match[0]), pattern, flags=re.DOTALL
    )
