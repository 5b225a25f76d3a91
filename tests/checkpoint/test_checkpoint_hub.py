"""Models of the hub, against a stand-in of it on loopback.

huggingface_hub reads HF_ENDPOINT and HF_HUB_OFFLINE when it is imported, so each case runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from checkpoint_stand_ins import Answer, StandIn, send

from tests.waiting import HANG_S

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PLAIN = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"x",
    "model.safetensors": b"weights" * 1000,
    "consolidated.safetensors": b"again",
    "pytorch_model.bin": b"pickle",
    "modeling_own.py": b"code",
    "onnx/model.safetensors": b"other",
    "onnx/config.json": b"{}",
    "1_Pooling/config.json": b"{}",
}
QUANTS = {"q4.gguf": b"GGUF four", "q8.gguf": b"GGUF eight", "README.md": b"x"}


def serve(stand_in: StandIn, repo: str, files: dict[str, bytes], revision: str = "main") -> None:
    """The calls that huggingface_hub makes: the repository's file list, then each file (HEAD and GET)."""
    siblings = [{"rfilename": name} for name in files]
    info = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}).encode()
    tree = json.dumps(
        [
            {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
            for name, body in files.items()
        ]
    ).encode()
    kind = {"Content-Type": "application/json"}

    def answer(body: bytes) -> Answer:
        return lambda handler: send(handler, 200, body, kind)

    stand_in.routes[f"/api/models/{repo}"] = answer(info)
    for name in (revision, COMMIT):
        stand_in.routes[f"/api/models/{repo}/revision/{name}"] = answer(info)
        stand_in.routes[f"/api/models/{repo}/tree/{name}"] = answer(tree)
        for path, body in files.items():
            stand_in.routes[f"/{repo}/resolve/{name}/{path}"] = one_file(body)


def one_file(body: bytes) -> Answer:
    headers = {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
    return lambda handler: send(handler, 200, body, headers)


def refuse(status: int, code: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        send(handler, status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    return answer


def ask(stand_in: StandIn | str, own_home: Path, name: str, *, download: bool = True) -> tuple[str, list[str]]:
    """(what resolve gave or the ModelError's message, the labels that progress was called with) of a fresh process."""
    script = (
        "import json, sys\n"
        "from radixrt.checkpoint import resolve\n"
        "from radixrt.errors import ModelError\n"
        "seen = []\n"
        "try:\n"
        f"    out = str(resolve(sys.argv[1], progress=lambda *a: seen.append(a[0]), download={download}))\n"
        "except ModelError as error:\n"
        "    out = 'ModelError: ' + error.message\n"
        "print(json.dumps([out, seen]))\n"
    )
    endpoint = stand_in if isinstance(stand_in, str) else stand_in.url
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    environ = kept | {"HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(own_home.parent / "hub"), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, name],
        capture_output=True, text=True, check=False, timeout=HANG_S, env=environ, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    out, seen = json.loads(done.stdout.splitlines()[-1])
    return out, seen


def test_a_plain_model(stand_in: StandIn, own_home: Path) -> None:
    serve(stand_in, "org/plain", PLAIN)
    out, seen = ask(stand_in, own_home, "org/plain")
    folder = Path(out)
    got = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    wanted = ("config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors", "1_Pooling/config.json")
    assert got == {name: PLAIN[name] for name in wanted}
    assert set(seen) == {"downloading org/plain"}
    # The second time it is there: without a word to the hub, and when the hub is away.
    requests = len(stand_in.seen)
    assert ask(stand_in, own_home, "org/plain", download=False)[0] == out
    assert len(stand_in.seen) == requests
    stand_in.server.server_close()
    assert ask(stand_in.url, own_home, "org/plain")[0] == out


def test_gguf_files(stand_in: StandIn, own_home: Path) -> None:
    serve(stand_in, "org/quants", QUANTS, revision="v2")
    out, seen = ask(stand_in, own_home, "org/quants:q4.gguf@v2")
    assert Path(out).read_bytes() == QUANTS["q4.gguf"] and Path(out).name == "q4.gguf"
    assert seen
    assert ask(stand_in, own_home, "org/quants@v2", download=False)[0] == out
    assert "not on this machine" in ask(stand_in, own_home, "org/quants:q8.gguf@v2", download=False)[0]
    assert not any(path.endswith("q8.gguf") for _, path, _ in stand_in.seen)
    assert (
        "Choose one of its GGUF files: org/quants:q4.gguf, org/quants:q8.gguf"
        in ask(stand_in, own_home, "org/quants")[0]
    )
    assert "has no file q5.gguf" in ask(stand_in, own_home, "org/quants:q5.gguf")[0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (refuse(401, "RepoNotFound"), "the hub has no model org/x"),
        (refuse(403, "GatedRepo"), "asks for consent"),
        (refuse(404, "RevisionNotFound"), "has no revision 'v9'"),
        (refuse(500, "Broken"), "could not be downloaded from the hub"),
    ],
)
def test_refusals_say_what_to_do(stand_in: StandIn, own_home: Path, answer: Answer, message: str) -> None:
    stand_in.routes["/api/models/org/x/revision/v9"] = answer
    out, _ = ask(stand_in, own_home, "org/x@v9")
    assert out.startswith("ModelError: ") and message in out


def test_not_here_and_no_hub(stand_in: StandIn, own_home: Path) -> None:
    stand_in.server.server_close()
    for download in (True, False):
        out, _ = ask(stand_in, own_home, "org/x", download=download)
        assert out.startswith("ModelError: org/x is not on this machine")


def test_only_pickled_weights(stand_in: StandIn, own_home: Path) -> None:
    serve(stand_in, "org/old", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    assert "holds no config.json with .safetensors files" in ask(stand_in, own_home, "org/old")[0]
