"""The stages of a pipeline in a timeline: passes, waits, the bubble, and which transfers were waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.timeline.picture import draw
from cli.timeline.stages import PipelineTrace
from cli.timeline.trace import StepTrace
from tests.cli.timeline.test_trace import TimelineFile


def record(folder: Path) -> None:
    """Write steps 4 and 5 of two stages with two micro-batches, and a spare.

    A forward pass takes 1 s, a backward pass 2 s, a transfer 0.5 s: stage 1 waits for the first activation alone, and
    stage 0 for both gradients.
    """
    first, last = TimelineFile("worker", "a"), TimelineFile("worker", "b")
    spare, aggregator = TimelineFile("worker", "c"), TimelineFile("aggregator", "hub")
    for step, begin in ((4, 0.0), (5, 20.0)):

        def run(
            file: TimelineFile, name: str, index: int, start: float, stop: float, begin: float = begin
        ) -> None:
            file.add("device", name, begin + start, begin + stop, range=int(file is last), micro_batch=index)

        def send(kind: str, index: int, start: float, begin: float = begin, step: int = step) -> None:
            sender, receiver = (first, last) if kind == "activation" else (last, first)
            names = ("b", "a") if kind == "activation" else ("a", "b")
            facts = {"step": step, "kind": kind, "lease": step, "range": 1, "micro_batch": index}
            sender.add(f"to {names[0]}", "array", begin + start, **facts)
            receiver.add(f"from {names[1]}", "array", begin + start + 0.5, **facts)

        run(first, "forward", 0, 0.0, 1.0)
        send("activation", 0, 1.0)
        run(first, "forward", 1, 1.0, 2.0)
        send("activation", 1, 2.0)
        run(last, "forward", 0, 1.5, 2.5)
        run(last, "backward", 0, 2.5, 4.5)
        send("gradient", 0, 4.5)
        run(last, "forward", 1, 4.5, 5.5)
        run(last, "backward", 1, 5.5, 7.5)
        send("gradient", 1, 7.5)
        run(first, "backward", 0, 5.0, 7.0)
        run(first, "backward", 1, 8.0, 10.0)
        for start, stop in ((2.0, 5.0), (7.0, 8.0)):
            first.add("device", "wait for stage", begin + start, begin + stop, step=step, what="gradient")
        last.add("device", "wait for stage", begin, begin + 1.5, step=step, what="activation")
        for file in (first, last):
            file.add("device", "micro-batch", begin, begin + 10.0, step=step, index=0, last=True)
        aggregator.add("kernel", "COMMIT", begin + 11.0, step=step)
    spare.add("device", "weights complete", 1.0, step=4)
    for file in (first, last, spare, aggregator):
        file.write(folder)


def test_passes_waits_and_the_bubble_of_each_stage(tmp_path: Path) -> None:
    record(tmp_path)
    trace = StepTrace(tmp_path)
    assert (trace.workers, trace.steps) == (["worker a", "worker b"], [4]), "a spare computes no step"
    stages = PipelineTrace(trace).stages(4)
    assert [(each.worker, each.ranges) for each in stages] == [("worker a", (0,)), ("worker b", (1,))]
    for each, waiting in zip(stages, (4.0, 1.5), strict=True):
        assert (each.forward_seconds, each.backward_seconds) == pytest.approx((2.0, 4.0))
        assert each.waiting_seconds == pytest.approx(waiting)
        assert each.idle_share == pytest.approx(0.4), "6 of the 10 s from the first pass to the last"


def test_transfers_are_hidden_unless_their_receiver_waits(tmp_path: Path) -> None:
    record(tmp_path)
    trace = StepTrace(tmp_path)
    found = PipelineTrace(trace).exposure(trace.steps)
    assert found is not None
    assert (found.transfer_seconds, found.exposed_seconds) == pytest.approx((2.0, 1.5))
    assert found.hidden_share == pytest.approx(0.25), "the second activation's, of four"


def test_without_a_pipeline_there_are_no_stages(tmp_path: Path) -> None:
    worker, aggregator = TimelineFile("worker", "a"), TimelineFile("aggregator", "hub")
    for step, begin in ((4, 0.0), (5, 9.0)):
        worker.add("device", "forward", begin, begin + 1.0)
        worker.add("device", "micro-batch", begin, begin + 2.0, step=step, index=0, last=True)
        aggregator.add("kernel", "COMMIT", begin + 3.0, step=step)
    worker.write(tmp_path)
    aggregator.write(tmp_path)
    trace = StepTrace(tmp_path)
    assert PipelineTrace(trace).stages(4) == []
    assert PipelineTrace(trace).exposure(trace.steps) is None


def test_the_picture_has_waits_and_arrays(tmp_path: Path) -> None:
    record(tmp_path)
    picture = draw(StepTrace(tmp_path), 4)
    assert "worker b: from other stages" in picture
    assert "activation of micro-batch 1 of step 4, 500.00 ms" in picture
    assert "wait for stage, step 4, what gradient, 3000.00 ms" in picture
