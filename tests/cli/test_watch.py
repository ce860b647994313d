"""`--watch`: pictures one after the other or in place, over an outage, to a clean end by Ctrl-C."""

from __future__ import annotations

import io
import os
import signal
import threading
from typing import Any

import pytest

from cli import watch
from cli.main import main
from cli.output import Output
from protos import jobs_pb2
from protos.jobs_pb2 import Job
from services.jobs.connection import Unreachable
from tests.support.fake_aggregator import FakeAggregator

RUNNING = Job(id="job-1", name="tiny", state=jobs_pb2.RUNNING, step=3, steps=10)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "INTERVAL_SECONDS", 0.0)


def test_a_watched_job_is_shown_to_its_end_over_an_outage(
    aggregator: FakeAggregator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[Job | Exception] = [
        RUNNING,
        Unreachable("aggregator here: no answer"),
        RUNNING,
        Job(id="job-1", state=jobs_pb2.SUCCEEDED, step=10, steps=10),
    ]

    async def answer(self: Any, part: str) -> Job:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("services.jobs.client.JobsClient.job", answer)
    assert main(["status", "job-1", "--watch", "--aggregator", aggregator.address, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("state     running") == 3 and captured.err.count("state     succeeded") == 1
    assert captured.err.count("no answer from the aggregator since") == 1
    assert captured.err.count("the aggregator answers again since") == 2, "it stays below the later pictures"
    assert '"state": "succeeded"' in captured.out and len(captured.out.splitlines()) == 1


def test_a_watch_gives_up_after_a_long_outage_and_at_once_if_nothing_ever_answered(
    aggregator: FakeAggregator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [[RUNNING]]

    async def answer(self: Any, *_: Any) -> list[Job]:
        if answers:
            return answers.pop()
        raise Unreachable("aggregator here: no answer")

    monkeypatch.setattr("services.jobs.client.JobsClient.jobs", answer)
    monkeypatch.setattr(watch, "OUTAGE_SECONDS", 0.0)
    for _ in range(2):
        assert main(["jobs", "--watch", "--aggregator", aggregator.address]) == 1
        assert "aggregator here: no answer; it has not answered for" in capsys.readouterr().err


def test_ctrl_c_ends_a_watch_without_an_error(
    aggregator: FakeAggregator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aggregator.jobs["job-1"] = RUNNING
    pictures = 0
    show = watch._Screen.show

    def count(self: Any, note: str) -> None:
        nonlocal pictures
        show(self, note)
        pictures += 1
        if pictures == 3:
            os.kill(os.getpid(), signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    monkeypatch.setattr(watch._Screen, "show", count)
    assert main(["jobs", "--watch", "--aggregator", aggregator.address]) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and captured.out.count("tiny") == 3


class Terminal(io.StringIO):
    """A terminal of 40 columns and 6 rows, which remembers what is written."""

    def isatty(self) -> bool:
        return True


def test_a_picture_is_drawn_over_the_one_before_and_never_taller_or_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((40, 6)))
    screen = watch._Screen(Output())
    screen.picture = watch.Picture(["one", "two\x1b[2J"], {})
    screen.show("")
    screen.picture = watch.Picture(["x" * 50] * 20, {})
    screen.show("")
    first, second = terminal.getvalue().split("\x1b[2F")
    assert first == "\x1b[Jone\ntwo\\x1b[2J\n"
    assert second == "\x1b[J" + ("x" * 39 + "\n") * 4 + "... 16 lines more\n"
    screen.show("")
    assert terminal.getvalue().count("\x1b[5F") == 1


def test_one_picture_needs_no_screen(aggregator: FakeAggregator, capsys: pytest.CaptureFixture[str]) -> None:
    aggregator.jobs["job-1"] = RUNNING
    assert main(["jobs", "--aggregator", aggregator.address]) == 0
    assert "\x1b" not in capsys.readouterr().out
