"""What all messages share: their base, prompts, and the namespace of a request."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import numpy as np

Array: TypeAlias = np.ndarray  # msgspec needs the bare class; shapes and dtypes are in the comments


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages: immutable, tagged with its class name."""


class TextPrompt(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Text to be tokenized as it stands."""

    text: str
    add_special_tokens: bool = True
    """Put the model's BOS token in front where the model has one."""
    parse_special: bool = False
    """The spelling of a special token (`<|im_start|>`) means the token, for text that a chat template has written; only
    where all of the text is trusted. Where it begins with the BOS token, no second one is put in front."""


class TokensPrompt(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token ids, used as they are."""

    ids: Array  # int32[n]


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One turn of a conversation; `content` is text (parts are joined before they get here)."""

    role: str
    content: str = ""
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """What the model thought before it said `content`; templates of thinking models show it or not."""


RESERVED_VARIABLES = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"}
)
"""Variables of a chat template that `template_kwargs` cannot set: other fields say them."""


class ChatPrompt(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages, rendered by the model's own chat template in the tokenizer process.

    With `after` the result is only what follows the first `after` messages, whose last one is still open (its end
    marker not yet written) when `after_open`. So a program appends turns to the token ids it already has; where the
    template's text for the longer conversation does not begin with that for the shorter one, the request is refused
    with code `not_incremental`.
    """

    messages: list[ChatMessage]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """Leave the last message open, so that generation continues its text."""
    template_kwargs: dict[str, Any] = {}
    opening: str = ""
    """What the answer begins with: put behind the generation prompt as it stands, control tokens included."""
    after: int = 0
    after_open: bool = False


Prompt: TypeAlias = TextPrompt | TokensPrompt | ChatPrompt


class Namespace(msgspec.Struct, frozen=True):
    """Who may share cached prefixes with whom; compared field by field, never as a joined string."""

    model: str = ""
    adapter: str | None = None
    tenant: str | None = None
    """Who asks, as the server knows it from the API key; None: nobody in particular."""
    salt: str | None = None
    """Chosen by the client."""

    @property
    def owner(self) -> Namespace:
        """Whose quotas count: the namespace without the salt, of which a client may have any number."""
        return Namespace(self.model, self.adapter, self.tenant)
