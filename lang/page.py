"""A trace as HTML: one page that needs nothing else, or the part of it that a notebook shows."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from radixrt.lang.describe import ORIGINS, details, parts, totals

_STYLE = """
.radixrt{font:14px/1.5 ui-monospace,monospace;color:#222;background:#fff;padding:8px}
.radixrt .text{white-space:pre-wrap;overflow-wrap:anywhere;border-left:3px solid #ddd;padding-left:8px;margin:4px 0}
.radixrt .branch{margin-left:20px}
.radixrt .constant{color:#444}.radixrt .cached{color:#8a8a8a}
.radixrt .sampled{background:#d9f2d9}.radixrt .forced{background:#fff0c2}.radixrt .selected{background:#d6e6ff}
.radixrt .error{color:#b00020}.radixrt .totals{color:#666}
.radixrt summary{cursor:pointer;font-weight:bold}
"""


def page(traces: Iterable[dict[str, Any]], title: str) -> str:
    """A whole document for some traces."""
    body = "\n".join(_run(trace) for trace in traces) or "<p>No program was run.</p>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n"
        f'<body class="radixrt"><h1>{escape(title)}</h1>\n{_legend()}\n{body}\n</body></html>\n'
    )


def fragment(trace: dict[str, Any]) -> str:
    return f'<style>{_STYLE}</style><div class="radixrt">{_run(trace)}</div>'


def _legend() -> str:
    return (
        "<p>"
        + " ".join(f'<span class="{name}" title="{escape(what)}">{name}</span>' for name, what in ORIGINS.items())
        + "</p>"
    )


def _run(trace: dict[str, Any]) -> str:
    error = f'<p class="error">{escape(trace["error"])}</p>' if trace["error"] else ""
    return (
        f"<details open><summary>{escape(trace['program'])}</summary>{error}{_branch(trace, 0)}"
        f'<p class="totals">{escape(totals(trace))}</p></details>'
    )


def _branch(trace: dict[str, Any], index: int) -> str:
    branch = trace["branches"][index]
    children = [i for i, other in enumerate(trace["branches"]) if other["parent"] == index]
    spans = "".join(
        f'<span class="{origin}" title="{escape(details(piece))}">{escape(text)}</span>'
        for piece in branch["pieces"]
        for origin, text in parts(piece)
    )
    if not branch["pieces"]:
        spans = "".join(
            f'<span class="constant">{escape(message["role"])}: {escape(message.get("content") or "")}\n</span>'
            for message in branch["messages"]
        )
    inner = f'<div class="text">{spans}</div>' + "".join(_branch(trace, child) for child in children)
    if branch["parent"] is None:
        return inner
    label = escape(str(branch["label"]).rsplit(" > ", 1)[-1])
    error = f'<p class="error">{escape(branch["error"])}</p>' if branch["error"] else ""
    return f'<details class="branch" open><summary>{label}</summary>{error}{inner}</details>'
