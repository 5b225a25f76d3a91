"""`radixrt top`: what a server is doing, live."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import typer

from radixrt.cli.address import Given, Named, one_server
from radixrt.cli.watching import Interval, ask, watch

if TYPE_CHECKING:
    import httpx
    from rich.table import Table

BARS = "▁▂▃▄▅▆▇█"
KEPT = 40
"""Readings that a curve shows."""


def top(
    given: Given = None,
    named: Named = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", metavar="KEY", envvar=["RADIXRT_ADMIN_API_KEY", "RADIXRT_API_KEY"],
            help="A key that may read /metrics.",
        ),
    ] = None,
    interval_s: Interval = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one reading and end; what a pipe gets, too.")
    ] = False,
) -> None:  # fmt: skip
    """Watch a server: requests, tokens a second, cache, time to first token.

    Ends with Ctrl-C.

    Example:  radixrt top http://127.0.0.1:8000
    """
    readings, url = Readings(), one_server(given, named)

    def draw(http: httpx.Client, _height: int | None) -> Table:
        readings.add(read(http), time.monotonic())
        return table(readings, url)

    watch(url, api_key, draw, interval_s=interval_s, once=once)


def read(http: httpx.Client) -> dict[str, float]:
    """One reading of /metrics; labels stand behind the name, separated by `|`. Raises a RadixrtError."""
    from prometheus_client.parser import text_string_to_metric_families

    from radixrt.errors import EngineDead

    response = ask(http, "/metrics", "/metrics needs a key that may operate the server: --api-key")
    if response.status_code != 200:
        raise EngineDead(f"/metrics of {http.base_url} answers {response.status_code}; is it a radixrt server?")
    return {
        sample.name.removeprefix("radixrt_") + "".join(f"|{v}" for _, v in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


@dataclass
class Readings:
    """The last readings, and what they say together."""

    values: deque[tuple[float, dict[str, float]]] = field(default_factory=lambda: deque(maxlen=KEPT + 1))

    def add(self, reading: dict[str, float], now: float) -> None:
        self.values.append((now, reading))

    @property
    def last(self) -> dict[str, float]:
        return self.values[-1][1]

    def rates(self, name: str) -> list[float]:
        """Growth a second between neighbouring readings; a counter that fell (a restart) grew from zero."""
        out = []
        pairs = list(self.values)
        for (t0, before), (t1, after) in pairwise(pairs):
            old, new = before.get(name, 0.0), after.get(name, 0.0)
            out.append((new - old if new >= old else new) / max(t1 - t0, 1e-9))
        return out

    def levels(self, name: str) -> list[float]:
        return [reading.get(name, 0.0) for _, reading in self.values]

    def mean(self, name: str) -> float | None:
        """Mean of a summary since the reading before the last, or since the start if nothing happened since."""

        def pair(reading: dict[str, float]) -> tuple[float, float]:
            return reading.get(f"{name}_sum", 0.0), reading.get(f"{name}_count", 0.0)

        total, count = pair(self.last)
        if len(self.values) > 1:
            old_total, old_count = pair(self.values[-2][1])
            if count > old_count:
                return (total - old_total) / (count - old_count)
        return total / count if count else None


def curve(values: list[float]) -> str:
    """Values as a row of bars, the highest of them full."""
    most = max(values, default=0.0)
    return "".join(BARS[min(len(BARS) - 1, int(len(BARS) * value / most))] if most > 0 else BARS[0] for value in values)


def table(readings: Readings, url: str) -> Table:
    from rich.table import Table

    now = readings.last
    up = now.get("up") == 1
    shown = Table(title=f"{url}  {'serving' if up else 'not serving'}", title_justify="left", show_header=False)
    shown.add_column(style="dim")
    shown.add_column(justify="right")
    shown.add_column()

    def row(name: str, value: str, values: list[float] | None = None) -> None:
        shown.add_row(name, value, curve(values) if values else "")

    def rate(name: str, counter: str) -> None:
        rates = readings.rates(counter)
        row(name, f"{rates[-1]:,.1f} /s" if rates else f"{now.get(counter, 0):,.0f} so far", rates)

    def milliseconds(name: str, summary: str) -> None:
        mean = readings.mean(summary)
        row(name, "-" if mean is None else f"{1000 * mean:,.1f} ms")

    row("requests running", f"{now.get('requests_running', 0):,.0f}", readings.levels("requests_running"))
    row("requests waiting", f"{now.get('requests_waiting', 0):,.0f}", readings.levels("requests_waiting"))
    rate("tokens written", "generation_tokens_total")
    rate("prompt tokens", "prefix_queries_tokens_total")
    asked, found = now.get("prefix_queries_tokens_total", 0), now.get("prefix_hits_tokens_total", 0)
    row("of these cached", f"{100 * found / asked:.1f} %" if asked else "-")
    milliseconds("first token", "time_to_first_token_seconds")
    milliseconds("between tokens", "inter_token_seconds")
    milliseconds("in the queue", "queue_seconds")
    kv = now.get("kv_tokens", 0)
    row("KV tokens held", f"{now.get('kv_used_tokens', 0):,.0f} of {kv:,.0f}", readings.levels("kv_used_tokens"))
    row("KV tokens cached", f"{now.get('kv_cached_tokens', 0):,.0f}", readings.levels("kv_cached_tokens"))
    rate("evicted tokens", "evicted_tokens_total")
    rate("retractions", "preemptions_total")
    rate("guessed tokens that held", "accepted_draft_tokens_total")
    return shown
