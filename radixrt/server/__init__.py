"""The HTTP face of an engine: OpenAI and native protocols over FastAPI. Nothing heavy is imported before it is used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixrt.server.app import create_app
    from radixrt.server.serve import serve

_HOMES = {"create_app": "app", "serve": "serve"}

__all__ = ["create_app", "serve"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"radixrt.server.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'radixrt.server' has no attribute {name!r}")
