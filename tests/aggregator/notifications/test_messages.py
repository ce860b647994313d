"""The two forms of a message, with whatever texts a job has."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.events import NoticeKind
from aggregator.notifications.messages import Notice, encode
from protos.jobs_pb2 import FAILED, Job, JobEvent


def notice(
    text: str = "failed: out of memory", name: str = "tiny", loss: float = 2.5, repeated: int = 0
) -> Notice:
    job = Job(id="1124-1", name=name, owner="ann", state=FAILED, step=7, steps=10, loss=loss)
    return Notice.of_event(
        NoticeKind.FAILED, JobEvent(job=job, kind="state", seconds=1.5, text=text), repeated
    )


def test_json_has_all_that_is_known() -> None:
    assert json.loads(encode(notice(), "json")) == {
        "id": "1124-1:failed:7:1.500",
        "event": "failed",
        "job": "1124-1",
        "name": "tiny",
        "owner": "ann",
        "state": "failed",
        "step": 7,
        "steps": 10,
        "loss": 2.5,
        "text": "failed: out of memory",
        "unix_seconds": 1.5,
        "repeated": 0,
    }


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_null(loss: float) -> None:
    assert json.loads(encode(notice(loss=loss), "json"))["loss"] is None


def test_slack_gets_a_line() -> None:
    text = "failed: tiny (1124-1), step 7 of 10, loss 2.5000: failed: out of memory (3 more were not told)"
    assert json.loads(encode(notice(repeated=3), "slack")) == {"text": text, "mrkdwn": False}


@given(st.text(), st.text())
def test_no_text_is_a_link_or_a_mention_in_slack(text: str, name: str) -> None:
    said = json.loads(encode(notice(text, name), "slack"))["text"]
    assert not set("<>") & set(said) and said.isprintable() and len(said) < 6000
    stored = json.loads(json.dumps(notice(text, name).to_fields()))
    assert Notice.from_fields(stored) == notice(text, name)
