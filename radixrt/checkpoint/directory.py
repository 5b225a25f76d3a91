"""What a model directory says beside its weights: its tokenizer, chat template and end tokens, from JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from radixrt.checkpoint.around import around_text, steps_of
from radixrt.checkpoint.tokenizer_gguf import TokenizerFacts
from radixrt.errors import ModelError

_MAX_JSON_BYTES = 256 << 20


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file; {} when there is no such file; ModelError when it is broken or unreadable."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelError(f"{path.name} is unreasonably large")
        value = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path.name} is not valid JSON: fetch the model again") from error
    except OSError as error:
        raise ModelError(f"{path.name} cannot be read: {error.strerror}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path.name} does not hold a JSON object")
    return value


def chat_template(folder: Path) -> str | None:
    """The model's chat template (its default one where it has several).

    In this order: chat_template.jinja, tokenizer_config.json, chat_template.json.
    """
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        try:
            return jinja.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError("chat_template.jinja cannot be read") from error
    for name in ("tokenizer_config.json", "chat_template.json"):
        if (template := _default_template(read_json(folder / name).get("chat_template"))) is not None:
            return template
    return None


def _default_template(value: Any) -> str | None:
    """A template, or the one called default in a list of {name, template} or an object of them."""
    if isinstance(value, list):
        value = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
    if isinstance(value, dict):
        value = value.get("default")
    return value if isinstance(value, str) and value else None


def tokenizer_facts(folder: Path, file: str = "tokenizer.json") -> TokenizerFacts:
    """The tokenizer.json of a directory and which tokens begin and end a text.

    ModelError when there is no tokenizer.json, or it is no JSON.
    """
    path = folder / file
    if not path.is_file():
        raise ModelError(
            "the model has no tokenizer.json (tokenizer.model and vocab.json are not read): save it with transformers' "
            "fast tokenizer, or give one with --tokenizer"
        )
    spec = read_json(path)
    config = read_json(folder / "tokenizer_config.json")
    # A null in tokenizer_config.json is an answer: Qwen's config.json names a BOS that its tokenizer does not have.
    specials = read_json(folder / "special_tokens_map.json") | config
    ids = _ids_by_text(spec)
    model = read_json(folder / "config.json")
    bos = _token_id(specials.get("bos_token"), ids)
    if bos is None and "bos_token" not in specials:
        bos = next(iter(id_list(model.get("bos_token_id"))), None)
    before, behind = around_text(spec.get("post_processor"))
    wordpiece = isinstance(spec.get("model"), dict) and spec["model"].get("type") == "WordPiece"
    if wordpiece:  # BERT: [CLS] begins every text, and nothing ends a generation
        bos = next(iter(before), _token_id(specials.get("cls_token"), ids))
    own_end = _token_id(specials.get("eos_token"), ids)
    ends = [] if own_end is None else [own_end]
    return TokenizerFacts(
        json=path.read_bytes(),
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys([*ends, *configured_eos_ids(folder)])),
        adds_bos=bos is not None if wordpiece else _adds_bos(spec, config, bos),
        suffix_ids=behind,
    )


def configured_eos_ids(folder: Path) -> tuple[int, ...]:
    """End tokens of generation_config.json and config.json."""
    generation = read_json(folder / "generation_config.json")
    model = read_json(folder / "config.json")
    # What generation_config.json says replaces config.json, as in transformers.
    return id_list(generation.get("eos_token_id")) or id_list(model.get("eos_token_id"))


def id_list(value: Any) -> tuple[int, ...]:
    """A token id or a list of them, as configs hold either."""
    values = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0))


def _ids_by_text(spec: dict[str, Any]) -> dict[str, int]:
    model = spec.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids = dict(vocab) if isinstance(vocab, dict) else {}
    added = spec.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and isinstance(token.get("content"), str) and isinstance(token.get("id"), int):
            ids[token["content"]] = token["id"]
    return ids


def _token_id(value: Any, ids: dict[str, int]) -> int | None:
    """The id of a token written as its text or as {"content": text, ...}."""
    text = value.get("content") if isinstance(value, dict) else value
    return ids.get(text) if isinstance(text, str) else None


def _adds_bos(spec: dict[str, Any], config: dict[str, Any], bos: int | None) -> bool:
    """Whether the model expects BOS in front of plain text.

    `add_bos_token` says so where it is set; else the post-processor's template for one text begins with BOS or not.
    """
    if bos is None:
        return False
    if isinstance(flag := config.get("add_bos_token"), bool):
        return flag
    for step in steps_of(spec.get("post_processor")):
        template = step.get("single")
        first = template[0] if isinstance(template, list) and template else None
        special = first.get("SpecialToken") if isinstance(first, dict) else None
        tokens = step.get("special_tokens")
        if isinstance(special, dict) and isinstance(tokens, dict):
            named = tokens.get(special.get("id"))
            return isinstance(named, dict) and id_list(named.get("ids"))[:1] == (bos,)
    return False
