"""From a config to the tier that it asks for, and what its chunks belong to."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import msgspec

from radixrt.checkpoint import Checkpoint
from radixrt.config import RunnerConfig
from radixrt.errors import StartupError
from radixrt.runner.packed import weight_files
from radixrt.runner.pool import PoolShape
from radixrt.tiers import CHUNK, DiskTier, HostTier, LayeredTier, Tier
from radixrt.tiers.fingerprint import Fingerprint, weights_hash

log = logging.getLogger(__name__)


def hash_weights(config: RunnerConfig, checkpoint: Checkpoint) -> str | None:
    """Hash of the model's weight files; None where nothing outlives the process."""
    if config.cache_dir is None:
        return None
    directory = Path(config.cache_dir).expanduser()
    return weights_hash(weight_files(checkpoint), directory if directory.is_dir() else None)


def open_tier(
    config: RunnerConfig, checkpoint: Checkpoint, shape: PoolShape, dtype: str, weights: str, hashed: str | None
) -> Tier | None:
    """The tier of an engine, None where none is asked for.

    `dtype`: number type of activations; `weights`: the form in which matrices are multiplied.

    StartupError where a cache directory cannot be used; one on a full disk is done without.
    """
    chunk_bytes = CHUNK * shape.token_bytes
    host = HostTier(chunk_bytes, config.cache_host_bytes) if config.cache_host_bytes else None
    if config.cache_dir is None or hashed is None:
        return host
    fingerprint = Fingerprint(
        weights_hash=hashed,
        architecture=msgspec.to_builtins(checkpoint.config),
        dtype=dtype,
        kv_dtype=str(shape.dtype).removeprefix("torch."),
        weights=weights,
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
    )
    try:
        disk = DiskTier(Path(config.cache_dir).expanduser(), fingerprint, chunk_bytes, config.cache_dir_bytes)
    except StartupError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.warning("%s; serving goes on without it", error.message)
        return host
    return disk if host is None else LayeredTier(host, disk)
