"""Whether an answer begins with a thought, and constraints of one that does."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import structs

from radixrt.dialects import Marks
from radixrt.errors import InvalidRequest
from radixrt.params import Constraint
from radixrt.results import ModelInfo
from radixrt.server.openai_types import ChatRequest

Wanted = Literal["free", "no", "never"]
"""Whether there may be a thought; never: a prompt that opens one all the same is an error."""


def behind(marks: Marks, constraint: Constraint) -> Constraint:
    """The constraint for a prompt that ends inside a thought: free up to the closing mark, then what was asked for.

    Between the two stands an empty line, as thinking models write it.
    """
    return structs.replace(constraint, behind=marks.close)


def behind_own(marks: Marks, constraint: Constraint) -> Constraint:
    """The constraint for an answer that the model may begin with a thought of its own: the opening mark, then as in
    `behind`; or at once what was asked for."""
    return structs.replace(constraint, think=marks.open, behind=marks.close)


def template_kwargs(request: ChatRequest, info: ModelInfo) -> dict[str, Any]:
    """What the chat template is told beside messages and tools.

    An effort other than none turns thinking on where the template can; how much of it there is is the model's affair.
    InvalidRequest for a model that shows no thoughts.
    """
    given = request.chat_template_kwargs or {}
    effort = request.reasoning_effort
    if effort is None or (info.thinking is None and effort == "none"):
        return given
    if info.thinking is None:
        raise InvalidRequest("this model shows no thoughts: leave it out", param="reasoning_effort")
    return {"enable_thinking": effort != "none", "reasoning_effort": effort, **given}


def wanted(request: ChatRequest) -> Wanted:
    """What the client says of thoughts."""
    if request.reasoning_effort == "none":
        return "never"
    return "no" if (request.chat_template_kwargs or {}).get("enable_thinking") is False else "free"
