"""torch's largest library, loaded while this process imports other modules."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path


def load_library() -> None:
    """Load libtorch_cpu, if it can be found. Meant for a thread of its own.

    Loading takes 0.2 s (relocations, and the operators that register themselves), which `import torch` spends holding
    the interpreter's lock, and ctypes without it. What cannot be loaded here is left to that import, whose errors say
    what is wrong.
    """
    try:
        spec = importlib.util.find_spec("torch")
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            for library in Path(place, "lib").glob("libtorch_cpu.so"):
                ctypes.CDLL(str(library))
    except OSError:
        return
