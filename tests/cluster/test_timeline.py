"""A job recorded with `--timeline` has every activity of a step, on clocks that agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.timeline.picture import write
from cli.timeline.stages import PipelineTrace
from cli.timeline.trace import Payload
from services.instrumentation.timeline import TimelineOptions
from tests.support.cluster.bits import Bits, bits, deep_config, spec_of, split_config
from tests.support.cluster.daemon import eventually
from tests.support.cluster.harness import Cluster

CHUNKS = {0, 1}
AT_WORKER = {
    ("device", "weights onto the mesh"),
    ("device", "weights complete"),
    ("device", "micro-batch"),
    ("device", "forward"),
    ("device", "backward"),
    ("device", "gradient ready"),
    ("send", "send"),
    ("receive", "weights"),
}
AT_OPTIMIZER = {("kernel", name) for name in ("stage", "COMMIT", "update")}
IN_3_TIERS = {("to optimizer", "send"), ("from optimizer", "weights")}


def read(path: Path) -> list[dict[str, Any]]:
    """Return the events, with their rows."""
    events = json.loads(path.read_text())["traceEvents"]
    rows = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    return [{**each, "row": rows[each["tid"]]} for each in events if each["ph"] != "M"]


@pytest.mark.long
@pytest.mark.parametrize("tiers", [2, 3])
def test_every_activity_of_a_step_is_recorded(
    tmp_path: Path, tiers: int, gpt_spec: str, undisturbed: Bits
) -> None:
    folder = tmp_path / "timeline"
    flags = TimelineOptions.parse(folder, "4-5").flags
    with Cluster(tmp_path, tiers=tiers, workers=1, options=(*flags, "--no-shared-memory")) as cluster:
        assert bits(cluster.finish(cluster.submit(gpt_spec))) == undisturbed
        files = ["worker-1.json", "aggregator.json"] + ["optimizer.json"] * (tiers == 3)
        eventually(lambda: all((folder / name).exists() for name in files), "the timelines' files")
    found = {name: read(folder / name) for name in files}
    worker, aggregator = found["worker-1.json"], found["aggregator.json"]
    optimizer = found.get("optimizer.json", aggregator)

    def kinds(events: list[dict[str, Any]]) -> set[tuple[str, str]]:
        return {(each["row"], each["name"]) for each in events}

    assert kinds(worker) >= AT_WORKER
    assert kinds(aggregator) >= {("from worker-1", "gradient"), ("to worker-1", "send")}
    assert kinds(optimizer) >= AT_OPTIMIZER
    if tiers == 3:
        assert kinds(aggregator) >= IN_3_TIERS and ("receive", "sum") in kinds(optimizer)

    def times(events: list[dict[str, Any]], row: str, step: int, name: str = "") -> dict[int, float]:
        return {
            each["args"]["chunk"]: each["ts"]
            for each in events
            if each["row"] == row and each["args"].get("step") == step and name in each["name"]
        }

    sent, arrived = times(worker, "send", 5), times(aggregator, "from worker-1", 5)
    assert sent.keys() == arrived.keys() == CHUNKS
    assert all(sent[chunk] <= arrived[chunk] for chunk in CHUNKS), "gradients go up"
    (commit,) = [each["ts"] for each in optimizer if each["name"] == "COMMIT" and each["args"]["step"] == 5]
    down, there = times(aggregator, "to worker-1", 6), times(worker, "receive", 6)
    assert down.keys() == there.keys() == CHUNKS
    trace = write(folder, tmp_path / "merged")
    assert trace.workers == ["worker-1"] and 5 in trace.steps
    assert all(0 <= trace.overlap(payload).share <= 1 for payload in Payload)
    ready = min(times(worker, "device", 5, "gradient ready").values())
    backward = [(each["ts"], each["ts"] + each["dur"]) for each in worker if each["name"] == "backward"]
    assert any(begin <= ready <= end for begin, end in backward), "a chunk can leave amid a backward pass"
    assert (tmp_path / "merged" / "step.svg").exists()
    assert all(arrived[chunk] <= commit <= down[chunk] <= there[chunk] for chunk in CHUNKS), "weights go down"


@pytest.mark.long
def test_a_pipelines_passes_waits_and_arrays_are_recorded(tmp_path: Path, corpus: Path) -> None:
    folder = tmp_path / "timeline"
    flags = TimelineOptions.parse(folder, "2-3").flags
    config = split_config(deep_config(corpus, 2, max_steps=6, gradient_accumulation_steps=4), (1, 1))
    with Cluster(tmp_path, workers=3, options=flags) as cluster:
        cluster.wait_workers(3)
        cluster.finish(cluster.submit(spec_of(tmp_path, config)))
        files = ["worker-1.json", "worker-2.json", "aggregator.json"]
        eventually(lambda: all((folder / name).exists() for name in files), "the timelines' files")
    trace = write(folder, tmp_path / "merged")
    assert trace.workers == ["worker-1", "worker-2"], "worker-3 is a spare"
    assert trace.steps
    for step in trace.steps:
        stages = PipelineTrace(trace).stages(step)
        assert [(each.worker, each.ranges) for each in stages] == [("worker-1", (0,)), ("worker-2", (1,))]
        for each in stages:
            assert min(each.forward_seconds, each.backward_seconds, each.waiting_seconds) > 0
            assert 0 < each.idle_share < 1
    sent = [each for each in PipelineTrace(trace).transfers if each.step == trace.steps[0]]
    assert len(sent) == 2 * 4, "an activation and its gradient of each micro-batch"
    exposure = PipelineTrace(trace).exposure(trace.steps)
    assert exposure is not None and 0 <= exposure.hidden_share <= 1
