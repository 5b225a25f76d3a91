"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixrt.errors import InvalidRequest
from radixrt.messages import Prompt, TextPrompt
from radixrt.server.body import decoder, read_body
from radixrt.server.native_types import TokenId
from radixrt.server.openai_messages import prompt_of
from radixrt.server.openai_shapes import json_response
from radixrt.server.openai_types import InMessage, Tool
from radixrt.server.state import ServerState


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of `prompt` and `messages`; the other fields belong to one of them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[InMessage] | None = None
    add_special_tokens: bool | None = None
    """With `prompt`: put the model's BOS token in front, where it has one; true if absent."""
    parse_special: bool | None = None
    """With `prompt`: the spelling of a special token means the token."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(msgspec.Struct, kw_only=True):
    tokens: tuple[int, ...]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tokens: list[TokenId]
    model: str | None = None


class DetokenizeAnswer(msgspec.Struct, kw_only=True):
    prompt: str


class ApplyTemplateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    messages: list[InMessage]
    model: str | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_TOKENIZE = decoder(TokenizeRequest)
_DETOKENIZE = decoder(DetokenizeRequest)
_APPLY = decoder(ApplyTemplateRequest)


async def tokenize(request: Request) -> Response:
    """The token ids of a text or of a conversation."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _TOKENIZE, state.limits.body_bytes)
    engine = state.engine_for(body.model)
    made = await engine.atokenize(prompt_to_tokenize(body))
    strings = [piece.decode(errors="replace") for piece in made.pieces] if body.return_token_strs else None
    return json_response(
        TokenizeAnswer(
            tokens=made.ids, count=len(made.ids), max_model_len=engine.info.context_length, token_strs=strings
        )
    )


def prompt_to_tokenize(body: TokenizeRequest) -> Prompt:
    """InvalidRequest when a field is there that the kind of prompt does not have."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    if body.prompt is not None:
        for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools"):
            if getattr(body, name):
                raise InvalidRequest(f"{name} needs messages", param=name)
        bos = True if body.add_special_tokens is None else body.add_special_tokens
        return TextPrompt(text=body.prompt, add_special_tokens=bos, parse_special=bool(body.parse_special))
    for name in ("add_special_tokens", "parse_special"):
        if getattr(body, name):
            raise InvalidRequest("the chat template writes the special tokens itself", param=name)
    if not body.messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    return prompt_of(
        body.messages,
        body.add_generation_prompt,
        body.continue_final_message,
        template_kwargs=body.chat_template_kwargs or {},
        tools=body.tools,
    )


async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens included."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _DETOKENIZE, state.limits.body_bytes)
    return json_response(DetokenizeAnswer(prompt=await state.engine_for(body.model).adetokenize(body.tokens)))


async def apply_template(request: Request) -> Response:
    """A conversation as the text that the model's template makes of it."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _APPLY, state.limits.body_bytes)
    if not body.messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    prompt = prompt_of(
        body.messages,
        body.add_generation_prompt,
        body.continue_final_message,
        template_kwargs=body.chat_template_kwargs or {},
        tools=body.tools,
    )
    made = await state.engine_for(body.model).atokenize(prompt)
    return json_response(DetokenizeAnswer(prompt=made.text))
