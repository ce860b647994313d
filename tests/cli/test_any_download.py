"""Downloads write nothing outside the folder, whatever names an aggregator sends."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cli.download import MAX_FILES
from cli.main import main
from protos import jobs_pb2
from tests.support.fake_aggregator import FakeAggregator

NAMES = st.sampled_from(
    [
        "a",
        "./a",
        "a/b",
        "..",
        "../x",
        "/etc/x",
        "a/../../x",
        "",
        ".",
        "a\\b",
        "~",
        "n" * 110,
        "a//b",
        "state.json",
    ]
) | st.text(alphabet="ab./\\", max_size=8)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.dictionaries(NAMES, st.binary(max_size=20), max_size=5))
@example(files={f"f{number}": b"x" for number in range(MAX_FILES + 1)})
def test_any_names(
    tmp_path_factory: pytest.TempPathFactory,
    aggregator: FakeAggregator,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, bytes],
) -> None:
    outer = tmp_path_factory.mktemp("outer")
    aggregator.jobs["job-1"] = jobs_pb2.Job(id="job-1")
    aggregator.files = files
    assert main(["download", "job-1", str(outer / "inner"), "--aggregator", aggregator.address]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    left = [path for path in outer.rglob("*") if path.is_file()]
    assert left == [], "no such files are a checkpoint"
    assert {path.name for path in outer.iterdir()} <= {"inner"}
