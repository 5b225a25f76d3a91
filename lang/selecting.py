"""Does a `select`: one request scores every choice as it would be written here, and the best is appended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixrt.lang.context import Context
from radixrt.lang.expressions import Select
from radixrt.lang.pieces import Event
from radixrt.lang.variables import SelectMeta, Value, Variable
from radixrt.messages import TokensPrompt
from radixrt.prompts import token_array
from radixrt.results import Selection

if TYPE_CHECKING:
    from radixrt.lang.executor import Branch


async def choose(branch: Branch, select: Select, variable: Variable) -> None:
    """A choice that merges with the end of the pending text is scored with the merged token; at the start of a turn
    each is scored with and without a leading space (`radixrt.choosing` has both rules and the three methods)."""
    backend, context = branch.run.backend, branch.context
    event = Event("selected", variable.name, variable.span, branch.run.seconds())
    before = await context.open(backend)
    options = dict(branch.run.request_options)
    if select.return_cache_report:
        options["return_cache_report"] = True
    result = await backend.aselect(
        TokensPrompt(ids=token_array(context.ids)),
        select.choices,
        method=select.method,
        text=before,
        begins_turn=_begins_turn(context, before),
        **options,
    )
    context.pending = ""
    context.emit(before)
    chosen(branch, select, variable, result, event)


def chosen(branch: Branch, select: Select, variable: Variable, result: Selection, event: Event) -> None:
    """The choice stands, and is the variable's value."""
    context = branch.context
    branch.count(result.usage)
    choice = select.choices[result.index]
    context.emit(choice, event)
    context.append_generated(result.written, choice)
    branch.wrote(choice)
    variable.channel.put(choice)
    meta = SelectMeta(
        result.index,
        select.choices,
        scores=result.scores,
        logprobs=result.logprobs,
        token_ids=result.token_ids,
        unconditional=result.unconditional,
        usage=result.usage,
    )
    event.choices = tuple(zip(meta.choices, meta.scores, strict=True))
    event.done(branch.run.seconds(), result.usage)
    variable.resolve(Value(choice, meta))


def _begins_turn(context: Context, before: str) -> bool:
    """Nothing but `before` stands in the turn."""
    return context.turn is not None and context.turn.content == before
