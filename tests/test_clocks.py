"""A clock that is set (by a user, by NTP, by a suspended machine) must move no deadline, rate or age."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALLOWED = {
    ("radixrt/server/state.py", "time.time"): "`created` in answers is a date by its protocol",
    ("radixrt/server/ollama.py", "datetime.now"): "`created_at` in answers is a date by its protocol",
    ("radixrt/server/metered.py", "time.time_ns"): "a span's start has a date by OpenTelemetry's protocol",
    ("radixrt/server/tracing.py", "time.time_ns"): "a span's end has a date by OpenTelemetry's protocol",
    ("radixrt/scheduler/events.py", "time.time"): "published events carry the date by their protocol",
    ("radixrt/tokenizer/chat.py", "datetime.now"): "templates may show today's date (`strftime_now`)",
    ("radixrt/tokenizer/sandbox.py", "datetime.now"): "templates may show today's date (`strftime_now`)",
}
"""Where the time of day is read, and why."""
WALL = {
    "time.time",
    "time.time_ns",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "time.localtime",
    "time.gmtime",
}


def uses(path: Path) -> set[str]:
    """Names of wall clocks that a file mentions."""
    text = path.read_text()
    if "from time import" not in text and not any(name in text for name in WALL):
        return set()
    tree = ast.parse(text)
    found = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found |= {f"time.{name.name}" for name in node.names}
    return found & WALL


def test_the_time_of_day_is_read_for_dates_alone() -> None:
    files = [path for room in ("radixrt", "lang", "kernels") for path in (ROOT / room).rglob("*.py")]
    found = {(path.relative_to(ROOT).as_posix(), name) for path in files if not _linked(path) for name in uses(path)}
    assert len(files) > 200
    assert found == set(ALLOWED)


def _linked(path: Path) -> bool:
    """radixrt/lang and radixrt/kernels are links to rooms that are looked at by their own names."""
    return path.relative_to(ROOT).as_posix().startswith(("radixrt/lang/", "radixrt/kernels/"))
