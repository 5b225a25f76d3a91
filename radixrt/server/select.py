"""POST /v1/select: options scored over a prompt or a conversation, and the best of them, in one step of the engine."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from radixrt.errors import InvalidRequest
from radixrt.messages import Prompt
from radixrt.prompts import as_prompt
from radixrt.server.body import decoder, read_body
from radixrt.server.native import check_count, check_timeout, json_answer
from radixrt.server.openai_messages import prompt_of
from radixrt.server.select_types import SelectRequest
from radixrt.server.sse import cancelled_when_gone
from radixrt.server.state import ServerState

_SELECT = decoder(SelectRequest)


async def select(request: Request) -> Response:
    """The best of some options as what a prompt, or a conversation, goes on with: a Selection."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _SELECT, state.limits.body_bytes)
    check_timeout(body.timeout_s)
    check_count(body.options, state)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give prompt or messages, and not both", param="prompt")
    if body.messages is not None:
        prompt: Prompt = prompt_of(
            body.messages,
            body.add_generation_prompt,
            body.continue_final_message,
            template_kwargs=body.chat_template_kwargs or {},
        )
    else:
        given = {"add_generation_prompt", "continue_final_message", "chat_template_kwargs"}
        for name in sorted(name for name in given if getattr(body, name) is not None):
            raise InvalidRequest(f"{name} belongs to messages", param=name)
        prompt = as_prompt(body.prompt if body.prompt is not None else "")
    texts = [option for option in body.options if isinstance(option, str)]
    ids = [option for option in body.options if not isinstance(option, str)]
    if texts and ids:
        raise InvalidRequest("options must be all texts, or all lists of token ids", param="options")
    engine = state.engine_for(body.model)
    async with cancelled_when_gone(request.receive):
        selection = await engine.aselect(
            prompt,
            texts or ids,
            method=body.method,
            text=body.text,
            begins_turn=body.begins_turn,
            return_cache_report=body.return_cache_report,
            cache_salt=body.cache_salt,
            priority=body.priority,
            timeout=body.timeout_s,
        )
    return json_answer(selection)
