"""OpenTelemetry traces, off unless an endpoint is given: one span a request, with its parts below it.

The engine's processes know nothing of traces. What they measure comes back with an answer's usage, and the spans are
drawn from that when the answer is there: tokenize, grammar, queue, prefill, decode. A client's `traceparent` is
continued. Attributes are counts and names of our own, never a prompt, an answer or a key.

Source of the names: OpenTelemetry's semantic conventions for generative AI.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextvars import ContextVar
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from radixrt.errors import StartupError
from radixrt.process import request_id
from radixrt.results import Usage

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter


class Tracing:
    """Where a server's spans go. One a server; spans are sent by a thread of the library, in batches."""

    def __init__(self, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = TracerProvider(resource=Resource.create({"service.name": "radixrt"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("radixrt")
        self._propagator = TraceContextTextMapPropagator()

    def began(self, headers: Iterable[tuple[bytes, bytes]], method: str) -> Any:
        """Open the span of a request, for this task and those that it makes."""
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name == b"traceparent"}
        span = self._tracer.start_span(method, context=self._propagator.extract(carrier))
        span.set_attribute("radixrt.request_id", request_id.get() or "")
        _current.set((self, span))
        return span

    def ended(self, span: Any, route: str, method: str, status: int) -> None:
        from opentelemetry.trace import Status, StatusCode

        span.update_name(f"{method} {route}")
        span.set_attributes(
            {"http.request.method": method, "http.route": route, "http.response.status_code": status}
        )  # fmt: skip
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def answered(self, parent: Any, began_ns: int, usage: Usage) -> None:
        """Draw the parts of one answer of the engine that was asked for at `began_ns` and is there now."""
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(parent)
        end = time.time_ns()
        arrived = max(began_ns, end - _ns(usage.total_s))
        compiled = arrived + _ns(usage.grammar_s)
        planned = max(compiled, arrived + _ns(usage.queue_s))
        first = max(planned, arrived + _ns(usage.ttft_s))
        marks = [began_ns, arrived, compiled, planned, first, end]
        for name, (start, stop) in zip(PARTS, pairwise(min(mark, end) for mark in marks), strict=True):
            if name != "grammar" or usage.grammar_s > 0:
                self._tracer.start_span(name, context=context, start_time=start).end(stop)
        parent.set_attributes(
            {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "radixrt.cached_tokens": usage.cached_tokens,
            }
        )

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


PARTS = ("tokenize", "grammar", "queue", "prefill", "decode")

_current: ContextVar[tuple[Tracing, Any] | None] = ContextVar("span", default=None)


def answered(began_ns: int, usage: Usage) -> None:
    """The engine has answered a call of the current request; without tracing nothing happens."""
    traced = _current.get()
    if traced is not None:
        tracing, span = traced
        tracing.answered(span, began_ns, usage)


def over_http(endpoint: str) -> Tracing:
    """Traces to an OTLP collector (`http://localhost:4318/v1/traces`). StartupError without the packages."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise StartupError("tracing needs OpenTelemetry: pip install 'radixrt[otel]'") from error
    return Tracing(OTLPSpanExporter(endpoint=endpoint))


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)
