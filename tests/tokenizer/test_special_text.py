"""Text in which special tokens are spelt: text, or with parse_special the tokens."""

from __future__ import annotations

import pytest

from radixrt.checkpoint import Vocabulary
from radixrt.messages import TextPrompt
from radixrt.tokenizer.chat import ChatTemplate
from radixrt.tokenizer.encode import PromptEncoder
from radixrt.tokenizer.shield import Shield


def encoder(vocabulary: Vocabulary) -> PromptEncoder:
    return PromptEncoder(vocabulary, ChatTemplate(None, Shield(vocabulary)))


def test_a_spelling_means_the_token_where_that_is_asked_for(vocabulary: Vocabulary) -> None:
    ours = encoder(vocabulary)
    for name, token in vocabulary.special_tokens.items():
        text = f"a{name}b"
        assert token not in ours.encode(TextPrompt(text=text)), name
        parsed = ours.encode(TextPrompt(text=text, parse_special=True))
        assert parsed == [*vocabulary.encode("a"), token, *vocabulary.encode("b")], name


@pytest.mark.parametrize("add", [True, False])
def test_a_beginning_that_is_there_is_not_doubled(spaced: Vocabulary, add: bool) -> None:
    """Chat templates write the BOS token, and tokenizers add one: two of them are what the model has never seen."""
    ours, bos = encoder(spaced), spaced.bos_id
    assert bos is not None
    name = spaced.token_text(bos)
    assert ours.encode(TextPrompt(text=f"{name}a", add_special_tokens=add, parse_special=True)).count(bos) == 1
    plain = ours.encode(TextPrompt(text="a", add_special_tokens=add, parse_special=True))
    assert plain == ours.encode(TextPrompt(text="a", add_special_tokens=add)) and plain.count(bos) == add
    assert ours.encode(TextPrompt(text=f"{name}a", add_special_tokens=add)).count(bos) == add, "here it is text"
