"""Names to paths: what is looked up where, and the Hub through a small imitation of its web interface on loopback."""

import json
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from octavo.loaders import LoadError, open_checkpoint
from octavo.loaders.hub import download_folder, download_gguf, no_progress, pull, resolve
from octavo.models.catalog import SMOLLM2
from tests.tiny import make_tiny, write_directory, write_gguf

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CLOSED = "http://127.0.0.1:9"
"""The discard port: nothing listens there, so that a connection is refused at once, as it is offline."""


def test_a_path_comes_first(tmp_path: Path) -> None:
    path = write_gguf(make_tiny(), tmp_path / "smollm2")
    assert resolve(path) == path
    assert resolve(str(tmp_path)) == tmp_path
    with pytest.raises(LoadError, match="already on this machine"):
        pull(str(path))


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2-135M-Instruct", "default"])
def test_a_name_of_the_catalogue_is_its_file_in_the_cache(tmp_path: Path, name: str) -> None:
    stored = tmp_path / "models" / SMOLLM2.file_name
    stored.parent.mkdir()
    with stored.open("wb") as file:
        file.truncate(SMOLLM2.size_bytes)
    assert resolve(name, cache=tmp_path) == stored


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smolm2", r"no model 'smolm2'.*the catalogue \(smollm2-135m-instruct.*did you mean smollm2"),
        ("", r"no model ''"),
        ("a/b/c", "no model 'a/b/c'"),
        ("org/na me", "not an id like org/name"),
        ("./missing", "no such file or folder"),
        ("models/missing.gguf", "no such file or folder"),
        ("~no-such-user/x.gguf", "no such file or folder"),
        ("x" * 5000, "no model 'xxx"),
        ("a\0b", "no model"),
    ],
)
def test_unknown_names_say_what_there_is(name: str, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        resolve(name)


def test_offline_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"cannot get org/name from the Hugging Face Hub \(is this machine offline"):
        download_folder("org/name", no_progress, into=tmp_path, endpoint=CLOSED)
    with pytest.raises(LoadError, match="cannot get org/name from the Hugging Face Hub"):
        download_gguf("org/name", "q4", no_progress, into=tmp_path, endpoint=CLOSED)


class FakeHub(BaseHTTPRequestHandler):
    """The three requests that huggingface_hub makes: what is in a repository, its tree, and a file of it."""

    files: dict[str, bytes]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/org/name/tree/"):
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": sha256(data).hexdigest()[:40]}
                for name, data in self.files.items()
            ]
            self.answer(json.dumps(entries).encode())
        elif path == "/api/models/org/name" or path.startswith("/api/models/org/name/revision/"):
            siblings = [{"rfilename": name} for name in self.files]
            self.answer(json.dumps({"id": "org/name", "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith("/org/name/resolve/") and path.split("/", 5)[5] in self.files:
            self.answer(self.files[path.split("/", 5)[5]])
        else:
            self.send_error(404)

    def answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{sha256(data).hexdigest()[:40]}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    model = make_tiny(hidden_size=32, intermediate_size=32, num_layers=1, num_heads=2)
    folder = write_directory(model, tmp_path / "served")
    write_gguf(model, folder / "tiny-Q4_0.gguf")
    write_gguf(model, folder / "tiny-Q8_0.gguf")
    (folder / "modeling.py").write_text("raise SystemExit")
    FakeHub.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeHub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_repository_becomes_a_folder_without_its_code_and_other_formats(hub: str, tmp_path: Path) -> None:
    folder = download_folder("org/name", no_progress, into=tmp_path / "cache", endpoint=hub)
    assert open_checkpoint(folder).spec.num_layers == 1
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert not {"modeling.py", "tiny-Q4_0.gguf"} & {path.name for path in folder.iterdir()}


def test_one_gguf_file_is_chosen_by_a_part_of_its_name(hub: str, tmp_path: Path) -> None:
    path = download_gguf("org/name", "q8_0", no_progress, into=tmp_path / "cache", endpoint=hub)
    assert path.name == "tiny-Q8_0.gguf"
    assert open_checkpoint(path).spec.num_layers == 1
    with pytest.raises(
        LoadError, match=r"org/name:tiny fits 2 GGUF files; there are: tiny-Q4_0\.gguf, tiny-Q8_0\.gguf"
    ):
        download_gguf("org/name", "tiny", no_progress, into=tmp_path / "cache", endpoint=hub)


def test_a_cached_file_is_found_when_offline(hub: str, tmp_path: Path) -> None:
    """As a server is started whose model was fetched before it: in a pod, by an init container."""
    online = download_gguf("org/name", "q8_0", no_progress, into=tmp_path, endpoint=hub)
    assert download_gguf("org/name", "q8_0", no_progress, into=tmp_path, endpoint=CLOSED) == online
    with pytest.raises(LoadError, match=r"org/name:q4_0 fits 0 GGUF files; there are: tiny-Q8_0\.gguf"):
        download_gguf("org/name", "q4_0", no_progress, into=tmp_path, endpoint=CLOSED)
