"""Does a `gen`: one request over the ids that stand, whose ids are appended as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import msgspec

from radixrt.backend import Backend
from radixrt.called import CallText
from radixrt.collect import Collector
from radixrt.errors import Aborted, InvalidRequest
from radixrt.healing import healable
from radixrt.lang.context import cut_ids
from radixrt.lang.expressions import Gen
from radixrt.lang.healing import Join, heal_join
from radixrt.lang.pieces import Event
from radixrt.lang.variables import GenMeta, Value, Variable
from radixrt.messages import TokensPrompt
from radixrt.params import SamplingParams
from radixrt.prompts import token_array
from radixrt.results import Choice, Delta, Generation, Usage

if TYPE_CHECKING:
    from radixrt.lang.executor import Branch


async def generate(branch: Branch, gen: Gen, variable: Variable) -> None:
    backend, context, options = branch.run.backend, branch.context, branch.run.request_options
    if gen.tools is not None:
        context.show_tools(gen.tools.shown)
    text = await context.flush(backend)
    if not context.ids:
        raise InvalidRequest("there is no text to go on from, and the model has no BOS token", param="prompt")

    event = Event("sampled", variable.name, variable.span, branch.run.seconds())

    def tell(text: str) -> None:
        variable.channel.put(text)
        context.emit(text, event)

    join = None
    if text is not None and gen.heal is not False and healable(gen.sampling, gen.constraint):
        join = await heal_join(backend, context.ids, text, gen, options)
    begun = join is not None and bool(join.rest)
    sampling = gen.sampling
    if join is not None and begun:
        context.ids[-1:] = [join.token]
        context.append_generated((), join.rest)
        branch.wrote(join.rest)
        tell(join.rest)
        sampling = _one_less(sampling)
    if begun and sampling.max_tokens == 0:
        result = _nothing_more(len(context.ids))
    else:
        prompt = TokensPrompt(ids=token_array(context.ids))
        if branch.run.streaming:
            stream = backend.astream(prompt, sampling, constraint=gen.constraint, **options)
            result = await collect(stream, sampling.n, tell)
        else:
            result = await backend.agenerate(prompt, sampling, constraint=gen.constraint, **options)
            tell(result.text)
    if any(choice.finish_reason == "abort" for choice in result.choices):
        raise Aborted("the request was aborted before it finished")
    await append(backend, branch, result.choices[0], gen.calls)
    if join is not None:
        result = _joined(join, result)
    branch.count(result.usage)
    event.done(branch.run.seconds(), result.usage, result.choices[0])
    raw = [choice.text for choice in result.choices] if gen.sampling.n > 1 else result.text
    variable.resolve(Value(raw, GenMeta(result.choices, result.usage), gen.codec))


async def prefill(branch: Branch) -> None:
    """Computes what stands so far and leaves it in the cache; the state stays as it is."""
    ids = await standing_ids(branch)
    if ids:
        prompt = TokensPrompt(ids=token_array(ids))
        options = branch.run.request_options
        result = await branch.run.backend.agenerate(prompt, SamplingParams(max_tokens=0), **options)
        branch.count(result.usage)


async def standing_ids(branch: Branch) -> list[int]:
    """The ids so far that nothing which follows can change; the state stays as it is."""
    copy = branch.context.copy()
    text = await copy.flush(branch.run.backend)
    return copy.ids[:-1] if text else copy.ids  # the last token of free text may still merge with what follows


async def append(backend: Backend, branch: Branch, choice: Choice, calls: CallText | None = None) -> None:
    """The program goes on from this sample: its ids as they came, without a stop string's."""
    ids = list(choice.token_ids)
    if isinstance(choice.stop_reason, str):
        ids = await cut_ids(backend, ids, choice.text)
    branch.context.append_generated(ids, choice.text, calls)
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


def _one_less(sampling: SamplingParams) -> SamplingParams:
    """For the tokens after the first."""
    limit = sampling.max_tokens
    return msgspec.structs.replace(
        sampling,
        max_tokens=None if limit is None else limit - 1,
        min_tokens=max(0, sampling.min_tokens - 1),
    )


def _nothing_more(prompt_tokens: int) -> Generation:
    choice = Choice(index=0, text="", token_ids=(), finish_reason="length")
    return Generation(choices=(choice,), usage=Usage(prompt_tokens=prompt_tokens))


def _joined(join: Join, result: Generation) -> Generation:
    """Both requests as the one that they are to the program: its prompt counts once."""
    first = (join.token,) if join.rest else ()
    (choice,) = result.choices
    choice = msgspec.structs.replace(
        choice,
        text=join.rest + choice.text,
        token_ids=(*first, *choice.token_ids),
        logprobs=(*join.logprobs, *(choice.logprobs or ())) if first and join.logprobs is not None else choice.logprobs,
    )
    prompt = result.usage.prompt_tokens - len(first)
    report = join.usage.cache and msgspec.structs.replace(join.usage.cache, computed=prompt - join.usage.cache.cached)
    usage = msgspec.structs.replace(
        result.usage,
        prompt_tokens=prompt,
        cached_tokens=min(join.usage.cached_tokens, prompt),
        restored_tokens=min(join.usage.restored_tokens, join.usage.cached_tokens, prompt),
        completion_tokens=result.usage.completion_tokens + len(first),
        queue_s=join.usage.queue_s + result.usage.queue_s,
        ttft_s=join.usage.total_s + result.usage.ttft_s,
        total_s=join.usage.total_s + result.usage.total_s,
        cache=report or result.usage.cache,
    )
    return Generation(choices=(choice,), usage=usage)
