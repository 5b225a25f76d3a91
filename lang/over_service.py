"""The operations that ask a model, over a service without token ids (`services.py`): text and messages alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from radixrt.errors import InvalidRequest, RadixrtError
from radixrt.lang.capabilities import need, refuse_report, request_fields
from radixrt.lang.context import Context
from radixrt.lang.expressions import Gen, Select
from radixrt.lang.operations import Choose, EndText, Generate, Look, Operation, Prefill
from radixrt.lang.pieces import Event
from radixrt.lang.services import OpenAI
from radixrt.lang.tools import Reply, Toolbox
from radixrt.lang.variables import GenMeta, SelectMeta, Value, Variable
from radixrt.results import Generation

if TYPE_CHECKING:
    from radixrt.lang.executor import Branch


_GO_ON = {"continue_final_message": True, "add_generation_prompt": False}


async def ask(branch: Branch, service: OpenAI, operation: Operation) -> bool:
    """Does an operation; False: it needs no model, and is done as everywhere."""
    match operation:
        case Generate(variable=variable, gen=gen):
            await generate(branch, service, gen, variable)
        case Choose(variable=variable, select=select):
            await choose(branch, service, select, variable)
        case Look(seen=seen, render=render):
            copy = branch.context.copy()
            if render:
                _show(copy)
            seen.set_result(copy)
        case EndText(channel=channel):
            copy = branch.context.copy()
            _show(copy)
            branch.finish_text(channel, copy.text[len(branch.context.text) :])
        case Prefill():
            raise InvalidRequest("cache() needs token ids, which a service does not give", code="unsupported")
        case _:
            return False
    return True


async def generate(branch: Branch, service: OpenAI, gen: Gen, variable: Variable) -> None:
    context = branch.context
    chat = context.turn is not None
    fields = request_fields(gen, service.capabilities, branch.run.request_options, chat=chat)
    request = _prompt(service, context)
    if context.turn is not None and context.turn.content:
        fields |= _GO_ON
    if not chat:
        _show(context)

    event = Event("sampled", variable.name, variable.span, branch.run.seconds())

    def tell(text: str) -> None:
        variable.channel.put(text)
        if not chat:
            context.emit(text, event)

    calls: list[dict[str, Any]] = []
    if gen.tools is not None and not isinstance(request, str):  # whole, since calls come in pieces of their own
        result, calls = await service.chat_with_tools(request, fields)
    else:
        result = await _send(service, request, fields, tell if branch.run.streaming else None)
    if gen.tools is not None or not branch.run.streaming:
        tell(result.text)
    branch.count(result.usage)
    event.done(branch.run.seconds(), result.usage, result.choices[0])
    context.append_generated((), result.text)
    branch.wrote(result.text)
    if gen.tools is not None:
        reply = _reply(gen.tools, result.text, calls)
        context.append_calls(calls)
        variable.resolve(Value(reply, GenMeta(result.choices, result.usage)))
        return
    raw = [choice.text for choice in result.choices] if gen.sampling.n > 1 else result.text
    variable.resolve(Value(raw, GenMeta(result.choices, result.usage), gen.codec))


def _reply(tools: Toolbox, text: str, calls: list[dict[str, Any]]) -> Reply:
    """RadixrtError for calls that are not as asked for."""
    found = []
    for call in calls:
        try:
            spec = call["function"]
            found.append(tools.called(spec["name"], spec["arguments"], call["id"]))
        except (ValueError, LookupError, TypeError) as error:
            raise RadixrtError(f"the service's call cannot be read: {call!r}", code="bad_answer") from error
    return Reply(text, tuple(found))


async def choose(branch: Branch, service: OpenAI, select: Select, variable: Variable) -> None:
    """The fallback that `OpenAI(select="ask")` allows."""
    if service.select != "ask":
        raise InvalidRequest(
            "select compares exact token scores, which a service does not give: use gen(choices=...), or "
            'OpenAI(select="ask")',
            code="unsupported",
        )
    if branch.context.turn is None:
        raise InvalidRequest("select over a service needs a turn: put it into assistant(...)", code="unsupported")
    need(service.capabilities, "json_schema", "select")
    refuse_report(select.return_cache_report)
    schema = {
        "type": "object",
        "properties": {"choice": {"type": "string", "enum": list(select.choices)}},
        "required": ["choice"],
        "additionalProperties": False,
    }
    asked = {"name": "choice", "schema": schema, "strict": True}
    fields: dict[str, Any] = {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": asked}}
    for name, value in branch.run.request_options.items():
        need(service.capabilities, name, f"run({name}=...)")
        fields[name] = value
    request = _prompt(service, branch.context)
    if branch.context.turn.content:
        fields |= _GO_ON
    result = await _send(service, request, fields, None)
    branch.count(result.usage)
    try:
        choice = json.loads(result.text)["choice"]
        index = select.choices.index(choice)
    except (ValueError, LookupError, TypeError) as error:
        raise RadixrtError(
            f"the service's answer is none of the choices: {result.text!r}", code="bad_answer"
        ) from error
    branch.context.append_generated((), choice)
    branch.wrote(choice)
    variable.channel.put(choice)
    variable.resolve(Value(choice, SelectMeta(index, select.choices, scores=(), logprobs=(), token_ids=())))


def _prompt(service: OpenAI, context: Context) -> str | list[dict[str, Any]]:
    """What is sent: messages where the program has turns, else text. InvalidRequest for what cannot be sent."""
    turn = context.turn
    if turn is None:
        need(service.capabilities, "completions", "gen outside of a turn")
        return context.text + context.pending
    need(service.capabilities, "chat", "gen in a turn")
    if turn.role != "assistant":
        raise InvalidRequest(f"a service writes assistant turns only, not {turn.role} turns", code="unsupported")
    messages = context.messages() if turn.content else context.turns
    if turn.content:
        need(service.capabilities, "continue", "gen after text in the same assistant turn")
    if not messages:
        raise InvalidRequest("a service needs a turn before the assistant's", code="unsupported")
    return [msgspec.to_builtins(message) for message in messages]


async def _send(service: OpenAI, prompt: str | list[dict[str, Any]], fields: dict[str, Any], tell: Any) -> Generation:
    if isinstance(prompt, str):
        return await service.complete(prompt, fields, tell)
    return await service.chat(prompt, fields, tell)


def _show(context: Context) -> None:
    """Moves the pending text into the visible one. A conversation has none: its markers are the service's own."""
    if context.turn is not None or context.turns:
        raise InvalidRequest(
            "the text of a conversation is the service's own: read messages(), or a variable", code="unsupported"
        )
    pending, context.pending = context.pending, ""
    context.emit(pending)
