"""What a tokenizer puts around a text: BERT's [CLS] and [SEP], the end token of embedding models made from decoders.

Read from a tokenizer.json's post-processor; formats: the tokenizers library's `processors`.
"""

from __future__ import annotations

from typing import Any


def around_text(post_processor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids in front of one text and behind it, by the first processor that says; empty where none does."""
    for step in steps_of(post_processor):
        match step:
            case {"type": "TemplateProcessing", "single": list(template), "special_tokens": dict(tokens)}:
                return _of_template(template, tokens)
            case {"type": "BertProcessing" | "RobertaProcessing", "cls": [_, int(cls)], "sep": [_, int(sep)]}:
                return (cls,), (sep,)
    return (), ()


def steps_of(part: Any) -> list[dict[str, Any]]:
    """A post-processor as a flat list: sequences are unfolded."""
    if not isinstance(part, dict):
        return []
    inner = part.get("processors")
    return [step for item in inner for step in steps_of(item)] if isinstance(inner, list) else [part]


def _of_template(template: list[Any], tokens: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    before: list[int] = []
    behind: list[int] = []
    side = before
    for piece in template:
        match piece:
            case {"Sequence": _}:
                side = behind
            case {"SpecialToken": {"id": str(name)}}:
                named = tokens.get(name)
                ids = named.get("ids") if isinstance(named, dict) else None
                side.extend(id for id in ids or () if type(id) is int and id >= 0)
    return tuple(before), tuple(behind)
