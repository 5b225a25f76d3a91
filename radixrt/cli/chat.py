"""`radixrt chat`: a conversation in the terminal, or over a pipe with one question a line."""

from __future__ import annotations

from typing import Annotated

import typer

from radixrt.cli import combinations
from radixrt.cli.address import SCHEMES, BaseUrl, server
from radixrt.cli.options import ENGINE_FLAGS, EngineOptions, with_engine_options
from radixrt.cli.progress import Stages


@with_engine_options
def chat(
    context: typer.Context,
    *,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Model to talk to, or the http:// address of a server.")
    ] = None,
    system: Annotated[str, typer.Option("--system", help="System prompt.", metavar="TEXT", show_default=False)] = "",
    temperature: Annotated[float, typer.Option("--temperature", min=0, metavar="X", help="0 is greedy.")] = 0.7,
    top_p: Annotated[float, typer.Option("--top-p", min=0, max=1, metavar="X", help="Nucleus sampling.")] = 0.95,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, metavar="N", help="Longest answer.")] = 1024,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Makes the answers repeatable.")] = None,
    base_url: BaseUrl = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", metavar="KEY", envvar="RADIXRT_API_KEY", help="Key for the server."),
    ] = None,
    engine_options: EngineOptions,
) -> None:
    """Talk to a model; the conversation so far stays in the prefix tree, so only new text is computed.

    /help lists the commands. Ctrl-C stops an answer, Ctrl-D leaves. With piped input every line is a question.

    Example:  radixrt chat smollm2-135m --system "Answer in one sentence."
    """
    from radixrt import SamplingParams
    from radixrt.cli.conversation import Conversation, talk

    if (model is None) == (base_url is None):
        raise typer.BadParameter("give either a MODEL or --base-url", param_hint="MODEL")
    if model is not None and model.startswith(SCHEMES):
        model, base_url = None, model
    if base_url is None and combinations.typed(context, "api_key"):
        raise typer.BadParameter("is the key of a server: give --base-url too", param_hint="--api-key")
    if base_url is not None:
        combinations.only_with_an_engine(context, ENGINE_FLAGS, base_url)
        base_url = server(base_url, "--base-url")
    sampling = SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
    if model is not None:
        from radixrt import Engine

        with Stages() as stages, Engine(model, **engine_options, on_progress=stages) as engine:
            stages.close()
            talk(Conversation(engine, sampling, system))
    elif base_url is not None:
        from radixrt import Client

        with Client(base_url, api_key=api_key) as client:
            talk(Conversation(client, sampling, system))
