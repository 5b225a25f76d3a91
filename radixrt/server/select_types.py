"""The body of POST /v1/select."""

from __future__ import annotations

from typing import Any

from radixrt.messages import ChatPrompt, TextPrompt, TokensPrompt
from radixrt.params import ChoicesMethod
from radixrt.server.native_types import Body, Priority, TokenId
from radixrt.server.openai_types import InMessage


class SelectRequest(Body, kw_only=True, frozen=True):
    """POST /v1/select. Answered by `radixrt.results.Selection`: choice, index, scores, log-probabilities, usage."""

    prompt: str | list[TokenId] | TextPrompt | TokensPrompt | ChatPrompt | None = None
    messages: list[InMessage] | None = None
    """Instead of `prompt`: a conversation that each option would answer."""
    options: list[str | list[TokenId]]
    """All texts, or all token ids."""
    method: ChoicesMethod = "token_length_normalized"
    text: str = ""
    """Stands between prompt and options, and is tokenized together with each text option."""
    begins_turn: bool = False
    """Nothing but `text` stands in the turn: each option is scored with and without a leading space. Messages that end
    with the generation prompt say so themselves."""
    return_cache_report: bool = False
    """`usage.cache` says what the prefix tree had of the prompt, and why not more."""
    model: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: Priority = 0
    timeout_s: float | None = None
    """As in a GenerateRequest."""
