"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Before torch is imported anywhere: two cores are shared by all processes of a test, so nobody may spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Before anything imports triton: its kernels then run as numpy, on a CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

if TYPE_CHECKING:
    from radixrt import Engine

CASES = Path(os.environ.get("RADIXRT_CASES", Path(__file__).parents[2] / "shared" / "cases"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long versions of histories, soaks and kernel sets")


LONG_FILES = (
    "test_live_ops.py", "test_exactness.py", "test_live_bombs.py", "test_cli_serve.py", "test_life.py",
    "test_live_chat.py", "test_live_text.py", "test_live_tools.py", "test_openapi.py", "test_json.py",
    "test_rewrite.py", "test_histories.py", "test_giving_way.py", "test_live_compiled.py", "test_live_lang.py",
    "test_reports.py",
)  # fmt: skip
"""Files that take long begin first, so that neither worker ends with one while the other has nothing to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether the long version of a test is asked for: more steps, more shapes, the same assertions."""
    return bool(request.config.getoption("--long"))


def pytest_configure() -> None:
    # A shell starts background jobs with SIGINT ignored, and so would every child of the tests: Ctrl-C must reach them.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cases() -> Path:
    """Folder of the acceptance cases; tests that need it are skipped where it is absent."""
    if not CASES.is_dir():
        pytest.skip(f"the acceptance cases are not here: {CASES} (set RADIXRT_CASES)")
    return CASES


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The small real model, fetched once into RADIXRT_HOME and hash-checked."""
    from radixrt.checkpoint import resolve

    return resolve("smollm2-135m")


@pytest.fixture(scope="session")
def engine(smollm2_path: Path) -> Iterator[Engine]:
    """One real engine for all tests: dense float32 (so that batches and caches change nothing), every step checked, and
    no step timed (so that guesses do not depend on how busy the machine is)."""
    from radixrt import Engine

    with Engine(
        str(smollm2_path), served_model_name="smollm2-135m", weights="float32", check=True, max_draft_rows=64
    ) as engine:
        yield engine


@pytest.fixture(scope="session")
def tiny_path(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model's directory: it loads in a moment, and its text means nothing."""
    from radixrt.checkpoint import open_checkpoint
    from tests.tiny import write_tiny_llama

    vocabulary = open_checkpoint(smollm2_path).vocabulary()
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", vocabulary.tokenizer_json())


@pytest.fixture(scope="session")
def small_engine(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A whole engine over the tiny model, for what is asked of the cache by text: with a host tier and events for
    routers. Tests take tenants or salts of their own in it."""
    from radixrt import Engine

    endpoint = f"ipc://{tmp_path_factory.mktemp('events') / 'kv'}"
    with Engine(
        str(tiny_path), served_model_name="tiny", dtype="float32", kv_tokens=6000, check=True, threads=1,
        pin_quota=400, cache_host_bytes=64 << 20, kv_events=endpoint,
    ) as engine:  # fmt: skip
        yield engine
