"""POST /v1/systemone: typed questions about a state, each answered with a probability for every answer it allows.

Nothing is generated. A question becomes a user's turn that begins with the state and ends with its options under
labels, and a select over the labels as the answer. All questions of a request run together: the state is computed once.

The fields are those of vLLM's and other servers' route of this name; answers differ between models and servers, for
each has its own words around a question (docs: vLLM, "Structured Decisions").
"""

from __future__ import annotations

import asyncio
import math
import string
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from radixrt.choosing import check_distinct
from radixrt.errors import InvalidRequest
from radixrt.messages import ChatMessage, ChatPrompt
from radixrt.results import Selection, Usage
from radixrt.server.body import decoder, read_body
from radixrt.server.native_types import Priority
from radixrt.server.openai_shapes import json_response
from radixrt.server.sse import cancelled_when_gone
from radixrt.server.state import ServerState, ServingEngine

MAX_QUESTIONS = 64
MAX_OPTIONS = 255

Content: TypeAlias = str | dict[str, Any] | list[Any]
"""Text, or any JSON, which the model reads as JSON text."""
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]


class _In(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Base of the request types."""


class ChoiceQuestion(_In, kw_only=True, frozen=True, tag_field="type", tag="choice"):
    """Which of some options fits best."""

    instructions: Content
    criteria: dict[Name, str | None]
    """Options, each with a description or null."""


class ScoreQuestion(_In, kw_only=True, frozen=True, tag_field="type", tag="score"):
    """Where on a scale."""

    instructions: Content
    criteria: list[str]
    """Levels from the lowest to the highest."""


class NoulCriteria(_In, kw_only=True, frozen=True):
    true: str | None = None
    false: str | None = None


class NoulQuestion(_In, kw_only=True, frozen=True, tag_field="type", tag="noul"):
    """Whether something is so."""

    instructions: Content
    criteria: NoulCriteria | None = None
    """What true and false mean."""


Question: TypeAlias = ChoiceQuestion | ScoreQuestion | NoulQuestion


class SystemOneRequest(_In, kw_only=True, frozen=True):
    state: Content
    questions: dict[Name, Question]
    model: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: Priority = 0


class _Out(msgspec.Struct, kw_only=True, frozen=True):
    """Base of the answer types."""


class ChoiceAnswer(_Out, kw_only=True, frozen=True, tag_field="type", tag="choice"):
    choice: str
    probabilities: dict[str, float]
    confidence: float
    """1 when one option has all the probability, 0 when all have the same."""


class ScoreAnswer(_Out, kw_only=True, frozen=True, tag_field="type", tag="score"):
    score: float
    """The expected level, counted from 0."""
    legend: dict[str, str]
    probabilities: dict[str, float]
    confidence: float


class NoulAnswer(_Out, kw_only=True, frozen=True, tag_field="type", tag="noul"):
    noul: float
    """The probability that it is true."""


class SystemOneUsage(_Out, kw_only=True, frozen=True):
    input_tokens: int
    cached_tokens: int
    output_tokens: int = 0


class SystemOneAnswer(_Out, kw_only=True, frozen=True):
    model: str
    answers: dict[str, ChoiceAnswer | ScoreAnswer | NoulAnswer]
    usage: SystemOneUsage


_DECODER = decoder(SystemOneRequest)


async def systemone(request: Request) -> Response:
    """A probability for every answer that each question allows."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _DECODER, state.limits.body_bytes)
    if not 1 <= len(body.questions) <= MAX_QUESTIONS:
        raise InvalidRequest(
            f"questions must hold 1 to {MAX_QUESTIONS} entries, but holds {len(body.questions)}", param="questions"
        )
    for name, question in body.questions.items():
        if not 2 <= len(options_of(question)) <= MAX_OPTIONS:
            raise InvalidRequest(
                f"a question has 2 to {MAX_OPTIONS} options, and questions.{name} has {len(options_of(question))}",
                param=f"questions.{name}.criteria",
            )  # fmt: skip
        if isinstance(question, ScoreQuestion):
            check_distinct(question.criteria, f"questions.{name}.criteria")
    engine = state.engine_for(body.model)
    tasks = [asyncio.create_task(_select(engine, body, question)) for question in body.questions.values()]
    try:
        async with cancelled_when_gone(request.receive):
            selections = dict(zip(body.questions, await asyncio.gather(*tasks), strict=True))
    finally:
        for task in tasks:
            task.cancel()  # of those that were still running when one failed
    usage = sum((selection.usage for selection in selections.values()), Usage())
    return json_response(
        SystemOneAnswer(
            model=state.served_name or engine.info.name,
            answers={name: answer_of(body.questions[name], selection) for name, selection in selections.items()},
            usage=SystemOneUsage(input_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens),
        )
    )


async def _select(engine: ServingEngine, body: SystemOneRequest, question: Question) -> Selection:
    return await engine.aselect(
        ChatPrompt(
            messages=[ChatMessage(role="user", content=text_of(body.state, question))],
            template_kwargs=body.chat_template_kwargs or {},
        ),
        labels_of(len(options_of(question))),
        cache_salt=body.cache_salt,
        priority=body.priority,
    )


def options_of(question: Question) -> Sequence[tuple[str, str | None]]:
    """What may be answered: names, with descriptions where there are any."""
    if isinstance(question, ChoiceQuestion):
        return tuple(question.criteria.items())
    if isinstance(question, ScoreQuestion):
        return tuple((level, None) for level in question.criteria)
    meant = question.criteria or NoulCriteria()
    return (("true", meant.true), ("false", meant.false))


def labels_of(count: int) -> list[str]:
    """Labels of which none begins another, so that their probabilities exclude one another."""
    if count <= len(string.ascii_uppercase):
        return list(string.ascii_uppercase[:count])
    return [f"{number:03d}" for number in range(1, count + 1)]


def text_of(state: Content, question: Question) -> str:
    """The turn that asks: the state comes first, for all questions about it share its tokens."""
    options = options_of(question)
    lines = [
        f"{label}: {name}" + (f" ({description})" if description else "")
        for label, (name, description) in zip(labels_of(len(options)), options, strict=True)
    ]
    return (
        f"{_text(state)}\n\n{_text(question.instructions)}\n\n" + "\n".join(lines) + "\n\nAnswer with one label alone."
    )  # fmt: skip


def answer_of(question: Question, selection: Selection) -> ChoiceAnswer | ScoreAnswer | NoulAnswer:
    """Softmax over the labels' log-probabilities, read as the question's type says."""
    totals = [math.fsum(row) for row in selection.logprobs]
    most = max(totals)
    weights = [math.exp(total - most) for total in totals]
    shares = [weight / math.fsum(weights) for weight in weights]
    if isinstance(question, NoulQuestion):
        return NoulAnswer(noul=shares[0])
    confidence = (max(shares) - 1 / len(shares)) / (1 - 1 / len(shares))
    names = [name for name, _ in options_of(question)]
    if isinstance(question, ChoiceQuestion):
        best = max(range(len(shares)), key=shares.__getitem__)
        return ChoiceAnswer(
            choice=names[best], probabilities=dict(zip(names, shares, strict=True)), confidence=confidence
        )  # fmt: skip
    return ScoreAnswer(
        score=math.fsum(level * share for level, share in enumerate(shares)),
        legend={str(level): name for level, name in enumerate(names)},
        probabilities={str(level): share for level, share in enumerate(shares)},
        confidence=confidence,
    )


def _text(content: Content) -> str:
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()
