"""A tokenizer.json from GGUF metadata, for byte-level BPE (`gpt2`), sentencepiece-like BPE (`llama`) and WordPiece
(`bert`) vocabularies.

No text is normalized (as in llama.cpp, and unlike Qwen's own tokenizer.json, which composes to NFC): so that decoding
gives back exactly what was encoded.
"""

from __future__ import annotations

from typing import Any

import msgspec

from radixrt.checkpoint.pretokenizers import BYTE_LEVEL, PRE_TOKENIZERS
from radixrt.errors import ModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Values of `tokenizer.ggml.token_type`."""
_ASK = "give the model's own tokenizer.json (or a directory that holds it) with --tokenizer"


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer.json and what it leaves open."""

    json: bytes
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """The tokenizer's own end token first."""
    adds_bos: bool
    suffix_ids: tuple[int, ...] = ()
    """What the model expects behind a text that is embedded; nothing else ends with it."""


def tokenizer_from_gguf(metadata: dict[str, Any]) -> TokenizerFacts:
    """The tokenizer; ModelError for kinds that cannot be rebuilt exactly. Tokens of type UNUSED are left out."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise ModelError(f"the GGUF file holds no vocabulary: {_ASK}")
    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if not isinstance(types, list) or len(types) != len(tokens):
        raise ModelError(f"the GGUF file's vocabulary is broken (tokens and their types differ in number): {_ASK}")
    size = len(tokens)
    if kind == "bert":
        return _wordpiece_facts(metadata, tokens, types)
    if kind == "gpt2":
        spec, adds_bos = _byte_level(metadata, tokens, types)
    elif kind == "llama":
        spec, adds_bos = _sentencepiece(metadata, tokens, types), True
    else:
        raise ModelError(f"the GGUF file's tokenizer is of kind {kind!r}, which cannot be rebuilt exactly: {_ASK}")
    spec["added_tokens"] = _added_tokens(tokens, types)
    spec.update({"version": "1.0", "truncation": None, "padding": None, "post_processor": None})
    eos = _ids(metadata, size, "eos_token_id")
    return TokenizerFacts(
        json=msgspec.json.encode(spec),
        bos_id=next(iter(_ids(metadata, size, "bos_token_id")), None),
        eos_ids=_ids(metadata, size, "eos_token_id", "eot_token_id", "eom_token_id"),
        adds_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos)),
        suffix_ids=eos if metadata.get("tokenizer.ggml.add_eos_token") is True else (),
    )


def _wordpiece_facts(metadata: dict[str, Any], tokens: list[str], types: list[int]) -> TokenizerFacts:
    from radixrt.checkpoint.wordpiece import wordpiece

    made = wordpiece(metadata, tokens, [kind == CONTROL for kind in types])
    return TokenizerFacts(
        json=msgspec.json.encode(made.spec), bos_id=made.cls_id, eos_ids=(), adds_bos=True, suffix_ids=(made.sep_id,)
    )


def gguf_eos_ids(metadata: dict[str, Any]) -> tuple[int, ...]:
    """End tokens that the metadata names: end of sequence, of turn, of message; each once, in this order."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    size = len(tokens) if isinstance(tokens, list) else 0
    return _ids(metadata, size, "eos_token_id", "eot_token_id", "eom_token_id")


def _ids(metadata: dict[str, Any], size: int, *keys: str) -> tuple[int, ...]:
    values = (metadata.get(f"tokenizer.ggml.{key}") for key in keys)
    # Some converters write 2**32 - 1 for "none".
    return tuple(dict.fromkeys(v for v in values if isinstance(v, int) and 0 <= v < size))


def _vocab(tokens: list[str], types: list[int]) -> dict[str, int]:
    """text -> id of the tokens that merging may give; the first id wins where a text stands twice."""
    vocab: dict[str, int] = {}
    for index, (text, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind != UNUSED:
            vocab.setdefault(text, index)
    return vocab


def _byte_level(metadata: dict[str, Any], tokens: list[str], types: list[int]) -> tuple[dict[str, Any], bool]:
    name = metadata.get("tokenizer.ggml.pre", "default")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelError(f"the GGUF file's pre-tokenizer {name!r} is not known (these are: {known}): {_ASK}")
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise ModelError(f"the GGUF file holds no merges: {_ASK}")
    vocab = _vocab(tokens, types)
    pairs = [_pair(merge) for merge in merges]
    # The library refuses merges over unknown tokens with an error of its own; such files exist (trimmed vocabularies).
    pairs = [(a, b) for a, b in pairs if a in vocab and b in vocab and a + b in vocab]
    return {
        "normalizer": None,
        "pre_tokenizer": pre.as_json(),
        "decoder": BYTE_LEVEL,
        "model": _bpe(vocab, pairs, ignore_merges=pre.ignore_merges),
    }, pre.adds_bos


def _pair(merge: object) -> tuple[str, str]:
    if isinstance(merge, str):
        left, space, right = merge.partition(" ")
        if space and left and right and " " not in right:
            return left, right
    raise ModelError(f"the GGUF file's merges are broken ({merge!r}): {_ASK}")


def _sentencepiece(metadata: dict[str, Any], tokens: list[str], types: list[int]) -> dict[str, Any]:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError(f"the GGUF file's vocabulary holds no scores: {_ASK}")
    vocab = _vocab(tokens, types)
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    normalizers: list[dict[str, Any]] = [{"type": "Prepend", "prepend": "▁"}] if prefix else []
    normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = next((tokens[i] for i, kind in enumerate(types) if kind == UNKNOWN), None)
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(
            vocab, _merges_from_scores(tokens, types, scores, vocab), unk_token=unknown, byte_fallback=BYTE in types
        ),
    }


def _merges_from_scores(
    tokens: list[str], types: list[int], scores: list[float], vocab: dict[str, int]
) -> list[tuple[str, str]]:
    """Merges in the order in which sentencepiece would make them: by the score of the token they make, best first.

    (sentencepiece's bpe_model.cc joins the adjacent pair whose joined token scores best, leftmost first.)
    """
    ranked: list[tuple[float, int, int, str, str]] = []
    for index, (text, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind != NORMAL or vocab[text] != index:
            continue
        for cut in range(1, len(text)):
            left, right = vocab.get(text[:cut]), vocab.get(text[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[index], left, right, text[:cut], text[cut:]))
    ranked.sort(key=lambda item: item[:3])
    return [(left, right) for *_, left, right in ranked]


def _bpe(
    vocab: dict[str, int],
    merges: list[tuple[str, str]],
    *,
    ignore_merges: bool = False,
    unk_token: str | None = None,
    byte_fallback: bool = False,
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk_token,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unk_token is not None,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": vocab,
        "merges": merges,
    }


def _added_tokens(tokens: list[str], types: list[int]) -> list[dict[str, Any]]:
    """Control tokens (special: never spelt by ordinary text) and user-defined ones (always one id)."""
    return [
        {
            "id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": kind != USER_DEFINED,
        }
        for index, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, USER_DEFINED, UNKNOWN) and text
    ]  # fmt: skip
