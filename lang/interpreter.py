"""Does the operations: one function a kind, on the loop thread, through the backend's async calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from radixrt.backend import Backend
from radixrt.collect import Collector
from radixrt.errors import Aborted, InvalidRequest
from radixrt.lang.context import cut_ids
from radixrt.lang.expressions import Gen
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
from radixrt.lang.selecting import choose
from radixrt.lang.variables import GenMeta, Value, Variable
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
