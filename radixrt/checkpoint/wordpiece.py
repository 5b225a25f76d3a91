"""BERT's tokenizer from GGUF metadata.

llama.cpp's converter writes the vocabulary as pieces of a text: "▁" stands in front of what begins a word, and the "##"
in front of what continues one is left out. It does not write whether the model's texts are lowered: a vocabulary
without any upper-case letter is of a model that lowers them (and then takes accents away, as BERT's own tokenizer).
"""

from __future__ import annotations

from typing import Any

import msgspec

from radixrt.errors import ModelError

_WORD, _MORE = "▁", "##"
_LONGEST_WORD = 100
"""Characters; a longer word is the unknown token (BERT's own tokenizer)."""


class WordPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer.json and the ids around a text."""

    spec: dict[str, Any]
    cls_id: int
    sep_id: int


def wordpiece(metadata: dict[str, Any], tokens: list[str], control: list[bool]) -> WordPiece:
    """`control`: which of the tokens never come from text. ModelError where a token that BERT needs is not there."""
    known = {text: index for index, text in reversed(list(enumerate(tokens)))}
    named = {
        "[CLS]": ("cls_token_id", "bos_token_id"),
        "[SEP]": ("seperator_token_id", "separator_token_id", "eos_token_id"),  # the first is how the format spells it
        "[UNK]": ("unknown_token_id",),
        "[PAD]": ("padding_token_id",),
        "[MASK]": ("mask_token_id",),
    }
    special: dict[str, int] = {}
    for text, keys in named.items():
        given = (metadata.get(f"tokenizer.ggml.{key}") for key in keys)
        found = next((v for v in given if type(v) is int and 0 <= v < len(tokens)), known.get(text))
        if found is not None:
            special[text] = found
    for text in ("[CLS]", "[SEP]", "[UNK]"):
        if text not in special:
            raise ModelError(
                f"the GGUF file's vocabulary has no {text} token: give the model's own tokenizer.json with --tokenizer"
            )
    markers = {index for index, is_control in enumerate(control) if is_control} | set(special.values())
    vocab: dict[str, int] = {}
    for index, text in enumerate(tokens):
        vocab.setdefault(text if index in markers else _piece(text), index)
    lowers = not any(_has_upper(text) for index, text in enumerate(tokens) if index not in markers)
    return WordPiece(
        spec={
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": index, "content": tokens[index], "single_word": False, "lstrip": False, "rstrip": False,
                    "normalized": False, "special": True,
                }
                for index in sorted(markers)
                if tokens[index]
            ],
            "normalizer": {
                "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                "lowercase": lowers,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": None,
            "decoder": {"type": "WordPiece", "prefix": _MORE, "cleanup": True},
            "model": {
                "type": "WordPiece", "unk_token": tokens[special["[UNK]"]], "continuing_subword_prefix": _MORE,
                "max_input_chars_per_word": _LONGEST_WORD, "vocab": vocab,
            },
        },
        cls_id=special["[CLS]"],
        sep_id=special["[SEP]"],
    )  # fmt: skip


def _piece(text: str) -> str:
    """A token as BERT's own vocabulary spells it."""
    if text.startswith(_WORD):
        return text[len(_WORD) :]
    if text.startswith("[") and text.endswith("]"):  # [unused0], which older converters left as it is
        return text
    return _MORE + text


def _has_upper(text: str) -> bool:
    bare = text.removeprefix(_WORD)
    return bare != bare.lower() and not (bare.startswith("[") and bare.endswith("]"))
