"""Jobs and their targets: those without one cost nothing, and each end is told once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from aggregator.core.events import NoticeKind
from aggregator.notifications import sender as sender_module
from aggregator.notifications.notifier import Notifier
from aggregator.notifications.targets import TargetFile
from protos.jobs_pb2 import CANCELLED, RUNNING, SUCCEEDED, Job, JobEvent
from services.config.job import JobConfig
from services.config.models import LinearRegressionConfig
from services.runtime import queue_thread
from tests.support.webhook import webhook


@pytest.fixture(autouse=True)
def quick(no_proxies: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_thread, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(sender_module, "PACE_SECONDS", 0.0)


def spec(notify: str | None) -> str:
    return JobConfig(model=LinearRegressionConfig(), notify=notify).to_json()


def event(job: str, kind: str = "state", state: int = RUNNING, seconds: float = 1.0) -> JobEvent:
    return JobEvent(job=Job(id=job, state=state, step=1, loss=1.0), kind=kind, seconds=seconds)


def test_the_key_is_left_out_of_jobs_without_it() -> None:
    assert "notify" not in json.loads(spec(None)) and json.loads(spec("ops"))["notify"] == "ops"
    assert JobConfig.from_json(spec("ops")).notify == "ops" and JobConfig.from_json(spec(None)).notify is None
    assert JobConfig.from_json(spec("ops")).plan().features == ("notify",)


def test_each_target_is_told_of_its_jobs(tmp_path: Path) -> None:
    counted: Counter[str] = Counter()
    asked: list[str] = []
    specs = {"a": spec("one"), "b": spec("two"), "c": spec(None)}

    def find_spec(job: str) -> str | None:
        asked.append(job)
        return specs.get(job)

    with webhook() as one, webhook() as two:
        file = tmp_path / "targets"
        file.write_text(f"one json {one.url}\ntwo slack {two.url}\n")
        file.chmod(0o600)
        folder = tmp_path / "notifications"
        notifier = Notifier(
            folder,
            TargetFile(file),
            find_spec,
            lambda outcome, count: counted.update({outcome: count}),
            lambda *_: None,
        )
        for job in ("a", "b", "c", "unknown"):
            notifier.record(event(job, "step"), None)
            notifier.record(event(job, "member"), NoticeKind.WORKER_LOST)
            notifier.record(event(job, "member"), NoticeKind.WORKER_LOST)
            notifier.record(event(job, state=SUCCEEDED if job == "a" else CANCELLED), None)
        notifier.stop_telling()
        notifier.record(event("a", "member"), NoticeKind.WORKER_LOST)
        bodies = one.take(2)
        assert [(each["job"], each["event"], each["repeated"]) for each in bodies] == [
            ("a", "worker_lost", 0),
            ("a", "ended", 1),
        ]
        assert [each["text"].split(":")[0] for each in two.take(2)] == ["worker lost", "ended"]
        notifier.close()
        assert one.received.empty() and two.received.empty()
    assert asked == ["a", "b", "c", "unknown"], "a job's spec is read once"
    assert counted == {"sent": 4, "repeated": 2}
    assert sorted(each.name for each in folder.iterdir()) == ["one.json", "two.json"]


def test_nothing_is_made_without_targets(tmp_path: Path) -> None:
    notifier = Notifier(
        tmp_path / "notifications", TargetFile(None), lambda job: spec(None), lambda *_: None, lambda *_: None
    )
    notifier.record(event("a"), None)
    notifier.close()
    assert not [*tmp_path.iterdir()]
