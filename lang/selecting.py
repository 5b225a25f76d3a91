"""Does a `select`: scores every choice as it would be written here, token by token, and appends the best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixrt.backend import Backend
from radixrt.errors import InvalidRequest
from radixrt.lang.boundary import option_ids
from radixrt.lang.choices import decide, spellings
from radixrt.lang.context import Context, tokenize_text
from radixrt.lang.expressions import Select
from radixrt.lang.pieces import Event
from radixrt.lang.variables import SelectMeta, Value, Variable

if TYPE_CHECKING:
    from radixrt.lang.executor import Branch


async def choose(branch: Branch, select: Select, variable: Variable) -> None:
    """A choice that merges with the end of the pending text is scored with the merged token (`boundary.py`); at the
    start of a turn each is scored with and without a leading space (`choices.py`)."""
    backend, context = branch.run.backend, branch.context
    event = Event("selected", variable.name, variable.span, branch.run.seconds())
    before = await context.open(backend)
    texts = spellings(before, select.choices) if _begins_turn(context, before) else None
    first = not context.ids
    shared, options = await option_ids(backend, "" if texts else before, texts or select.choices, first=first)
    prompt = [*context.ids, *shared] or await beginning(backend)
    result = await backend.ascore(prompt, options, **branch.run.request_options)
    usage = result.usage
    logprobs, unconditional = result.logprobs, None
    if select.method == "unconditional_likelihood_normalized":
        bare = await backend.ascore(await beginning(backend), options, **branch.run.request_options)
        usage = usage + bare.usage
        unconditional = bare.logprobs
    branch.count(usage)
    winner, scores = decide(select.method, options, logprobs, unconditional)
    count = len(select.choices)
    index = winner % count
    kept = [max(range(i, len(options), count), key=lambda j: (scores[j], -j)) for i in range(count)]
    kept[index] = winner
    choice = select.choices[index]
    if texts and texts[winner] != before + choice:
        written = (await tokenize_text(backend, before + choice, first=False)).ids
    else:
        written = options[winner]
    context.ids.extend([*shared, *written])
    context.pending = ""
    context.emit(before)
    context.emit(choice, event)
    context.append_generated((), choice)
    branch.wrote(choice)
    variable.channel.put(choice)
    meta = SelectMeta(
        index,
        select.choices,
        scores=tuple(scores[i] for i in kept),
        logprobs=tuple(logprobs[i] for i in kept),
        token_ids=tuple(options[i] for i in kept),
        unconditional=tuple(unconditional[i] for i in kept) if unconditional is not None else None,
    )
    event.choices = tuple(zip(meta.choices, meta.scores, strict=True))
    event.done(branch.run.seconds(), usage)
    variable.resolve(Value(choice, meta))


def _begins_turn(context: Context, before: str) -> bool:
    """Nothing but `before` stands in the turn."""
    return context.turn is not None and context.turn.content == before


async def beginning(backend: Backend) -> tuple[int, ...]:
    """What stands before a text that nothing stands before: the BOS token, or else the model's end-of-text token."""
    tokens = await tokenize_text(backend, "", first=True)
    ids = tokens.ids or backend.info.eos_token_ids[:1]
    if not ids:
        raise InvalidRequest("there is no text before the choices, and the model has neither BOS nor end token")
    return ids
