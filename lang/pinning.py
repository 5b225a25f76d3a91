"""Does `s.pin()` and `s.unpin()`: the text so far stays in the prefix tree for a time, also after the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixrt.errors import InvalidRequest, NotFound
from radixrt.lang.generating import standing_ids
from radixrt.messages import TokensPrompt
from radixrt.prompts import token_array

if TYPE_CHECKING:
    from radixrt.lang.executor import Branch


async def pin(branch: Branch, ttl: float) -> None:
    """Computes what stands so far and has it kept for `ttl` seconds."""
    ids = await standing_ids(branch)
    if not ids:
        raise InvalidRequest("there is no text to pin yet", param="pin")
    made = await branch.run.backend.apin(TokensPrompt(ids=token_array(ids)), ttl, **branch.run.request_options)
    branch.pins = [*(one for one in branch.pins if one.id != made.id), made]


async def unpin(branch: Branch) -> None:
    """Ends the pins that the branch has made; those that are over already are no fault."""
    salt = branch.run.options.cache_salt
    while branch.pins:
        made = branch.pins.pop()
        try:
            await branch.run.backend.aunpin(made, cache_salt=salt)
        except NotFound:
            continue  # it has expired, or gave way
