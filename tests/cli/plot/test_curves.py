"""Curves: which steps are gaps, what smoothing does with them, and which folders have histories."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cli.plot import curves as curves_module
from cli.plot.curves import History, find_histories, smooth
from services.errors import Failed, Refused
from tests.support.fake_aggregator import metrics_rows

NAN, INF = math.nan, math.inf


def history(*parts: dict[str, list[float]], columns: tuple[str, ...] = ("loss",)) -> History:
    made = History("job-1", columns)
    for part in parts:
        made.add(metrics_rows(1, **part))
    return made


def test_what_is_not_finite_is_a_gap_and_counted() -> None:
    found = history(
        {"step": [0.0, 1.0, 2.0, 3.0], "loss": [NAN, 4.0, NAN, INF]},
        {"step": [4.0, 5.0], "loss": [-1.0, 2.0]},
    )
    curve = found.find("loss")
    assert curve.steps.tolist() == [1, 2, 3, 4, 5], "step 0 has an evaluation alone"
    assert curve.gaps.tolist() == [2, 3]
    assert found.find("loss", positive=True).gaps.tolist() == [2, 3, 4], "a logarithmic axis ends above 0"
    assert curve.to_json() == {"job": "job-1", "column": "loss", "steps": 5, "gaps": 2}


def test_steps_without_an_evaluation_are_no_gaps() -> None:
    part = {"step": [0.0, 1.0, 2.0, 3.0], "validation_loss": [5.0, NAN, 4.0, INF]}
    curve = history(part, columns=("validation_loss",)).find("validation_loss")
    assert (curve.steps.tolist(), curve.gaps.tolist()) == ([0, 2, 3], [3])


def test_a_mean_leaves_gaps_out() -> None:
    values = np.array([1.0, 3.0, NAN, 5.0, 7.0])
    assert smooth(values, 1) is values
    np.testing.assert_array_equal(smooth(values, 2), [1.0, 2.0, NAN, 5.0, 6.0])
    np.testing.assert_array_equal(smooth(values, 100), [1.0, 2.0, NAN, 3.0, 4.0])
    assert not len(smooth(np.zeros(0), 3))


@pytest.mark.parametrize(
    "part",
    [
        {"step": [1.0], "loss": []},
        {"step": [1.0]},
        {"loss": [1.0]},
    ],
)
def test_an_answer_without_the_columns_is_refused(part: dict[str, list[float]]) -> None:
    with pytest.raises(Failed, match=r"job-1: expected columns step, loss of equal lengths"):
        history(part)


def test_the_number_of_steps_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves_module, "MOST_STEPS", 2)
    with pytest.raises(Refused, match=r"more than 2 steps.*--from and --to"):
        history({"step": [1.0, 2.0], "loss": [1.0, 1.0]}, {"step": [3.0], "loss": [1.0]})


def test_folders_with_histories_are_found(tmp_path: Path) -> None:
    for job in ("b", "a"):
        (tmp_path / "metrics" / job).mkdir(parents=True)
        (tmp_path / "metrics" / job / "steps").touch()
    (tmp_path / "metrics" / "empty").mkdir()
    both = [tmp_path / "metrics" / job for job in "ab"]
    assert find_histories(tmp_path) == find_histories(tmp_path / "metrics") == both
    assert find_histories(both[0]) == [both[0]]
    checkpoint = tmp_path / "step-00000500"
    checkpoint.mkdir()
    for folder in (checkpoint, tmp_path / "metrics" / "empty", tmp_path / "none"):
        with pytest.raises(Refused, match=r"has no metrics, expected the --state-dir"):
            find_histories(folder)
