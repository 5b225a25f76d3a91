"""How long a stream pauses while another request's hard constraint is compiled or refused.

    python benchmarks/pauses.py --base-url http://127.0.0.1:8000 [--rounds 3] [--tokens 400]

Each constraint is sent once a round to a server on which one stream runs, and takes turns with the same stream alone;
each time it is another constraint of its kind, so that none is found in the compile cache. Shown, of all rounds: the
HTTP status, the longest time to the answer (s), the stream's longest time between two chunks (ms) and that of
the stream alone. The tests assert only that no such pause is most of what the compilation takes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from typing import Any

from measure import Record, Server

BEGIN_S = 0.3
"""Seconds that the stream runs before the constraint is sent."""


def nested(depth: int, salt: int) -> dict[str, Any]:
    """anyOf in anyOf: 2^depth branches."""
    return {"anyOf": [nested(depth - 1, salt)] * 2} if depth else {"type": "integer", "minimum": salt}


def tools(count: int, salt: int) -> dict[str, Any]:
    """One call of `count` tools of four arguments each."""
    arguments = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4)}, "required": ["p0"]}
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {"name": {"const": f"tool_{salt}_{i}"}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for i in range(count)
        ]
    }


HARD: dict[str, Callable[[int], dict[str, Any]]] = {
    "nothing": lambda salt: {},
    "128 tools": lambda salt: {"json": tools(128, salt)},
    "enum of 4,000": lambda salt: {"json": {"enum": [f"{salt} {i}" for i in range(4_000)]}},
    "400 optional": lambda salt: {"json": {"type": "object", "properties": {f"p{salt}_{i}": {} for i in range(400)}}},
    "anyOf 2^10": lambda salt: {"json": nested(10, salt)},
    "anyOf 2^14": lambda salt: {"json": nested(14, salt)},
    "regex": lambda salt: {"regex": f"{salt}(a|b)*a(a|b){{20}}"},
}


async def beside(server: Server, constraint: dict[str, Any], tokens: int) -> tuple[Record, Record | None]:
    """A stream, and the request that was sent while it ran (None where there is no constraint)."""
    stream = asyncio.create_task(server.complete("A story about the sea", max_tokens=tokens))
    await asyncio.sleep(BEGIN_S)
    hard = None
    if constraint:
        ask = [{"role": "user", "content": "Go"}]
        hard = await server.chat(ask, max_tokens=8, structured_outputs=constraint)
    return await stream, hard


async def measure(arguments: argparse.Namespace) -> int:
    server = Server(arguments.base_url, arguments.model, arguments.api_key, ignore_eos=True, timeout_s=600)
    await server.open()
    pauses: dict[str, float] = dict.fromkeys(HARD, 0.0)
    took: dict[str, float] = dict.fromkeys(HARD, 0.0)
    status: dict[str, str] = dict.fromkeys(HARD, "")
    for salt in range(1, arguments.rounds + 1):
        for name, constraint in HARD.items():
            stream, hard = await beside(server, constraint(salt), arguments.tokens)
            if stream.error:
                raise SystemExit(f"the stream failed beside {name!r}: {stream.error}")
            pauses[name] = max(pauses[name], *stream.gaps_s)
            if hard is not None:
                took[name] = max(took[name], hard.ended - hard.started)
                status[name] = hard.error[:8] if hard.error else "200"
    await server.close()
    print(f"{'beside':18}{'answer':>10}{'s':>8}{'pause, ms':>12}")
    for name in HARD:
        print(f"{name:18}{status[name]:>10}{took[name]:8.2f}{pauses[name] * 1e3:12.0f}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base-url", required=True, help="server, with or without /v1")
    parser.add_argument("--model", help="model name; default: the first that /v1/models lists")
    parser.add_argument("--api-key", help="sent as a bearer token")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=400, help="of the stream")
    return asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
