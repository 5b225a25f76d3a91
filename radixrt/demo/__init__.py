"""The demo: three real jobs on a small model, and what the prefix tree saved. See README.md."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixrt.demo.jobs import run_demo

__all__ = ["run_demo"]


def __getattr__(name: str) -> Any:
    # Late, so that the parts can be imported without the language and pydantic.
    if name == "run_demo":
        from radixrt.demo.jobs import run_demo

        return run_demo
    raise AttributeError(f"module 'radixrt.demo' has no attribute {name!r}")
