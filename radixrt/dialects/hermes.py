"""Hermes: each call in <tool_call> tags (Hermes 2 Pro, Qwen2.5, Qwen3, and whoever has a template without tools)."""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.dialects import formats
from radixrt.dialects.dialect import Dialect
from radixrt.dialects.formats import Format
from radixrt.dialects.functions import Function


class Hermes(Dialect):
    name = "hermes"
    opener = "<tool_call>"
    closer = "</tool_call>"

    def knows(self, template: str) -> bool:
        # Qwen3-Coder and its kin write XML between the same tags.
        return self.opener in template and "<function=" not in template and "<arg_key>" not in template

    def tags(self, functions: Sequence[Function]) -> list[Format]:
        return [formats.tag(f"{self.opener}\n{self.head(f)}", f.schema, f"}}\n{self.closer}") for f in functions]

    def forced(self, functions: Sequence[Function], *, many: bool) -> Format:
        return formats.separated(self.tags(functions), "\n", many=many)

    def free(self, functions: Sequence[Function], *, many: bool) -> Format:
        return formats.triggered([self.opener], self.tags(functions), many=many)
