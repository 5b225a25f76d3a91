"""Constraints of an answer that begins behind a thought."""

from __future__ import annotations

from msgspec import structs

from radixrt.dialects import Marks
from radixrt.params import Constraint


def behind(marks: Marks, constraint: Constraint) -> Constraint:
    """The constraint for a prompt that ends inside a thought: free up to the closing mark, then what was asked for.

    Between the two stands an empty line, as thinking models write it.
    """
    return structs.replace(constraint, behind=marks.close)
