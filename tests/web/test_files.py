"""Files by SHA-256, jobs made of them, and the daemon's token."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from services.errors import Refused
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
