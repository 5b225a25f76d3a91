"""Mistral: the control token [TOOL_CALLS], then one JSON array of calls (tokenizers v2 to v7), or name and arguments of
each call behind such a token of its own (v13)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from radixrt.dialects import formats
from radixrt.dialects.dialect import Dialect
from radixrt.dialects.formats import Format
from radixrt.dialects.functions import Function

_ARGS = "[ARGS]"


class Mistral(Dialect):
    """Calls stand in one array; where plain text opens it in free text, alone."""

    name = "mistral"
    opener = "[TOOL_CALLS]"
    is_list = True

    def knows(self, template: str) -> bool:
        return self.opener in template and _ARGS not in template and "[CALL_ID]" not in template

    def tags(self, functions: Sequence[Function]) -> list[Format]:
        return [formats.tag(f"{self.opener}[{self.head(f)}", f.schema, "}]") for f in functions]

    def forced(self, functions: Sequence[Function], *, many: bool) -> Format:
        calls = [formats.tag(self.head(f), f.schema, "}") for f in functions]
        return formats.enclosed(f"{self.opener}[", formats.separated(calls, ", ", many=many), "]")

    def new_id(self) -> str:
        """Nine letters and digits: the template refuses others."""
        return secrets.token_hex(5)[:9]


class MistralArgs(Mistral):
    """[TOOL_CALLS]name[ARGS]{...}, as often as there are calls. (v11 writes an id between the two, behind [CALL_ID]:
    that is not known here.)"""

    name = "mistral-args"
    is_list = False
    behind_name = _ARGS

    def knows(self, template: str) -> bool:
        return self.opener in template and _ARGS in template and "[CALL_ID]" not in template

    def tags(self, functions: Sequence[Function]) -> list[Format]:
        return [formats.tag(f"{self.opener}{f.name}{_ARGS}", f.schema, "") for f in functions]

    def forced(self, functions: Sequence[Function], *, many: bool) -> Format:
        return formats.separated(self.tags(functions), "", many=many)

    def free(self, functions: Sequence[Function], *, many: bool) -> Format:
        return formats.triggered([self.opener], self.tags(functions), many=many)
