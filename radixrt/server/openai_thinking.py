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


ANYTHING = Constraint(kind="regex", value="(?s:.*)")
"""Of an answer that nothing holds, where its thought is bounded."""


def behind(marks: Marks, constraint: Constraint, most: int | None = None) -> Constraint:
    """The constraint for a prompt that ends inside a thought: free up to the closing mark, then what was asked for.

    Between the two stands an empty line, as thinking models write it. `most`: tokens of the thought.
    """
    return structs.replace(constraint, behind=marks.close, think_tokens=most)


def behind_own(marks: Marks, constraint: Constraint, most: int | None = None) -> Constraint:
    """The constraint for an answer that the model may begin with a thought of its own: the opening mark, then as in
    `behind`; or at once what was asked for."""
    return structs.replace(constraint, think=marks.open, behind=marks.close, think_tokens=most)


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


def budget(request: ChatRequest, info: ModelInfo) -> int | None:
    """Tokens that a thought may have. InvalidRequest where nothing is left for the answer, or the model shows none."""
    most, limit = request.thinking_token_budget, request.max_completion_tokens or request.max_tokens
    name = "thinking_token_budget"
    if most is None:
        return None
    if most < 1:
        raise InvalidRequest(f"{name} must be 1 or more, but is {most}", param=name)
    if info.thinking is None:
        raise InvalidRequest(f"this model shows no thoughts: leave {name} out", param=name)
    if limit is not None and most >= limit:
        raise InvalidRequest(
            f"{name} is {most}, and must be below the {limit} tokens that thought and answer may have together",
            param=name,
        )
    return most
