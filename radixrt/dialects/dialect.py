"""A dialect: how one family of models writes calls."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from radixrt.dialects import formats
from radixrt.dialects.formats import Format
from radixrt.dialects.functions import Function


class Dialect:
    """One family: a call is {"name": ..., <key>: {...}} with something around it, which subclasses say, or a name and
    arguments."""

    name: str
    opener: str
    """Text that opens a call anywhere in the answer; empty: a call can only be the whole answer."""
    closer: str = ""
    """Text behind each call."""
    is_list: bool = False
    """The calls stand in one JSON array behind the opener."""
    key: str = "arguments"
    behind_name: str = ""
    """Text between a function's bare name and its arguments; empty: the call is an object with the name in it."""

    @property
    def words(self) -> tuple[str, ...]:
        """The family's own words, which a vocabulary may have as control tokens."""
        return tuple(filter(None, (self.opener, self.closer, self.behind_name)))

    def knows(self, template: str) -> bool:
        """Whether a chat template is one of this family."""
        raise NotImplementedError

    def tags(self, functions: Sequence[Function]) -> list[Format]:
        """A tag for each function: a whole call."""
        raise NotImplementedError

    def forced(self, functions: Sequence[Function], *, many: bool) -> Format:
        """One call, or with `many` one or more where the family writes more, and nothing else."""
        return formats.separated(self.tags(functions), "\n", many=False)

    def free(self, functions: Sequence[Function], *, many: bool) -> Format:
        """Any text, in which every call that is opened is a right one. For an opener that is plain text."""
        return formats.triggered([self.opener], self.tags(functions), many=False)

    def head(self, function: Function) -> str:
        """The text of a call up to its arguments, as chat templates write it."""
        return f'{{"name": {function.shown}, "{self.key}": '

    def is_head(self, text: str) -> bool:
        """Whether text that reads like a head is one; where only some spellings are constrained, others are text."""
        return True

    def new_id(self) -> str:
        """A fresh id for a call."""
        return f"call_{secrets.token_hex(12)}"
