"""Names into files, without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from radixrt.checkpoint import home, list_models, resolve
from radixrt.checkpoint.hub import HubName
from radixrt.errors import ModelError


def test_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ModelError, match=r"holds neither config\.json"):
        resolve(str(folder))
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"no \.safetensors files \(pickled"):
        resolve(str(folder))
    (folder / "model.safetensors").write_bytes(b"")
    assert resolve(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert resolve("model") == Path("model")
    assert resolve("./model") == Path("model")
    file = tmp_path / "x.gguf"
    file.write_bytes(b"")
    assert resolve(str(file)) == file
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(ModelError, match=r"x\.txt is not a model"):
        resolve(str(tmp_path / "x.txt"))


def test_directories_of_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    assert resolve(str(tmp_path)) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match=r"name one of a\.gguf, b\.gguf"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("name", ["smolm2-135m", "SmolLM2-135", "smollm2"])
def test_near_misses(name: str) -> None:
    with pytest.raises(ModelError, match=r"Did you mean smollm2-135m\?"):
        resolve(name)


def test_unknown_names_list_what_is_known() -> None:
    with pytest.raises(ModelError, match=r"no model is called 'zzz'.*Short names: smollm2-135m"):
        resolve("zzz")
    for missing in ("./nothing", "/nothing/here", "nothing.gguf", "~/nothing-here"):
        with pytest.raises(ModelError, match="there is no file or directory"):
            resolve(missing)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubName("org/name", None, None)),
        ("org/na.me-1_x@main", HubName("org/na.me-1_x", None, "main")),
        ("org/name:m.Q4_K_M.gguf", HubName("org/name", "m.Q4_K_M.gguf", None)),
        ("org/name:sub/m.gguf@refs/pr/1", HubName("org/name", "sub/m.gguf", "refs/pr/1")),
        ("org/name@v1:m.gguf", HubName("org/name", "m.gguf", "v1")),
        ("name", None),
        ("a/b/c", None),
        ("../x", None),
        ("org/name@../../x", None),
        ("org/name:m.bin", None),
        ("org/name@a:m.gguf@b", None),
        ("https://x/y", None),
    ],
)
def test_hub_names(text: str, expected: HubName | None) -> None:
    assert HubName.parse(text) == expected


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RADIXRT_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert home() == tmp_path / ".cache" / "radixrt"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert home() == tmp_path / "xdg" / "radixrt"
    monkeypatch.setenv("RADIXRT_HOME", "~/own")
    assert home() == tmp_path / "own"


def test_list_models_shows_the_cache(own_home: Path, tmp_path: Path) -> None:
    known = [("smollm2-135m", False), ("all-minilm-l6-v2", False)]
    assert [(entry.name, entry.on_disk) for entry in list_models()] == known
    mine = own_home / "models" / "mine"
    mine.mkdir(parents=True)
    (mine / "m.gguf").write_bytes(b"1234")
    (own_home / "models" / "empty").mkdir()
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"12345")
    other = tmp_path / "hub" / "models--org--quants" / "snapshots" / "abc"
    other.mkdir(parents=True)
    (other / "q4.gguf").write_bytes(b"123")
    entries = {entry.name: entry for entry in list_models()}
    assert set(entries) == {"smollm2-135m", "all-minilm-l6-v2", str(mine), "org/name", "org/quants:q4.gguf"}
    assert entries[str(mine)].size_bytes == 4
    assert entries["org/name"].size_bytes == 5 and entries["org/name"].path == snapshot
    for entry in entries.values():
        if entry.path is not None:
            assert resolve(str(entry.path)).exists()


def test_opening_a_model_imports_no_torch(smollm2_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom radixrt.checkpoint import open_checkpoint\n"
        "open_checkpoint(Path(sys.argv[1])).vocabulary().encode('x')\n"
        "print([m for m in ('torch', 'transformers', 'httpx', 'huggingface_hub', 'gguf') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(smollm2_path)],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
