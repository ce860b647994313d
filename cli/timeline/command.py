"""`tiermesh timeline`: merge the timelines of a folder, draw a step, say what computing hides."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from cli.output import Output
from cli.timeline.picture import PICTURE_FILE, TRACE_FILE, write
from cli.timeline.stages import PipelineTrace
from cli.timeline.trace import Payload


def run(folder: Path, into: Path | None, job: str, output: Output) -> None:
    """Write the merged trace and the picture, and print how much of the communication is hidden.

    Args:
        folder: folder of the daemons' timeline files.
        into: folder for the results; None for `merged` in `folder`.
        job: id of the job, or a part of it; empty for the only one that was recorded.
        output: where the result goes.

    Raises:
        Refused: the folder has no timelines or no complete step, or the results can't be written.
    """
    into = folder / "merged" if into is None else into
    trace = write(folder, into, job)
    overlaps = {payload: trace.overlap(payload) for payload in Payload}
    steps = trace.steps
    pipeline = PipelineTrace(trace)
    middle = steps[len(steps) // 2]
    stages, exposure = pipeline.stages(middle), pipeline.exposure(steps)
    for payload, overlap in overlaps.items():
        output.say(
            f"{payload.value}: {overlap.share:.0%} of {1e3 * overlap.transfer_seconds:.1f} ms on the wire hidden by "
            f"{payload.hidden_by} passes"
        )
    if exposure is not None:
        moving = f"{1e3 * exposure.transfer_seconds:.1f} ms between stages"
        output.say(f"activations: {exposure.hidden_share:.0%} of {moving} hidden by other passes")
    for each in stages:
        ranges = ", ".join(map(str, each.ranges))
        output.say(
            f"step {middle}, {each.worker}, range {ranges}: {1e3 * each.forward_seconds:.1f} ms forward, "
            f"{1e3 * each.backward_seconds:.1f} ms backward, {1e3 * each.waiting_seconds:.1f} ms waiting for stages; "
            f"bubble {each.idle_share:.0%}"
        )
    output.say(f"complete steps: {steps[0]} to {steps[-1]}")
    output.say(f"trace for a viewer: {into / TRACE_FILE}")
    output.say(f"picture of step {middle}: {into / PICTURE_FILE}")
    output.result(
        {
            "steps": steps,
            "trace": str(into / TRACE_FILE),
            "picture": str(into / PICTURE_FILE),
            **{
                payload.value: {
                    "hidden_share": round(overlap.share, 4),
                    "hidden_seconds": overlap.hidden_seconds,
                    "transfer_seconds": overlap.transfer_seconds,
                }
                for payload, overlap in overlaps.items()
            },
            "stages": [asdict(each) for each in stages],
            "activations": None
            if exposure is None
            else {
                "hidden_share": round(exposure.hidden_share, 4),
                "exposed_seconds": exposure.exposed_seconds,
                "transfer_seconds": exposure.transfer_seconds,
            },
        }
    )
