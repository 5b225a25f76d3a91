"""A model directory made from a configuration alone, for `--load-format dummy`: no weights, but a tokenizer always."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from radixrt.checkpoint.directory import read_json
from radixrt.checkpoint.home import home
from radixrt.checkpoint.shapes import SHAPES
from radixrt.errors import ModelError

END = "<|end|>"
_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
_COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def dummy_directory(model: str) -> Path:
    """A directory that opens like any model's, for a directory with config.json or a short name of `SHAPES`.

    Its tokenizer is the given directory's, or a stand-in that knows each byte as a token. Made once for each
    configuration, under `<cache>/dummy`. ModelError for anything else.
    """
    source = Path(model).expanduser()
    if source.is_dir() and (source / "config.json").is_file():
        config = read_json(source / "config.json")
    elif model.lower() in SHAPES:
        config = SHAPES[model.lower()]
    else:
        raise ModelError(
            f"random weights need a configuration: give a directory with config.json or one of {', '.join(SHAPES)}, "
            f"not {model!r}"
        )
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": (2).to_bytes(8, "little") + b"{}"}
    if (source / "tokenizer.json").is_file():
        files |= {name: (source / name).read_bytes() for name in _COPIED if (source / name).is_file()}
    else:
        files |= _stand_in()
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name])
    target = home() / "dummy" / f"{source.name.lower() or 'model'}-{digest.hexdigest()[:12]}"
    if not target.is_dir():
        _write(target, files)
    return target


def _write(target: Path, files: dict[str, bytes]) -> None:
    """All at once: another process may make the same directory."""
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
    for name, data in files.items():
        (made / name).write_bytes(data)
    try:
        made.rename(target)
    except OSError:
        shutil.rmtree(made)
        if not target.is_dir():
            raise


def _stand_in() -> dict[str, bytes]:
    """A byte-level tokenizer without merges: 256 tokens and two markers."""
    vocabulary = {character: token for token, character in enumerate(_byte_characters())}
    special = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256, "content": "<|start|>", **special}, {"id": 257, "content": END, **special}],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocabulary | {"<|start|>": 256, END: 257}, "merges": [],
        },
    }  # fmt: skip
    facts = {"eos_token": END, "chat_template": _TEMPLATE}
    return {"tokenizer.json": json.dumps(tokenizer).encode(), "tokenizer_config.json": json.dumps(facts).encode()}


def _byte_characters() -> list[str]:
    """The character that stands for each byte (GPT-2's byte-level BPE): itself where it prints, else one above 255."""
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]
