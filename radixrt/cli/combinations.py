"""Options that say nothing beside each other: accepted together, one of them would be ignored, so they are refused."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import typer

Values: TypeAlias = dict[str, Any]
Rule: TypeAlias = tuple[str, Callable[[Values], bool], str]
"""An option, when it would be ignored, and what to do."""

_NO_TREE = "has nothing to keep with --no-prefix-cache: leave one of them out"
_NO_GUESSES = "says nothing with --max-drafts 0, which guesses no tokens: leave one of them out"
_NO_AGES = "is for --policy lpm; fcfs lets nobody pass"

ENGINE: tuple[Rule, ...] = (
    ("cache_dir_bytes", lambda v: v["cache_dir"] is None, "bounds a directory: give --cache-dir too"),
    ("kv_events_replay", lambda v: v["kv_events"] is None, "answers for events: give --kv-events too"),
    ("max_wait_s", lambda v: v["policy"] != "lpm", _NO_AGES),
    ("namespace_weight", lambda v: not v["fair"], "says nothing with --no-fair: leave one of them out"),
    ("draft_sources", lambda v: v["max_drafts"] == 0, _NO_GUESSES),
    ("draft_model", lambda v: v["max_drafts"] == 0, _NO_GUESSES),
    ("max_draft_rows", lambda v: v["max_drafts"] == 0, _NO_GUESSES),
    ("high_watermark", lambda v: v["low_watermark"] == 0, "is where evicting ahead ends: give --low-watermark too"),
    ("cache_dir", lambda v: not v["prefix_cache"], _NO_TREE),
    ("cache_host_bytes", lambda v: not v["prefix_cache"] and v["cache_host_bytes"] > 0, _NO_TREE),
    ("eviction", lambda v: not v["prefix_cache"], _NO_TREE),
    ("low_watermark", lambda v: not v["prefix_cache"], _NO_TREE),
    ("check_every_s", lambda v: v["check"], "says nothing with --check, which proves all after every step"),
)
SERVE: tuple[Rule, ...] = (
    *((name, lambda v: v["uds"] is not None, "says nothing with --uds, a Unix socket: leave one of them out")
      for name in ("host", "port", "allowed_host")),
    ("allowed_host", lambda v: not _loopback(v["host"]), "is for a loopback --host; elsewhere any name is taken"),
)  # fmt: skip


def check(context: typer.Context, values: Values, rules: Collection[Rule]) -> None:
    """Raises typer.BadParameter (exit code 2) for an option on the command line that `values` make meaningless."""
    for name, ignored, advice in rules:
        if name in values and typed(context, name) and ignored(values):
            raise typer.BadParameter(advice, param_hint=flag(name))


def only_with_an_engine(context: typer.Context, names: Collection[str], server: str) -> None:
    """Raises typer.BadParameter for options of an engine of one's own beside `server`, which names another one."""
    for name in names:
        if typed(context, name):
            raise typer.BadParameter(
                f"is for an engine of this command's own; {server} names a server, which has its own options",
                param_hint=flag(name),
            )


def typed(context: typer.Context, name: str) -> bool:
    """Whether the option stands on the command line: not its default, nor from the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _loopback(host: str) -> bool:
    from radixrt.server.hosts import is_loopback

    return is_loopback(host)
