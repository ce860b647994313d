"""Files by SHA-256, jobs made of them, and the daemon's token."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from services.errors import Refused
from services.files.code_archive import MOST_ARCHIVE_BYTES, pack_code
from services.protocol.file_refs import MAX_PIECE_BYTES
from services.transport.access.tokens import is_token
from tests.support.fake_aggregator import FakeAggregator
from tests.support.web_server import Answer, Web
from web.own_token import keep_token

CORPUS = ("a text to learn from, again and again. " * 400).encode()
LARGE = os.urandom(2 * MAX_PIECE_BYTES + 7)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put(web: Web, content: bytes) -> Answer:
    return web.call("PUT", f"/v1/files/{sha256(content)}", content)


def test_a_file_is_stored_here_and_at_the_aggregator(web: Web, fake: FakeAggregator) -> None:
    answer = put(web, LARGE)
    assert (answer.status, answer.json) == (201, {"sha256": sha256(LARGE), "bytes": len(LARGE)})
    assert (web.stored / sha256(LARGE)).read_bytes() == LARGE
    assert fake.store is not None
    assert fake.store.path_of(sha256(LARGE)).read_bytes() == LARGE
    assert put(web, LARGE).status == 200
    path = f"/v1/files/{sha256(CORPUS)}"
    assert web.call("PUT", path, CORPUS, {"Content-Type": ""}).status == 201, "as `curl -T` sends it"


@pytest.mark.parametrize("name", ["0" * 64, "..%2fx", "A" * 64, "0" * 63, "%2e%2e"])
def test_a_file_that_is_another_one_is_not_stored(web: Web, name: str) -> None:
    answer = web.call("PUT", f"/v1/files/{name}", b"content")
    assert (answer.status, answer.kind) in ((422, "wrong-hash"), (422, "refused"), (404, "not-found"))
    assert not web.stored.exists() or [*web.stored.iterdir()] == []


def test_a_file_needs_its_length_within_the_limit(web: Web) -> None:
    path = f"/v1/files/{sha256(b'x')}"
    assert web.call("PUT", path, b"x", {"Content-Length": str(1 << 40)}).kind == "too-large"
    chunked = web.call("PUT", path, b"1\r\nx\r\n0\r\n\r\n", {"Transfer-Encoding": "chunked"})
    assert (chunked.status, chunked.kind) == (411, "length-required")
    assert web.call("PUT", path, b"x", {"Content-Type": "text/plain"}).kind == "media-type"
    assert web.call("PUT", path, b"x", {"Content-Encoding": "gzip"}).kind == "media-type"


@pytest.mark.parametrize("rest", ["late", "cut"])
def test_a_file_that_does_not_come_is_not_stored_and_may_come_again(
    web: Web, monkeypatch: pytest.MonkeyPatch, rest: str
) -> None:
    monkeypatch.setattr("web.uploads.PIECE_SECONDS", 0.1)
    head = (
        f"PUT /v1/files/{sha256(LARGE)} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {web.token}\r\n"
    )
    body = f"Content-Type: application/octet-stream\r\nContent-Length: {len(LARGE)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", web.port), 10) as connection:
        connection.sendall(head.encode() + body + LARGE[:-1])
        if rest == "cut":
            connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 408") if rest == "late" else b"201" not in answer
    assert b"connection: close" in answer or not answer
    assert not (web.stored / sha256(LARGE)).exists()
    assert put(web, LARGE).status == 201


def test_a_file_that_is_refused_is_not_read(web: Web) -> None:
    """Check that a caller who waits to be asked for the body is not, and that another one is cut off."""
    head = f"PUT /v1/files/x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {web.token}\r\n"
    head += f"Content-Type: application/octet-stream\r\nContent-Length: {1 << 30}\r\n"
    for more in ("Expect: 100-continue\r\n", ""):
        with socket.create_connection(("127.0.0.1", web.port), 10) as connection:
            connection.sendall(f"{head}{more}\r\n".encode())
            answer = connection.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 422") and answer.count(b"connection: close") == 1


def config(data: str) -> dict[str, Any]:
    return {
        "training_config": {
            "model_config": "model_configs/nanogpt_char_cpu.yaml",
            "data_path": data,
            "tokenizer_type": "char",
            "batch_size": 2,
            "max_steps": 3,
        }
    }


def submit(web: Web, content: Any, **members: Any) -> Answer:
    return web.call("POST", "/v1/jobs", {"config": content, **members})


def test_a_config_and_its_files_become_a_job_as_the_command_makes_it(web: Web, fake: FakeAggregator) -> None:
    missing = submit(web, config("data/corpus.txt"))
    assert (missing.status, missing.kind) == (422, "missing-file")
    assert missing.json["missing"] == [{"path": "data/corpus.txt", "sha256": None}]
    files = {"data/corpus.txt": sha256(CORPUS)}
    missing = submit(web, config("data/corpus.txt"), files=files)
    assert missing.json["missing"] == [{"path": "data/corpus.txt", "sha256": sha256(CORPUS)}]
    put(web, CORPUS)
    answer = submit(
        web,
        json.dumps(config("data/corpus.txt")),
        files=files,
        overrides={"training_config.max_steps": 7},
        name="mine",
        request_id="r1",
    )
    assert (answer.status, answer.json["job"]["name"]) == (201, "mine"), answer.body
    (request,) = fake.submitted
    spec = json.loads(request.spec_json)
    assert (spec["steps"], spec["data"]["files"][0]["sha256"]) == (7, sha256(CORPUS))
    assert spec["data"]["files"][0]["path"] == "data/corpus.txt"
    assert request.request_id == "r1"


@pytest.mark.parametrize(
    "path", ["/etc/hostname", "../../../../etc/hostname", "~/.ssh/id_rsa", "${HOME}/x", "pyproject.toml"]
)
def test_no_file_of_this_host_is_read(web: Web, fake: FakeAggregator, path: str) -> None:
    for answer in (
        submit(web, config(path)),
        submit(web, {"training_config": {"model_config": path, "data_path": "builtin:python-reference"}}),
    ):
        assert (answer.status, answer.kind) == (422, "missing-file")
        assert answer.json["missing"][0]["path"] == path
    assert fake.submitted == []


@pytest.mark.parametrize(
    ("content", "members", "field"),
    [
        ("[1, 2]", {}, "config"),
        ({"training_config": {"max_steps": -1}}, {}, "training_config.max_steps"),
        ({}, {"files": {"a": "b"}}, "files.a"),
        ({}, {"files": {"..": "0" * 64}}, "files"),
        ({}, {"secret": 1}, "secret"),
        (5, {}, "config"),
    ],
)
def test_what_is_wrong_in_a_submission_is_named(
    web: Web, content: Any, members: dict[str, Any], field: str
) -> None:
    answer = submit(web, content, **members)
    assert (answer.status, answer.json["field"]) == (422, field), answer.body


ARCHIVE = pack_code({"mixer.py": b"1 / 0  # never run", "data/one.json": b"{}"})


def with_code(web: Web, archive: bytes, model: str = "mixer:Mixer") -> Answer:
    text = config("builtin:python-reference")["training_config"]
    own = {"model_type": model, "max_sequence_length": 32, "width": 32}
    content = {"training_config": text}
    if model != "gpt2":
        content = {"training_config": {**text, "model_config": None}, "transformer_config": own}
    return submit(web, content, code={"path": "/home/ada/mixer", "sha256": sha256(archive)})


def test_code_goes_with_a_job_as_the_command_sends_it(web: Web, fake: FakeAggregator) -> None:
    missing = with_code(web, ARCHIVE)
    assert (missing.status, missing.kind) == (422, "missing-file")
    assert missing.json["missing"] == [{"path": "/home/ada/mixer", "sha256": sha256(ARCHIVE)}]
    put(web, ARCHIVE)
    answer = with_code(web, ARCHIVE)
    assert answer.status == 201, answer.body
    code = json.loads(fake.submitted[0].spec_json)["code"]
    assert code == {"path": "/home/ada/mixer", "sha256": sha256(ARCHIVE)}
    assert fake.store is not None and fake.store.path_of(code["sha256"]).read_bytes() == ARCHIVE


@pytest.mark.parametrize(
    ("archive", "model", "reason"),
    [
        (b"\x7fELF" + bytes(100), "mixer:Mixer", "--code /home/ada/mixer: the archive of code has no line"),
        (ARCHIVE.replace(b"mixer.py", b"../er.py"), "mixer:Mixer", "expected a name below the folder"),
        (ARCHIVE + b"more", "mixer:Mixer", "more bytes than its list of files says"),
        (ARCHIVE, "other:Mixer", "has no other.py, which transformer_config.model_type names"),
        (ARCHIVE, "gpt2", "given with model_type gpt2, expected a model of your own"),
        (pack_code({"mixer.py": b"", "web.py": b""}), "mixer:Mixer", "web.py has the name of a module of"),
        (bytes(MOST_ARCHIVE_BYTES + 1), "mixer:Mixer", "expected an archive of at most"),
    ],
    ids=["garbage", "climbing", "longer", "module", "model", "reserved", "too large"],
)
def test_code_that_is_none_is_refused_before_a_job_is_made(
    web: Web, fake: FakeAggregator, archive: bytes, model: str, reason: str
) -> None:
    put(web, archive)
    answer = with_code(web, archive, model)
    assert (answer.status, answer.kind) == (422, "refused")
    assert reason in answer.json["detail"]
    assert fake.submitted == []


def test_a_token_is_kept_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder/web-token"
    token = keep_token(path)
    assert is_token(token)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert keep_token(path) == token
    path.chmod(0o644)
    assert keep_token(path) != token
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_token_file_that_is_a_link_or_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder").mkdir()
    for name in ("link", "folder"):
        with pytest.raises(Refused, match="--token-file"):
            keep_token(tmp_path / name)
    assert not (tmp_path / "elsewhere").exists()
