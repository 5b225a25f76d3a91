"""How a byte-level BPE tokenizer cuts text before merging: GGUF's `tokenizer.ggml.pre` -> tokenizer.json parts.

The expressions are those of the models' own tokenizer.json files, checked against what llama.cpp does for the same name
(src/llama-vocab.cpp). `Split` with behaviour Isolated keeps what lies between matches as pieces of their own, so a list
of expressions is a list of splits, each applied to the pieces of the one before.
"""

from __future__ import annotations

from typing import Any

import msgspec

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class PreTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the table."""

    splits: tuple[str, ...]
    """Regular expressions (Oniguruma), applied one after the other."""
    ignore_merges: bool = False
    """A piece that is a token as a whole becomes that token, whatever the merges would make of it."""
    adds_bos: bool = False
    """When the metadata does not say."""

    def as_json(self) -> dict[str, Any]:
        """The `pre_tokenizer` of a tokenizer.json."""
        splits = [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
            for regex in self.splits
        ]
        return {"type": "Sequence", "pretokenizers": [*splits, BYTE_LEVEL]}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

_DIGIT_THEN_GPT2 = PreTokenizer(splits=(r"\p{N}", _GPT2))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer(splits=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer(splits=(_GPT2,)),
    "smollm": _DIGIT_THEN_GPT2,
    "starcoder": _DIGIT_THEN_GPT2,
    "refact": _DIGIT_THEN_GPT2,
    "command-r": _DIGIT_THEN_GPT2,
    "llama-bpe": PreTokenizer(splits=(_LLAMA3,), ignore_merges=True, adds_bos=True),
    "llama3": PreTokenizer(splits=(_LLAMA3,), ignore_merges=True, adds_bos=True),
    "llama-v3": PreTokenizer(splits=(_LLAMA3,), ignore_merges=True, adds_bos=True),
    "falcon3": PreTokenizer(splits=(_LLAMA3,), ignore_merges=True, adds_bos=True),
    "dbrx": PreTokenizer(splits=(_LLAMA3,)),
    "smaug-bpe": PreTokenizer(splits=(_LLAMA3,)),
    "qwen2": PreTokenizer(splits=(_QWEN2,)),
    "deepseek-r1-qwen": PreTokenizer(splits=(_QWEN2,)),
    "tekken": PreTokenizer(splits=(_TEKKEN,), ignore_merges=True, adds_bos=True),
}
"""Name in `tokenizer.ggml.pre` -> how it cuts."""
