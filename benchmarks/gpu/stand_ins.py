"""What kernels, models and runner use of msgspec, for a machine that has only torch and Triton.

No message is encoded there: a struct need only be made, replaced and compared.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import sys
from types import ModuleType
from typing import Any, get_type_hints


class Struct:
    """A class whose annotations are its fields, as msgspec's are; options are accepted and change nothing here."""

    __struct_fields__: tuple[str, ...] = ()

    def __init_subclass__(cls, **_options: Any) -> None:
        own = tuple(name for name in inspect.get_annotations(cls) if name not in cls.__struct_fields__)
        cls.__struct_fields__ = (*cls.__struct_fields__, *own)

    def __init__(self, *values: Any, **named: Any) -> None:
        named |= dict(zip(self.__struct_fields__, values, strict=False))
        for name in self.__struct_fields__:
            if name not in named and not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} needs {name}")
            # A default that can be changed is every instance's own.
            setattr(self, name, named.pop(name) if name in named else copy.copy(getattr(type(self), name)))
        if named:
            raise TypeError(f"{type(self).__name__} has no field {next(iter(named))}")
        if (check := getattr(self, "__post_init__", None)) is not None:
            check()


def replace(struct: Struct, **changes: Any) -> Any:
    return type(struct)(**({name: getattr(struct, name) for name in struct.__struct_fields__} | changes))


def install() -> bool:
    """Put the stand-in where `import msgspec` looks, if the real one is not installed; whether it did."""
    if "msgspec" in sys.modules or importlib.util.find_spec("msgspec") is not None:
        return False
    module: Any = ModuleType("msgspec")
    module.structs = ModuleType("msgspec.structs")
    module.Struct, module.structs.replace, module.structs.force_setattr = Struct, replace, setattr
    module.field = lambda *, default_factory: default_factory()
    module.structs.fields = lambda cls: get_type_hints(cls)
    module.MsgspecError = module.ValidationError = module.DecodeError = ValueError
    module.__stand_in__ = True
    sys.modules |= {"msgspec": module, "msgspec.structs": module.structs}
    return True
