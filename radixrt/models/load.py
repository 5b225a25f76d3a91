"""The one way in: a checkpoint becomes a model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from radixrt.checkpoint import Checkpoint, ModelConfig
from radixrt.config import Weights
from radixrt.errors import ModelError
from radixrt.models import llama, mistral, narrow, packing, qwen2, qwen3, qwen3_moe, torch_packed
from radixrt.models.blocks import Decoder, Layer, Traits
from radixrt.models.gguf_weights import GgufWeights
from radixrt.models.packed_file import PackedFile
from radixrt.models.parallel import Group, Part, PartOfWeights, split
from radixrt.models.weights import SafetensorsWeights, WeightSource

Progress = Callable[[str, float], None]
"""Called with a stage ("weights") and the fraction of it that is done."""

TRAITS: dict[str, Callable[[ModelConfig], Traits]] = {
    "llama": llama.traits,
    "mistral": mistral.traits,
    "qwen2": qwen2.traits,
    "qwen3": qwen3.traits,
    "qwen3_moe": qwen3_moe.traits,
}
LAYERS: dict[str, type[Layer]] = {"qwen3_moe": qwen3_moe.MoeLayer}
"""Architectures whose layers are not plain ones."""

_HEAD, _EMBEDDING, _OUTPUT_BIAS = packing.HEAD, packing.EMBEDDING, "model.layers.0.self_attn.o_proj.bias"
_COMPUTED = ".rotary_emb.inv_freq"
"""Ending of the buffers that older checkpoints hold although they follow from the config."""

_log = logging.getLogger(__name__)


def load_model(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    weights: Weights = "auto",
    progress: Progress | None = None,
    group: Group | None = None,
    packed_file: Callable[[str], PackedFile | None] | None = None,
) -> Decoder:
    """Read the checkpoint's weights into a model of its architecture, whose activations are float32 or bfloat16.

    `weights`: in which form matrices are stored and multiplied. auto: on a CPU what the files have quantized is packed
    (`packing.parts`) and all else bfloat16; where nothing is quantized, or the compiled path cannot be had, matrices
    are dense, in `dtype`, but for what torch multiplies packed (`torch_packed`). bf16, int8, int4: so, whatever `dtype`
    is. float32: dense, never by the compiled path, under `dtype` float32 alone.
    `packed_file`: called with the form when something is to be packed; where that is kept, None for memory alone. With
    `group` the model is this rank's part of one over several ranks (`parallel.split`, `Decoder.join`).

    Raises ModelError where tensors are missing or misshapen (it names them), or where the architecture, a rope scaling
    or a weight format is not supported. Tensors that the model does not use are named in a warning.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise ModelError(f"models run in float32 or bfloat16, not in {dtype}")
    if weights == "float32" and dtype != torch.float32:
        raise ModelError(f"weights=float32 goes with dtype float32, not with {dtype}")
    config = checkpoint.config
    part = split(config, group.ranks)[group.rank] if group is not None else None
    source = _open(checkpoint)
    try:
        if part is not None:
            source = PartOfWeights(source, config, part)
        with torch.inference_mode():
            model = _build(checkpoint, source, dtype, torch.device(device), part)
            if part is not None and group is not None:
                model.join(part, group)
            _check(model, source)
            obstacle = narrow.obstacle(config, model.device, 1 if group is None else group.ranks)
            if obstacle is not None and (weights in packing.BITS or (weights == "bf16" and dtype != torch.bfloat16)):
                raise ModelError(f"weights={weights} cannot be had here: {obstacle}")
            compiled = obstacle is None and weights != "float32"
            by_torch = weights == "auto" and torch_packed.possible(model.device, 1 if group is None else group.ranks)
            wanted = packing.parts(model, source, weights) if compiled or by_torch else {}
            compiled = compiled and (bool(wanted) or weights == "bf16" or dtype == torch.bfloat16)
            if compiled:
                model.store_bfloat16()
            report = _reporter(model, progress)
            packed = {}
            if wanted:
                _drop_dense(model, wanted)
            if wanted and by_torch:
                torch_packed.fill(model, source, wanted, report)
            elif wanted:
                packed = packing.load_packed(
                    model, source, wanted, packed_file(weights) if packed_file is not None else None, report
                )
            _fill(model, source, report, {_EMBEDDING} if packed else set())
            if "head" not in wanted and config.tie_word_embeddings and _HEAD in source.shapes:
                _keep_other_head(model, source)
            if compiled:
                model.narrow = narrow.make(model, packed, exact=all(part.exact for part in wanted.values()))
    finally:
        source.close()
    return model


def _open(checkpoint: Checkpoint) -> WeightSource:
    if checkpoint.gguf is None:
        return SafetensorsWeights(checkpoint.safetensors_files, _whole_name)
    config = checkpoint.config
    reordered = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    # llama.cpp rotates neighbours for these two, and the two halves of a head for all others.
    return GgufWeights(
        checkpoint.gguf, interleaved_heads=reordered if config.architecture in ("llama", "mistral") else {}
    )


def _whole_name(name: str) -> str:
    """Files that were saved without their head (embedding models) leave out the "model." in front of everything."""
    return f"model.{name}" if name.startswith(("embed_tokens.", "layers.", "norm.")) else name


def _build(
    checkpoint: Checkpoint, source: WeightSource, dtype: torch.dtype, device: torch.device, part: Part | None = None
) -> Decoder:
    config = checkpoint.config
    traits = TRAITS[config.architecture](config)
    if checkpoint.gguf is not None and traits.output_bias:
        # GGUF's metadata do not speak of biases: where the config found one, the others are as the file has them.
        traits = replace(traits, output_bias=_OUTPUT_BIAS in source.shapes)
    tied = config.tie_word_embeddings
    factors = None
    if config.rope_factors_tensor is not None:
        factors = torch.empty(config.head_dim // 2)
        check_shape(config.rope_factors_tensor, source, factors)
        source.read(config.rope_factors_tensor, factors)
    return Decoder(
        config if part is None else part.config(config),
        traits,
        tied=_HEAD not in source.shapes if tied is None else tied,
        dtype=dtype,
        device=device,
        rope_factors=factors,
        layer=LAYERS.get(config.architecture, Layer),
    )


def _check(model: Decoder, source: WeightSource) -> None:
    """Every tensor is there, in its shape; what is there beside them is named in a warning."""
    parameters = model.parameters()
    missing = [name for name in parameters if name not in source.shapes]
    if missing:
        raise ModelError(f"the model's files lack {some(missing)}")
    for name, view in parameters.items():
        check_shape(name, source, view)
    if model.config.tie_word_embeddings and _HEAD in source.shapes:
        check_shape(_HEAD, source, model.embedding)
    known = {*parameters, model.config.rope_factors_tensor, *({_HEAD} if model.tied else ())}
    extra = [name for name in source.shapes if name not in known and not name.endswith(_COMPUTED)]
    if extra:
        _log.warning("the model's files hold tensors that it does not use: %s", some(extra))


def _drop_dense(model: Decoder, wanted: dict[str, packing.Part]) -> None:
    """Leave of what is packed the shapes alone, before anything was read."""
    for index, layer in enumerate(model.layers):
        for key, (linear, _) in layer.linears().items():
            if packing.layer_name(index, key) in wanted:
                linear.weight = torch.empty_like(linear.weight, device="meta")
    if "head" in wanted and not model.tied:
        model.head = torch.empty_like(model.head, device="meta")


def _reporter(model: Decoder, progress: Progress | None) -> packing.Report:
    total = sum(view.numel() for view in model.parameters().values())
    done = 0

    def report(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress("weights", min(1.0, done / total))

    return report


def _fill(model: Decoder, source: WeightSource, report: packing.Report, there: set[str]) -> None:
    """Read everything that is dense, but for what is `there` already."""
    for name, view in model.parameters().items():
        if view.device.type != "meta" and name not in there:
            source.read(name, view)
            report(view.numel())


def check_shape(name: str, source: WeightSource, view: torch.Tensor) -> None:
    shape = source.shapes.get(name)
    if shape is None:
        raise ModelError(f"the model's files lack {name}")
    if shape != tuple(view.shape):
        raise ModelError(f"tensor {name} has shape {list(shape)}, but the config asks for {list(view.shape)}")


def _keep_other_head(model: Decoder, source: WeightSource) -> None:
    """A config that ties the head, and files that hold one: believe the files where the two differ."""
    head = torch.empty_like(model.embedding)
    check_shape(_HEAD, source, head)
    source.read(_HEAD, head)
    if not torch.equal(head, model.embedding):
        _log.warning("the config ties the head to the embedding, but %s differs from %s: it is used", _HEAD, _EMBEDDING)
        model.head = head


def some(names: list[str]) -> str:
    """The names, of many the first ten."""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"{', '.join(sorted(names)[:10])}{more}"
