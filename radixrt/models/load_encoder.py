"""A checkpoint's encoder: names of both formats, checks, and the filling."""

from __future__ import annotations

import logging
import re

import torch

from radixrt.checkpoint import Checkpoint
from radixrt.errors import ModelError
from radixrt.models.bert import BertEncoder
from radixrt.models.gguf_weights import GgufWeights
from radixrt.models.load import Progress, check_shape, some
from radixrt.models.weights import SafetensorsWeights, WeightSource

_log = logging.getLogger(__name__)

_UNUSED = ("pooler.", "cls.", "embeddings.position_ids")
"""Beginnings of tensors that belong to BERT's training and to no embedding."""
_GGUF_NAMES = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
}
_GGUF_LAYER_NAMES = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_GGUF_LAYER = re.compile(r"blk\.(\d+)\.(\w+)")


def load_encoder(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> BertEncoder:
    """Read the checkpoint's weights into an encoder, in float32 or bfloat16; integer blocks of a GGUF file become that.

    Raises ModelError where the checkpoint is no encoder, or tensors are missing or misshapen (it names them).
    """
    config = checkpoint.encoder
    if config is None:
        raise ModelError(f"the model is no encoder but a {checkpoint.config.architecture}")
    source: WeightSource
    if checkpoint.gguf is not None:
        source = GgufWeights(checkpoint.gguf, interleaved_heads={}, rename=_gguf_name)
    else:
        source = SafetensorsWeights(checkpoint.safetensors_files, rename=_plain_name)
    try:
        with torch.inference_mode():
            model = BertEncoder(config, dtype=dtype, device=torch.device(device))
            views = model.parameters()
            _check(views, source)
            total, done = sum(view.numel() for view in views.values()), 0
            for name, view in views.items():
                source.read(name, view.view(source.shapes[name]))
                done += view.numel()
                if progress is not None:
                    progress("weights", done / total)
    finally:
        source.close()
    return model


def _check(views: dict[str, torch.Tensor], source: WeightSource) -> None:
    missing = [name for name in views if name not in source.shapes]
    if missing:
        raise ModelError(f"the model's files lack {some(missing)}")
    for name, view in views.items():
        # A model of one token type has it as a vector in a GGUF file.
        check_shape(name, source, view[0] if source.shapes[name] == view.shape[1:] and len(view) == 1 else view)
    extra = [name for name in source.shapes if name not in views and not name.startswith(_UNUSED)]
    if extra:
        _log.warning("the model's files hold tensors that it does not use: %s", some(extra))


def _plain_name(name: str) -> str:
    """BertModel's own name: models with a head have "bert." in front, and old files spell the norms otherwise."""
    name = name.removeprefix("bert.")
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    layer = _GGUF_LAYER.fullmatch(stem)
    if layer is None:
        return f"{_GGUF_NAMES[stem]}.{kind}" if stem in _GGUF_NAMES else name
    index, part = layer.groups()
    return f"encoder.layer.{index}.{_GGUF_LAYER_NAMES[part]}.{kind}" if part in _GGUF_LAYER_NAMES else name
