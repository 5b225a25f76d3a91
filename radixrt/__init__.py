"""radixrt: a prefix-cache-centric runtime for programs that call a language model many times over shared text.

`Engine` runs a model in this machine's own processes; `Client` speaks to a radixrt server. Both are backends for
programs written with `radixrt.lang`. Importing radixrt imports neither torch nor a web framework.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixrt.backend import Backend, Tokens
    from radixrt.client import Client
    from radixrt.config import EngineConfig
    from radixrt.embedding import Embeddings
    from radixrt.engine import Engine
    from radixrt.errors import RadixrtError
    from radixrt.params import Constraint, SamplingParams
    from radixrt.results import Choice, Delta, Generation, ModelInfo, Usage

_HOMES = {
    "Backend": "backend",
    "Choice": "results",
    "Client": "client",
    "Constraint": "params",
    "Delta": "results",
    "Embeddings": "embedding",
    "Engine": "engine",
    "EngineConfig": "config",
    "Generation": "results",
    "ModelInfo": "results",
    "RadixrtError": "errors",
    "SamplingParams": "params",
    "Tokens": "backend",
    "Usage": "results",
}

__version__ = "0.1.0"
__all__ = [
    "Backend", "Choice", "Client", "Constraint", "Delta", "Embeddings", "Engine", "EngineConfig", "Generation",
    "ModelInfo", "RadixrtError", "SamplingParams", "Tokens", "Usage",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Names are imported when they are first used, so that each process pays only for what it needs at start.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"radixrt.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'radixrt' has no attribute {name!r}")
