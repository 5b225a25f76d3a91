"""One answer to a conversation, for protocols that know no `n`: as events of thought, text and calls, or whole.

The request goes the way of /v1/chat/completions (`openai_chat.plan` and `settled`), whatever protocol it came by:
all of them give the same tokens and share the cache.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

from radixrt.results import Usage
from radixrt.server.openai_answer import AnswerReader, message_of
from radixrt.server.openai_chat import Job, settled
from radixrt.server.openai_shapes import AssistantMessage, ChatDelta, Finish
from radixrt.server.state import ServingEngine
from radixrt.server.streams import open_stream


@dataclass(frozen=True)
class Begin:
    """The prompt is known; nothing has been generated."""

    prompt_tokens: int


@dataclass(frozen=True)
class End:
    """The answer is whole."""

    finish: Finish
    stop_reason: str | int | None
    """The stop string or token that ended it; None: the model's own end."""
    usage: Usage


Event: TypeAlias = Begin | ChatDelta | End


async def answer_events(engine: ServingEngine, job: Job) -> AsyncGenerator[Event, None]:
    """Begin, pieces of the answer, End. Joined, the pieces are `whole_answer`'s message."""
    job = await settled(engine, job)
    reader = AnswerReader(job.reading)
    ids = job.prompt_ids
    yield Begin(len(ids) if isinstance(ids, tuple | list) else 0)
    usage, finish, stop = Usage(), None, None
    async with aclosing(
        open_stream(engine, job.prompt, job.sampling, job.constraint, job.cache_salt, job.priority)
    ) as deltas:
        async for delta in deltas:
            for piece in reader.push(delta.text):
                yield piece
            usage = delta.usage or usage
            if delta.finish_reason is not None:
                for piece in reader.end(delta.finish_reason):
                    yield piece
                finish, stop = reader.finish_reason(delta.finish_reason), delta.stop_reason
    yield End(finish or "stop", stop, usage)


async def whole_answer(engine: ServingEngine, job: Job) -> tuple[AssistantMessage, End]:
    """The message, and how it ended."""
    job = await settled(engine, job)
    generation = await engine.agenerate(
        job.prompt, job.sampling, constraint=job.constraint, cache_salt=job.cache_salt, priority=job.priority
    )
    choice = generation.choices[0]
    message, finish = message_of(job.reading, choice.text, choice.finish_reason)
    return message, End(finish, choice.stop_reason, generation.usage)
