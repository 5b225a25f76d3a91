"""Does the operations: one function a kind, on the loop thread, through the backend's async calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from radixrt.backend import Backend
from radixrt.collect import Collector
from radixrt.errors import Aborted, InvalidRequest
from radixrt.lang.boundary import option_ids
from radixrt.lang.choices import decide
from radixrt.lang.context import cut_ids, tokenize_text
from radixrt.lang.expressions import Gen, Select
from radixrt.lang.operations import (
    AddText,
    BeginScope,
    Choose,
    CloseTurn,
    EndScope,
    EndText,
    Fork,
    Generate,
    Look,
    OpenTurn,
    Operation,
    Reach,
)
from radixrt.lang.variables import GenMeta, SelectMeta, Value, Variable
from radixrt.messages import TokensPrompt
from radixrt.prompts import token_array
from radixrt.results import Choice, Delta, Generation

if TYPE_CHECKING:
    from radixrt.lang.executor import Branch


async def execute(branch: Branch, operation: Operation) -> None:
    """Does one operation on its branch; what it raises fails the branch."""
    context = branch.context
    match operation:
        case AddText(text=text):
            context.add_text(text)
            branch.wrote(text)
        case Generate(variable=variable, gen=gen):
            await generate(branch, gen, variable)
        case Choose(variable=variable, select=select):
            await choose(branch, select, variable)
        case OpenTurn(turn=turn):
            context.open_turn(turn)
        case CloseTurn():
            context.close_turn()
        case BeginScope(variable=variable):
            branch.scopes[variable] = []
        case EndScope(variable=variable):
            text = "".join(branch.scopes.pop(variable))
            variable.channel.put(text)
            variable.resolve(Value(text))
        case Fork(children=children):
            for child in children:
                child.start(context.copy())
        case Reach(done=done):
            done.set_result(None)
        case Look(seen=seen, render=render):
            copy = context.copy()
            if render:
                await copy.flush(branch.run.backend)
            seen.set_result(copy)
        case EndText(channel=channel):
            copy = context.copy()
            await copy.flush(branch.run.backend)
            begun = copy.text.startswith(context.text)
            branch.finish_text(channel, copy.text[len(context.text) :] if begun else "")
        case _:
            raise TypeError(f"unknown operation {type(operation).__name__}")


async def generate(branch: Branch, gen: Gen, variable: Variable) -> None:
    backend, context = branch.run.backend, branch.context
    await context.flush(backend)
    if not context.ids:
        raise InvalidRequest("there is no text to go on from, and the model has no BOS token", param="prompt")
    prompt = TokensPrompt(ids=token_array(context.ids))

    def tell(text: str) -> None:
        variable.channel.put(text)
        context.emit(text)

    if branch.run.streaming:
        result = await collect(backend.astream(prompt, gen.sampling, constraint=gen.constraint), gen.sampling.n, tell)
    else:
        result = await backend.agenerate(prompt, gen.sampling, constraint=gen.constraint)
        tell(result.text)
    branch.count(result.usage)
    if any(choice.finish_reason == "abort" for choice in result.choices):
        raise Aborted("the request was aborted before it finished")
    await append(backend, branch, result.choices[0])
    raw = [choice.text for choice in result.choices] if gen.sampling.n > 1 else result.text
    variable.resolve(Value(raw, GenMeta(result.choices, result.usage), gen.codec))


async def append(backend: Backend, branch: Branch, choice: Choice) -> None:
    """The program goes on from this sample: its ids as they came, without a stop string's."""
    ids = list(choice.token_ids)
    if isinstance(choice.stop_reason, str):
        ids = await cut_ids(backend, ids, choice.text)
    branch.context.append_generated(ids, choice.text)
    branch.wrote(choice.text)


async def collect(deltas: AsyncIterator[Delta], samples: int, tell: Callable[[str], None]) -> Generation:
    """The whole result of a stream; `tell` gets the first sample's text as it comes."""
    collector = Collector(samples)
    async for delta in deltas:
        collector.add(delta)
        if delta.index == 0:
            tell(delta.text)
    if not collector.done:
        raise Aborted("the stream ended before the text was finished")
    return collector.generation()


async def choose(branch: Branch, select: Select, variable: Variable) -> None:
    """Scores every choice as it would be written here, token by token, and appends the best.

    A choice that merges with the end of the pending text is scored with the merged token (`boundary.py`).
    """
    backend, context = branch.run.backend, branch.context
    before = await context.open(backend)
    first = not context.ids
    shared, options = await option_ids(backend, before, select.choices, first=first)
    prompt = [*context.ids, *shared] or await beginning(backend)
    logprobs = tuple(await backend.ascore(prompt, options))
    unconditional = None
    if select.method == "unconditional_likelihood_normalized":
        unconditional = tuple(await backend.ascore(await beginning(backend), options))
    index, scores = decide(select.method, options, logprobs, unconditional)
    choice = select.choices[index]
    context.ids.extend([*shared, *options[index]])
    context.pending = ""
    context.emit(before)
    context.emit(choice)
    context.append_generated((), choice)
    branch.wrote(choice)
    variable.channel.put(choice)
    variable.resolve(Value(choice, SelectMeta(index, select.choices, scores, logprobs, tuple(options), unconditional)))


async def beginning(backend: Backend) -> tuple[int, ...]:
    """What stands before a text that nothing stands before: the BOS token, or else the model's end-of-text token."""
    tokens = await tokenize_text(backend, "", first=True)
    ids = tokens.ids or backend.info.eos_token_ids[:1]
    if not ids:
        raise InvalidRequest("there is no text before the choices, and the model has neither BOS nor end token")
    return ids
