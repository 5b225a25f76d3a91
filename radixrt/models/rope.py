"""Rotary positions and the ways of stretching them (arXiv 2104.09864, section 3.2.2, and the papers named below)."""

from __future__ import annotations

import math

import torch

from radixrt.checkpoint import ModelConfig, RopeScaling
from radixrt.errors import ModelError


class Rotary:
    """Inverse frequencies of a model: one angle a position for each pair of a head's elements."""

    def __init__(self, config: ModelConfig, device: torch.device, factors: torch.Tensor | None = None) -> None:
        """`factors` float32[head_dim / 2]: each inverse frequency is divided by its own (GGUF's rope_freqs).

        ModelError for a scaling that radixrt does not run.
        """
        inv_freq, self.magnitude = _scaled(config)
        if factors is not None:
            inv_freq = inv_freq / factors
        self.inv_freq = inv_freq.to(device)

    def tables(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin) [T, 1, head_dim] for positions int64[T], as `kernels.rope` takes them."""
        angles = positions[:, None].float() * self.inv_freq
        cos, sin = angles.cos() * self.magnitude, angles.sin() * self.magnitude
        return torch.cat([cos, cos], -1)[:, None].to(dtype), torch.cat([-sin, sin], -1)[:, None].to(dtype)


def _scaled(config: ModelConfig) -> tuple[torch.Tensor, float]:
    """(inverse frequencies float32[head_dim / 2], factor on cos and sin)."""
    scaling, width = config.rope_scaling, config.head_dim
    plain = 1.0 / config.rope_theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    match scaling.kind:
        case "default":
            return plain, 1.0
        case "linear":
            return plain / scaling.factor, 1.0
        case "llama3":
            return _llama3(plain, scaling), 1.0
        case "yarn":
            return _yarn(plain, config), _yarn_magnitude(scaling)
    raise ModelError(
        f"rope scaling {scaling.kind!r} is not supported: its rotations change with the length of each sequence, "
        "so cached keys could not be shared"
        if scaling.kind == "dynamic"
        else f"rope scaling {scaling.kind!r} is not supported"
    )


def _original(scaling: RopeScaling) -> int:
    if not scaling.original_context_length:
        raise ModelError(f"rope scaling {scaling.kind!r} lacks the original context length")
    return scaling.original_context_length


def _llama3(plain: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Long wavelengths are divided by the factor, short ones stay, between the two it is interpolated (Llama 3.1)."""
    wavelength = 2 * math.pi / plain
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = ((_original(scaling) / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * plain / scaling.factor + smooth * plain


def _yarn(plain: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """YaRN (arXiv 2309.00071, section 3.2): a ramp over the pairs, from kept to divided by the factor."""
    scaling, width = config.rope_scaling, config.head_dim

    def pair(rotations: float) -> float:
        """The pair that makes so many rotations over the original context."""
        turns = _original(scaling) / (rotations * 2 * math.pi)
        return width * math.log(turns) / (2 * math.log(config.rope_theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001  # a step, not a division by zero
    divided = ((torch.arange(width // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / scaling.factor * divided + plain * (1 - divided)


def _yarn_magnitude(scaling: RopeScaling) -> float:
    """Section 3.4's temperature, as a factor on cos and sin."""

    def of(mscale: float) -> float:
        return 0.1 * mscale * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return of(scaling.mscale) / of(scaling.mscale_all_dim)
    return of(1.0)
