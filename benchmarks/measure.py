"""One streamed request against an OpenAI-compatible server, timed; and what many such timings add up to."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx


@dataclass
class Record:
    """What one request did. Times are seconds of the client's clock; counts are the server's own `usage`."""

    started: float
    ended: float = 0.0
    ttft_s: float | None = None
    """To the first chunk that holds text; None when none came."""
    gaps_s: list[float] = field(default_factory=list)
    """Between chunks that hold text: one token each at most servers, several where a server joins them."""
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Summary:
    """A workload in one row."""

    workload: str
    requests: int
    errors: int
    wall_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_p50_s: float
    ttft_p99_s: float
    gap_p50_s: float
    gap_p99_s: float
    first_error: str | None = None

    @property
    def tokens_per_s(self) -> float:
        return self.completion_tokens / self.wall_s

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "tokens_per_s": self.tokens_per_s}


class Server:
    """An OpenAI-compatible server under test. `timeout_s` bounds the wait for any one chunk."""

    def __init__(self, base_url: str, model: str | None, api_key: str | None, *, ignore_eos: bool, timeout_s: float):
        self.url = base_url.rstrip("/").removesuffix("/v1")
        self.model = model or ""
        self.ignore_eos = ignore_eos
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
        self._client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout_s, limits=limits)

    async def open(self) -> None:
        """Find the model's name where none was given, and send one short request, not counted."""
        if not self.model:
            answer = await self._client.get("/v1/models")
            answer.raise_for_status()
            self.model = answer.json()["data"][0]["id"]
        record = await self.complete("Hello", max_tokens=4)
        if record.error:
            raise SystemExit(f"{self.url}: the first request failed: {record.error}")

    async def close(self) -> None:
        await self._client.aclose()

    async def complete(self, prompt: str, *, max_tokens: int) -> Record:
        """POST /v1/completions, with ignore_eos where the server takes it, so that the length is fixed."""
        body = {"prompt": prompt, "max_tokens": max_tokens}
        return await self._stream("/v1/completions", body, lambda choice: choice.get("text"), fixed_length=True)

    async def chat(
        self, messages: Sequence[dict[str, str]], *, max_tokens: int, fixed_length: bool = False, **extra: Any
    ) -> Record:
        """POST /v1/chat/completions; `extra` goes into the body (a response_format, a choice constraint)."""
        body = {"messages": list(messages), "max_tokens": max_tokens, **extra}
        return await self._stream(
            "/v1/chat/completions", body, lambda choice: choice["delta"].get("content"), fixed_length=fixed_length
        )

    async def _stream(
        self, path: str, body: dict[str, Any], text_of: Callable[[dict[str, Any]], str | None], *, fixed_length: bool
    ) -> Record:
        body |= {"model": self.model, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        if fixed_length and self.ignore_eos:
            body["ignore_eos"] = True
        record = Record(started=time.perf_counter())
        try:
            async with self._sent(path, body) as response:
                if response.status_code != 200:
                    detail = (await response.aread()).decode(errors="replace")
                    record.error = f"HTTP {response.status_code}: {detail[:300]}"
                else:
                    await _read(response, record, text_of)
        except httpx.HTTPError as error:
            record.error = f"{type(error).__name__}: {error}"
        record.ended = time.perf_counter()
        return record

    @asynccontextmanager
    async def _sent(self, path: str, body: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        """The response's head; sent again where the server had just hung up on the idle connection (llama.cpp does)."""
        request = self._client.build_request("POST", path, json=body)
        try:
            response = await self._client.send(request, stream=True)
        except httpx.RemoteProtocolError:
            response = await self._client.send(self._client.build_request("POST", path, json=body), stream=True)
        try:
            yield response
        finally:
            await response.aclose()


async def _read(response: httpx.Response, record: Record, text_of: Callable[[dict[str, Any]], str | None]) -> None:
    last, done, counted = record.started, False, False
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            done = True
            continue
        event = json.loads(data)
        if "error" in event:
            record.error = str(event["error"])[:300]
            return
        for choice in event.get("choices", ()):
            text = text_of(choice)
            if not text:
                continue
            now = time.perf_counter()
            if record.ttft_s is None:
                record.ttft_s = now - record.started
            else:
                record.gaps_s.append(now - last)
            last = now
            record.text += text
        usage = event.get("usage")
        if usage:
            counted = True
            record.prompt_tokens = usage["prompt_tokens"]
            record.completion_tokens = usage["completion_tokens"]
            record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if not done:
        record.error = "the stream ended without [DONE]"
    elif not counted:
        record.error = "the server sent no usage"


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value with at least `percent` % of the values at or below it (nearest rank); NaN for none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def summarise(workload: str, records: Sequence[Record]) -> Summary:
    """The row of a workload's records. Failed requests count as errors, and their tokens and times do not count."""
    good = [r for r in records if r.error is None]
    bad = [r for r in records if r.error is not None]
    first = [r.ttft_s for r in good if r.ttft_s is not None]
    gaps = [gap for r in good for gap in r.gaps_s]
    return Summary(
        workload=workload,
        requests=len(records),
        errors=len(bad),
        wall_s=max(r.ended for r in records) - min(r.started for r in records),
        prompt_tokens=sum(r.prompt_tokens for r in good),
        cached_tokens=sum(r.cached_tokens for r in good),
        completion_tokens=sum(r.completion_tokens for r in good),
        ttft_p50_s=percentile(first, 50),
        ttft_p99_s=percentile(first, 99),
        gap_p50_s=percentile(gaps, 50),
        gap_p99_s=percentile(gaps, 99),
        first_error=bad[0].error if bad else None,
    )


def median_summary(rounds: Sequence[Summary]) -> Summary:
    """The round whose tokens/s is the median (the lower of the two middle ones), with all rounds' errors."""
    middle = statistics.median_low([r.tokens_per_s for r in rounds])
    chosen = next(r for r in rounds if r.tokens_per_s == middle)
    first_error = next((r.first_error for r in rounds if r.first_error), None)
    return Summary(
        **{**asdict(chosen), "errors": sum(r.errors for r in rounds), "first_error": first_error},
    )
