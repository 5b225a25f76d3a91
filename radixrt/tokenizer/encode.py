"""Prompts -> token ids, validated where they enter."""

from __future__ import annotations

import msgspec
import numpy as np

from radixrt.checkpoint import Vocabulary
from radixrt.errors import ContextLengthExceeded, InvalidRequest
from radixrt.messages import Array, ChatPrompt, Prompt, TextPrompt, Tokenized, TokensPrompt
from radixrt.params import SamplingParams
from radixrt.tokenizer.chat import ChatTemplate
from radixrt.tokenizer.stops import compiled

_CHARS_A_TOKEN = 16
"""A text longer than this times the context is encoded in part first: it almost surely does not fit."""


class PromptEncoder:
    """Encodes prompts for one model. `context_length` is set when the engine is ready."""

    def __init__(self, vocabulary: Vocabulary, chat: ChatTemplate, *, embeds_only: bool = False) -> None:
        """`embeds_only`: the model generates nothing, so every text is one to be embedded, for /tokenize too."""
        self._vocabulary = vocabulary
        self._embeds_only = embeds_only
        self._chat = chat
        self.context_length: int | None = None

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids a prompt becomes.

        An empty text becomes the BOS token where special tokens may be added and the model has one, also where it puts
        none in front of other texts: so it can be generated from.
        """
        if isinstance(prompt, TokensPrompt):
            return self.checked(prompt.ids)
        if isinstance(prompt, ChatPrompt):
            return self._chat.ids(prompt)[0]
        self._check_length(prompt.text)
        vocabulary = self._vocabulary
        ids = vocabulary.encode(prompt.text, allow_special=prompt.parse_special)
        if prompt.add_special_tokens and vocabulary.adds_bos and vocabulary.bos_id is not None:
            # A template may have written it already.
            ids = ids if prompt.parse_special and ids[:1] == [vocabulary.bos_id] else [vocabulary.bos_id, *ids]
        if not ids and prompt.add_special_tokens and vocabulary.bos_id is not None:
            ids = [vocabulary.bos_id]
        if self._embeds_only and prompt.add_special_tokens:
            ids = [*ids, *vocabulary.suffix_ids]
        return ids

    def text_to_embed(self, prompt: Prompt, *, truncate: bool = False) -> list[int]:
        """The ids of a text that is embedded: what the model's tokenizer puts around one is there, but with token ids,
        which are used as they are. `truncate`: no more than the context holds, what stands behind the text included.
        """
        limit, vocabulary = self.context_length, self._vocabulary
        if truncate and limit is not None and isinstance(prompt, TextPrompt):
            prompt = msgspec.structs.replace(prompt, text=prompt.text[: _CHARS_A_TOKEN * limit])
        ids = self.encode(prompt)
        suffix: list[int] = []
        if isinstance(prompt, TextPrompt) and prompt.add_special_tokens:
            suffix = list(vocabulary.suffix_ids)
            if not self._embeds_only:
                ids = [*ids, *suffix]
        if not ids:
            raise InvalidRequest("a text to be embedded must hold a token", param="input")
        if truncate and limit is not None and len(ids) > limit:
            return [*ids[: limit - len(suffix)], *suffix] if limit > len(suffix) else ids[:limit]
        return ids

    def tokens(self, text: str, *, first: bool) -> tuple[list[int], list[bytes]]:
        """Ids of a text and their exact bytes. `first`: nothing stands before it, so a BOS token may."""
        answer = self.tokenized(0, TextPrompt(text=text, add_special_tokens=first))
        return answer.ids.tolist(), answer.pieces

    def beginning(self) -> list[int]:
        """What stands before a text that nothing stands before: the BOS token, or else the end-of-text token."""
        vocabulary = self._vocabulary
        ids = [vocabulary.bos_id] if vocabulary.bos_id is not None else list(vocabulary.eos_ids[:1])
        if not ids:
            raise InvalidRequest(
                "there is no text before the options, and the model has neither BOS nor end token", param="prompt"
            )
        return ids

    def start(self, prompt: Prompt) -> Array:
        """int32[n >= 1]: what a generation starts from. InvalidRequest (param `prompt`) where that is nothing."""
        ids = self.encode(prompt)
        if not ids and not isinstance(prompt, TokensPrompt | ChatPrompt) and self._vocabulary.bos_id is not None:
            ids = [self._vocabulary.bos_id]
        if not ids:
            raise InvalidRequest("prompt must not be empty: it holds no token to start from", param="prompt")
        return np.asarray(ids, dtype=np.int32)

    def tokenized(self, request_id: int, prompt: Prompt) -> Tokenized:
        """The answer to a Tokenize message."""
        ids = self.encode(prompt)
        pieces = [self._vocabulary.token_bytes(i) for i in ids]
        text = b"".join(pieces).decode("utf-8", "replace")
        if not isinstance(prompt, TokensPrompt) and text.startswith(" "):
            # A space that the tokenizer put in front of the text is not the text's own.
            whole = self._vocabulary.decode(ids)
            if text == " " + whole:
                text, pieces[0] = whole, pieces[0][1:]
        return Tokenized(request_id=request_id, ids=np.asarray(ids, dtype=np.int32), text=text, pieces=pieces)

    def check_sampling(self, sampling: SamplingParams) -> None:
        """InvalidRequest where a parameter names a token id that the vocabulary does not have, or is no pattern."""
        for pattern in sampling.stop_regex:
            compiled(pattern)
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
            for token in getattr(sampling, name) or ():
                if not 0 <= token < self._vocabulary.size:
                    raise InvalidRequest(
                        f"{name} names token id {token}, but ids are 0 to {self._vocabulary.size - 1}", param=name
                    )

    def checked(self, ids: Array, param: str = "prompt") -> list[int]:
        """Token ids as a list; InvalidRequest where one is not in the vocabulary."""
        if ids.ndim != 1 or ids.dtype.kind != "i":
            raise InvalidRequest("token ids must be one list of integers", param=param)
        if ids.size and not (ids.min() >= 0 and ids.max() < self._vocabulary.size):
            wrong = next(int(i) for i in ids if not 0 <= i < self._vocabulary.size)
            raise InvalidRequest(
                f"token id {wrong} is not in the vocabulary: ids are 0 to {self._vocabulary.size - 1}", param=param
            )
        out: list[int] = ids.tolist()
        return out

    def checked_list(self, ids: list[int], param: str) -> list[int]:
        """The same for a plain list."""
        return self.checked(np.asarray(ids, dtype=np.int64), param)

    def _check_length(self, text: str) -> None:
        limit = self.context_length
        if limit is None or len(text) <= _CHARS_A_TOKEN * limit:
            return
        count = len(self._vocabulary.encode(text[: _CHARS_A_TOKEN * limit]))
        if count > limit:
            raise ContextLengthExceeded(
                f"the prompt has more than {count} tokens, but the context holds {limit}", param="prompt"
            )


def all_special(vocabulary: Vocabulary, ids: Array) -> bool:
    """Whether no token of int32[n] `ids` is text."""
    return all(vocabulary.is_special(i) for i in ids.tolist())
