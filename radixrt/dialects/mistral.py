"""Mistral (tokenizers v2 and v3): the control token [TOOL_CALLS], then one JSON array of calls."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from radixrt.dialects import formats
from radixrt.dialects.dialect import Dialect
from radixrt.dialects.formats import Format
from radixrt.dialects.functions import Function


class Mistral(Dialect):
    """Calls that are forced, or opened by plain text, stand alone in their array; behind a control token of the model's
    own several may."""

    name = "mistral"
    opener = "[TOOL_CALLS]"
    is_list = True

    def knows(self, template: str) -> bool:
        # From v11 on the name stands outside the JSON, before [ARGS] or [CALL_ID].
        return self.opener in template and "[ARGS]" not in template and "[CALL_ID]" not in template

    def tags(self, functions: Sequence[Function]) -> list[Format]:
        return [formats.tag(f"{self.opener}[{self.head(f)}", f.schema, "}]") for f in functions]

    def opened(self, functions: Sequence[Function], *, many: bool) -> Format:
        calls = [formats.tag(self.head(f), f.schema, "}") for f in functions]
        return formats.enclosed("[", formats.separated(calls, ", ", many=many), "]")

    def new_id(self) -> str:
        """Nine letters and digits: the template refuses others."""
        return secrets.token_hex(5)[:9]
