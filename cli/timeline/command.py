"""`tiermesh timeline`: merge the timelines of a folder, draw a step, say what computing hides."""

from __future__ import annotations

from pathlib import Path

from cli.output import Output
from cli.timeline.picture import PICTURE_FILE, TRACE_FILE, write
from cli.timeline.trace import Payload


def run(folder: Path, into: Path | None, output: Output) -> None:
    """Write the merged trace and the picture, and print how much of the communication is hidden.

    Args:
        folder: folder of the daemons' timeline files.
        into: folder for the results; None for `merged` in `folder`.
        output: where the result goes.

    Raises:
        Refused: the folder has no timelines or no complete step, or the results can't be written.
    """
    into = folder / "merged" if into is None else into
    trace = write(folder, into)
    overlaps = {payload: trace.overlap(payload) for payload in Payload}
    steps = trace.steps
    for payload, overlap in overlaps.items():
        output.say(
            f"{payload.value}: {overlap.share:.0%} of {1e3 * overlap.transfer_seconds:.1f} ms on the wire hidden by "
            f"{payload.hidden_by} passes"
        )
    output.say(f"complete steps: {steps[0]} to {steps[-1]}")
    output.say(f"trace for a viewer: {into / TRACE_FILE}")
    output.say(f"picture of step {steps[len(steps) // 2]}: {into / PICTURE_FILE}")
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
        }
    )
