"""What httpx raises, as radixrt's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from radixrt.errors import Aborted, EngineDead


@contextmanager
def http_failures(base_url: str, who: str = "server") -> Iterator[None]:
    """EngineDead where nobody answers at `base_url` or the connection breaks, Aborted where time runs out."""
    import httpx

    try:
        yield
    except httpx.ConnectError as error:
        raise EngineDead(f"no {who} answers at {base_url}: {error}", code="unreachable") from error
    except httpx.TimeoutException as error:
        raise Aborted(f"the {who} at {base_url} did not answer in time", code="timeout") from error
    except httpx.HTTPError as error:
        raise EngineDead(f"the connection to {base_url} broke: {error}", code="disconnected") from error
