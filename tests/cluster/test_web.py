"""The HTTP API of a real daemon: a job's whole life, a standby that takes over meanwhile, and callers' tokens."""

from __future__ import annotations

import hashlib
import http.client
import json
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from services.files.code_archive import pack_code
from tests.cluster.test_standby import Pair
from tests.support.certificates import make_certificates
from tests.support.cluster.bits import CHECKPOINT_EVERY, Bits, gpt_config
from tests.support.cluster.daemon import Daemon, tiermesh
from tests.support.cluster.harness import Cluster
from tests.support.ports import free_port
from tests.support.web_server import Web
from tests.web.test_streams import parsed

DATA = "corpus.txt"


def start_web(cluster: Cluster, aggregator: str) -> Web:
    """Start a daemon without TLS, and return what calls it."""
    folder, kept = cluster.folder, cluster.folder / "web-token"
    web = Daemon(
        "web", "web", folder, "--aggregator", aggregator, "--state-dir", folder / "web", "--token-file", kept
    )
    cluster.daemons.append(web)
    web.ready()
    return Web(folder / "web/files", kept.read_text().strip(), web.port)


def submit(web: Web, corpus: Path) -> str:
    """Send the corpus and submit the job of the other tests; return its id."""
    content = corpus.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    assert web.call("PUT", f"/v1/files/{sha256}", content).status == 201
    config = gpt_config(Path(DATA))
    answer = web.call("POST", "/v1/jobs", {"config": config, "files": {DATA: sha256}})
    assert answer.status == 201, answer.body
    return str(answer.json["job"]["job"])


@pytest.mark.long
def test_a_job_by_http_has_the_same_bits_though_a_standby_takes_over(
    tmp_path: Path, corpus: Path, undisturbed: Bits
) -> None:
    with Pair(tmp_path, 2) as pair:
        web = start_web(pair, f"{pair.first.address},{pair.second.address}")
        job = submit(web, corpus)
        followed: list[Any] = []
        reader = threading.Thread(target=lambda: followed.append(web.get(f"/v1/jobs/{job}/events").body))
        reader.start()
        pair.wait_step(job, CHECKPOINT_EVERY + 2)
        pair.first.kill()
        pair.taken_over()
        pair.finish(job)
        reader.join(120)
        kinds = [kind for _, kind, _ in parsed(followed[0])]
        ids = [each for each, _, _ in parsed(followed[0]) if each]
        assert "away" in kinds
        assert parsed(followed[0])[-1][2]["job"]["state"] == "succeeded"
        assert len(set(ids)) == len(ids)
        found = web.get(f"/v1/jobs/{job}/checkpoints").json["checkpoints"][0]
        model = web.get(f"/v1/jobs/{job}/checkpoints/{found['step']}/model.safetensors").body
        assert hashlib.sha256(model).hexdigest() == undisturbed.model_sha256


@pytest.mark.long
def test_callers_have_the_rights_of_their_tokens_and_the_daemon_has_none(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    tokens, people = tmp_path / "tokens.txt", f"127.0.0.1:{free_port()}"
    for name, *kind in (("bob",), ("eve",), ("dora", "--developer")):
        issued = tiermesh(
            "tokens", "issue", name, *kind, "--tokens", tokens, "--out", tmp_path / f"{name}.txt"
        )
        assert issued.returncode == 0, issued.stderr
    shown = {name: (tmp_path / f"{name}.txt").read_text().strip() for name in ("bob", "eve", "dora")}
    options = ("--tokens", tokens, "--people-listen", people)
    tls = (
        "--tls-cert",
        files / "web.pem",
        "--tls-key",
        files / "web.key",
        "--tls-ca",
        files / "authority.pem",
    )
    with Cluster(tmp_path, certificates=files, aggregator_options=options) as cluster:
        web = Daemon("web", "web", tmp_path, "--aggregator", people, "--state-dir", tmp_path / "web", *tls)
        cluster.daemons.append(web)
        web.ready()
        context = ssl.create_default_context(cafile=files / "authority.pem")

        def call(method: str, path: str, name: str, body: dict[str, Any] | bytes = b"") -> tuple[int, Any]:
            connection = http.client.HTTPSConnection("localhost", web.port, timeout=30, context=context)
            media_type = "octet-stream" if isinstance(body, bytes) else "json"
            headers = {
                "Authorization": f"Bearer {shown.get(name, name)}",
                "Content-Type": f"application/{media_type}",
            }
            content = body if isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            status, content = answer.status, json.loads(answer.read())
            connection.close()
            return status, content

        config = {"training_config": {"data_path": "builtin:python-reference", "max_steps": 2},
                  "transformer_config": gpt_config(tmp_path)["transformer_config"]}  # fmt: skip
        status, answer = call("POST", "/v1/jobs", "bob", {"config": config})
        assert (status, answer["job"]["owner"]) == (201, "bob"), answer
        path = f"/v1/jobs/{answer['job']['job']}/cancel"
        assert call("POST", path, "eve", {})[0] == 403
        assert call("POST", path, "tm_00000000_" + "0" * 64, {})[0] == 401
        assert call("POST", path, "bob", {})[1]["state"] == "cancelled"
        archive = pack_code({"mixer.py": b""})
        sha256 = hashlib.sha256(archive).hexdigest()
        own = {"model_type": "mixer:Mixer", "max_sequence_length": 32}
        submission = {
            "config": {**config, "transformer_config": own},
            "code": {"path": "/home/dora/mixer", "sha256": sha256},
        }
        assert call("PUT", f"/v1/files/{sha256}", "bob", archive)[0] == 201
        status, answer = call("POST", "/v1/jobs", "bob", submission)
        assert (status, "only for admin, developer" in answer["detail"]) == (403, True), answer
        assert call("POST", "/v1/jobs", "dora", submission)[0] == 201
        refused = tiermesh("jobs", "--aggregator", cluster.aggregator.address, *tls)
        assert (refused.returncode, "not allowed for web web" in refused.stderr) == (2, True), refused.stderr
