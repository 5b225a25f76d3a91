"""Options that no engine can have are refused before anything is fetched or started."""

from __future__ import annotations

import pytest

from radixrt import Engine
from radixrt.errors import StartupError


@pytest.mark.parametrize("threads", [0, -1])
def test_an_engine_computes_with_at_least_one_thread(threads: int) -> None:
    with pytest.raises(StartupError, match=f"threads must be at least 1, but is {threads}"):
        Engine("smollm2-135m", threads=threads)
