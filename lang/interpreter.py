"""Does the operations: one function a kind, on the loop thread, through the backend's async calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixrt.lang.generating import generate, prefill
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
    PinText,
    Prefill,
    Reach,
    UnpinText,
)
from radixrt.lang.over_service import ask
from radixrt.lang.pinning import pin, unpin
from radixrt.lang.selecting import choose
from radixrt.lang.variables import Value

if TYPE_CHECKING:
    from radixrt.lang.executor import Branch


async def execute(branch: Branch, operation: Operation) -> None:
    """Does one operation on its branch; what it raises fails the branch."""
    context = branch.context
    if branch.run.service is not None and await ask(branch, branch.run.service, operation):
        return
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
        case Prefill():
            await prefill(branch)
        case PinText(ttl_s=ttl_s):
            await pin(branch, ttl_s)
        case UnpinText():
            await unpin(branch)
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
