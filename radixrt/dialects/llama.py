"""Llama 3.1 and later: the answer is the call itself, one JSON object with `parameters`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from radixrt.dialects import formats
from radixrt.dialects.dialect import Dialect
from radixrt.dialects.formats import Format
from radixrt.dialects.functions import Function

_HEAD = re.compile(r'\s*(\{"name": "[^"]*", "parameters": |\{"name":"[^"]*","parameters":)')


class Llama(Dialect):
    """One call an answer: the template refuses a history with more."""

    name = "llama"
    opener = ""
    key = "parameters"

    def knows(self, template: str) -> bool:
        return "<|start_header_id|>" in template and '"parameters": ' in template

    def tags(self, functions: Sequence[Function]) -> list[Format]:
        return [formats.tag(self.head(f), f.schema, "}") for f in functions]

    def free(self, functions: Sequence[Function], *, many: bool) -> Format:
        """Only the whole head of a function opens a call: an answer may be JSON with a name of its own."""
        tight = [formats.tag(self.head(f).replace(": ", ":").replace(", ", ","), f.schema, "}") for f in functions]
        tags = [*self.tags(functions), *tight]
        return formats.triggered([tag["begin"] for tag in tags], tags, many=False)

    def is_head(self, text: str) -> bool:
        return _HEAD.fullmatch(text) is not None
