"""Calls about jobs: what is asked, what comes of it, and the files that a submission brings along."""

from __future__ import annotations

import hashlib
import logging
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import tiermesh
from services.files.code_archive import pack_code
from services.files.code_folder import write_code_folder
from tests.support.web_api import Answer, WebApi, answer_json, job_json, problem

ID = "1127-100000-aaaa"
JOBS = "/v1/jobs"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("call", "arguments", "named", "path", "body"),
    [
        ("cancel", (), {}, "cancel", {"now": False}),
        ("cancel", (), {"now": True}, "cancel", {"now": True}),
        ("pause", (), {}, "pause", {}),
        ("resume", (), {}, "resume", {}),
        ("set_priority", (5,), {}, "priority", {"priority": 5}),
    ],
)
def test_changes_of_a_job(
    client: Any, api: WebApi, call: str, arguments: Any, named: Any, path: str, body: Any
) -> None:
    api.put("POST", f"{JOBS}/{ID}/{path}", answer_json(job_json(state="paused")))
    job = getattr(client, call)(ID, *arguments, **named)
    assert job.state == "paused"
    (request,) = api.asked("POST", f"{JOBS}/{ID}/{path}")
    assert request.json == body
    assert request.headers["content-type"] == "application/json"


def test_a_job_has_the_fields_of_the_api(client: Any, api: WebApi) -> None:
    fields = job_json(checkpoint_step=2, new_field=[1])
    api.put("GET", f"{JOBS}/{ID}", answer_json(fields))
    job = client.get(ID)
    assert (job.id, job.step, job.loss, job.validation_loss, job.detail) == (ID, 3, 1.5, None, "")
    assert job.submitted == datetime(2026, 11, 27, 10, 0, 0, 123_000, tzinfo=timezone.utc)
    assert job.started == datetime(2026, 11, 27, 10, 0, 1, tzinfo=timezone.utc)
    assert job.ended is None and not job.has_ended
    assert job.fields == fields


def test_names_of_jobs_are_parts_of_a_path(client: Any, api: WebApi) -> None:
    with pytest.raises(tiermesh.NotFound):
        client.get("../cluster?x=/")
    assert api.received[0].path == "/v1/jobs/..%2Fcluster%3Fx%3D%2F"


def test_all_pages_of_jobs(client: Any, api: WebApi) -> None:
    api.put(
        "GET",
        JOBS,
        answer_json({"jobs": [job_json("b"), job_json("a")], "next_page_token": "more"}),
        answer_json({"jobs": [], "next_page_token": "still more"}),
        answer_json({"jobs": [job_json("0")], "next_page_token": None}),
    )
    assert [job.id for job in client.jobs(state=["queued", "running"], owner="ada", name="demo")] == [
        "b",
        "a",
        "0",
    ]
    queries = [each.query for each in api.asked("GET", JOBS)]
    filters = {"state": ["queued", "running"], "owner": ["ada"], "name": ["demo"]}
    assert queries == [
        filters,
        filters | {"page_token": ["more"]},
        filters | {"page_token": ["still more"]},
    ]


def test_the_cluster(client: Any, api: WebApi) -> None:
    fields = {"epoch": 2, "leader": "head", "tiers": 3, "running_jobs": [ID], "workers": [{"name": "w1"}]}
    api.put("GET", "/v1/cluster", answer_json(fields))
    cluster = client.status()
    assert (cluster.epoch, cluster.leader, cluster.tiers) == (2, "head", 3)
    assert (cluster.running_jobs, cluster.workers) == ((ID,), ("w1",))


def test_a_job_that_goes_on(client: Any, api: WebApi) -> None:
    api.put("POST", f"{JOBS}/{ID}/continue", answer_json(job_json("next"), 201))
    assert client.continue_(ID, 20, step=4).id == "next"
    body = api.received[0].json
    assert len(body.pop("request_id")) == 32
    assert body == {"steps": 20, "step": 4, "total_steps": None}


class TestSubmit:
    """A submission, and the files that its config names."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "configs" / "training_configs"
        folder.mkdir(parents=True)
        (folder / "job.yaml").write_text(
            "training_config:\n  model_config: models/m.yaml\n  data_path: 'text.txt' # here\n"
        )
        (folder / "text.txt").write_text("a corpus")
        (tmp_path / "configs" / "models").mkdir()
        (tmp_path / "configs" / "models" / "m.yaml").write_text("tokenizer: tok.json")
        (folder / "tok.json").write_text("{}")
        return folder

    def test_the_text_and_the_overrides_are_sent(self, client: Any, api: WebApi, folder: Path) -> None:
        job = client.submit(folder / "job.yaml", {"training_config.max_steps": 100}, name="mine")
        assert job.state == "queued"
        body = api.received[0].json
        assert len(body.pop("request_id")) == 32
        assert body == {
            "config": (folder / "job.yaml").read_text(),
            "overrides": {"training_config.max_steps": 100},
            "files": {},
            "name": "mine",
        }

    def test_a_config_may_be_a_mapping(self, client: Any, api: WebApi) -> None:
        client.submit({"training_config": {"max_steps": 1}})
        assert api.received[0].json["config"] == {"training_config": {"max_steps": 1}}

    def test_files_are_sent_once_and_found_as_the_command_finds_them(
        self, client: Any, api: WebApi, folder: Path
    ) -> None:
        api.wanted = ["models/m.yaml", "text.txt"]
        client.submit(folder / "job.yaml")
        assert api.files == {
            sha256("tokenizer: tok.json"): b"tokenizer: tok.json",
            sha256("a corpus"): b"a corpus",
        }
        api.received.clear()
        client.submit(folder / "job.yaml")
        assert [each.method for each in api.received] == ["POST", "POST"]

    def test_an_included_file_may_name_another(self, client: Any, api: WebApi, folder: Path) -> None:
        api.wanted = ["models/m.yaml", "tok.json"]
        client.submit(folder / "job.yaml")
        assert b"{}" in api.files.values()

    def test_code_is_sent_as_the_command_sends_it(self, client: Any, api: WebApi, folder: Path) -> None:
        files = {"mixer.py": b"x = 1", "parts/one.json": b"{}", "parts/two.json": b"", "\u00fc.py": b"y"}
        code = folder / "code"
        write_code_folder(code, files)
        write_code_folder(code / "__pycache__", {"mixer.pyc": b"bytecode"})
        write_code_folder(code / ".git", {"config": b"hidden"})
        archive = pack_code(files)
        digest = hashlib.sha256(archive).hexdigest()
        api.code_is_wanted = True
        client.submit(folder / "job.yaml", code=code)
        assert api.files == {digest: archive}
        assert api.received[-1].json["code"] == {"path": str(code), "sha256": digest}
        api.received.clear()
        client.submit(folder / "job.yaml", code=str(code))
        assert [each.method for each in api.received] == ["POST"]

    def test_code_that_can_not_be_sent(
        self, client: Any, api: WebApi, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tiermesh.job_code.MOST_BYTES", 100)
        monkeypatch.setattr("tiermesh.job_code.MOST_FILES", 3)
        cases: dict[str, Any] = {
            "a readable folder": lambda code: None,
            "files and folders alone; remove it": lambda code: (code / "a").symlink_to("/etc/passwd"),
            "files and folders alone": lambda code: os.mkfifo(code / "pipe.py"),
            "at most 100 bytes": lambda code: (code / "a.py").write_bytes(bytes(101)),
            "at most 3 files": lambda code: [(code / f"{each}.py").touch() for each in range(4)],
            "at most 3 folders": lambda code: [(code / f"{each}").mkdir() for each in range(3)],
        }
        for number, (reason, make) in enumerate(cases.items()):
            code = folder / f"code-{number}"
            if number:
                code.mkdir()
            make(code)
            with pytest.raises(tiermesh.Refused, match=reason) as caught:
                client.submit(folder / "job.yaml", code=code)
            assert caught.value.field == "code" and caught.value.fix
        assert not api.received

    def test_files_of_a_named_folder_are_sent(self, client: Any, api: WebApi, folder: Path) -> None:
        (folder / "weights").mkdir()
        (folder / "weights" / "config.json").write_text("[]")
        api.wanted = ["weights/config.json"]
        client.submit(folder / "job.yaml", {"transformer_config.model_path": "weights"})
        assert b"[]" in api.files.values()

    @pytest.mark.parametrize("path", ["secret.txt", "text", "../training_configs/tok.json", "/etc/passwd"])
    def test_a_file_that_no_text_names_stays_here(
        self, client: Any, api: WebApi, folder: Path, path: str
    ) -> None:
        (folder / "secret.txt").write_text("secret")
        (folder / "text").write_text("secret")
        api.wanted = [path]
        with pytest.raises(tiermesh.Failed, match="does not name"):
            client.submit(folder / "job.yaml")
        assert [each.method for each in api.received] == ["POST"]

    def test_a_named_folder_is_not_left(self, client: Any, api: WebApi, folder: Path) -> None:
        (folder / "weights").mkdir()
        (folder / "secret.txt").write_text("secret")
        api.wanted = ["weights/../secret.txt"]
        with pytest.raises(tiermesh.Failed, match="does not name"):
            client.submit(folder / "job.yaml", {"transformer_config.model_path": "weights"})
        assert not api.files

    def test_a_file_that_is_not_there(self, client: Any, api: WebApi, folder: Path) -> None:
        (folder / "text.txt").unlink()
        api.wanted = ["text.txt"]
        with pytest.raises(tiermesh.Refused) as caught:
            client.submit(folder / "job.yaml")
        assert (caught.value.field, caught.value.value) == ("config", "text.txt")
        assert str(folder) in str(caught.value.expected)
        assert caught.value.fix == "correct the path in the config"

    def test_a_server_that_asks_for_a_file_again_and_again(
        self, client: Any, api: WebApi, folder: Path
    ) -> None:
        api.wanted = ["text.txt"]
        api.put("PUT", f"/v1/files/{sha256('a corpus')}", answer_json({}, 201))
        with pytest.raises(tiermesh.Failed, match="asks again"):
            client.submit(folder / "job.yaml")

    def test_a_lost_answer_is_asked_for_again_by_the_same_id(
        self, client: Any, api: WebApi, folder: Path
    ) -> None:
        queued = answer_json({"job": job_json(), "notices": []}, 201)
        away = problem(503, "away", "no aggregator answers; try again")
        api.put("POST", JOBS, Answer(is_lost=True), away, queued)
        client.submit(folder / "job.yaml")
        assert len({each.json["request_id"] for each in api.received}) == 1
        assert len(api.received) == 3

    @pytest.mark.usefixtures("fast_clock")
    def test_an_aggregator_that_stays_away(self, client: Any, api: WebApi, folder: Path) -> None:
        api.put("POST", JOBS, problem(503, "away", "no aggregator answers; try again"))
        with pytest.raises(tiermesh.Unreachable, match="no aggregator answers"):
            client.submit(folder / "job.yaml")
        assert len(api.received) > 1

    def test_notices_are_logged(
        self, client: Any, api: WebApi, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        api.put("POST", JOBS, answer_json({"job": job_json(), "notices": ["socket_type: has no effect"]}))
        with caplog.at_level(logging.WARNING, logger="tiermesh"):
            client.submit(folder / "job.yaml")
        assert caplog.messages == ["socket_type: has no effect"]

    @pytest.mark.parametrize("config", ["no-such.yaml", ".", {"a": object()}, {"a": float("nan")}])
    def test_a_config_that_cannot_be_sent(self, client: Any, api: WebApi, config: Any) -> None:
        with pytest.raises(tiermesh.Refused) as caught:
            client.submit(config)
        assert caught.value.field == "config" and caught.value.fix
        assert not api.received
