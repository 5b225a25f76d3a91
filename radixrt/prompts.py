"""What a caller may give as a prompt, turned into the message that carries it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from radixrt.errors import InvalidRequest
from radixrt.messages import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokensPrompt

PromptLike: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]] | Sequence[ChatMessage] | Prompt
"""Text, token ids, chat messages ({"role": ..., "content": ...}), or one of the prompt messages themselves."""


def as_prompt(prompt: PromptLike) -> Prompt:
    """The prompt message for what a caller gave.

    Raises InvalidRequest (param `prompt` or `messages`) for anything that is not one of the forms of PromptLike. An
    empty text is a prompt (it becomes the BOS token where the model has one); an empty list is not.
    """
    if isinstance(prompt, TextPrompt | TokensPrompt | ChatPrompt):
        return prompt
    if isinstance(prompt, str):
        return TextPrompt(text=prompt)
    if isinstance(prompt, np.ndarray):
        prompt = prompt.tolist()
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise InvalidRequest("prompt must be text, a list of token ids or a list of messages", param="prompt")
    if not prompt:
        raise InvalidRequest("prompt must not be an empty list", param="prompt")
    if all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
        return TokensPrompt(ids=token_array(prompt))  # type: ignore[arg-type]
    if all(isinstance(item, str) for item in prompt):
        raise InvalidRequest(
            "prompt is a list of texts: give one text, and several prompts in several calls", param="prompt"
        )
    return ChatPrompt(messages=[as_message(item, i) for i, item in enumerate(prompt)])


def as_message(message: object, position: int = 0) -> ChatMessage:
    """One chat message from a mapping; InvalidRequest names the position and the field at fault."""
    if isinstance(message, ChatMessage):
        return message
    try:
        return msgspec.convert(message, ChatMessage, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"messages[{position}] is malformed: {error}", param=f"messages[{position}]") from error


def token_array(ids: Sequence[int], param: str = "prompt") -> np.ndarray[Any, np.dtype[np.int32]]:
    """Token ids as int32[n]; InvalidRequest when one is no integer, negative or beyond 32 bits."""
    if not all(isinstance(token, int) for token in ids):
        raise InvalidRequest(
            "token ids must be integers (engine.tokenize(text).ids gives those of a text)", param=param
        )
    if ids and not (min(ids) >= 0 and max(ids) < 2**31):
        raise InvalidRequest("token ids must be between 0 and the vocabulary's size", param=param)
    return np.asarray(ids, dtype=np.int32)
