"""The command `tiermesh validate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli.output import Output
from cli.reading_progress import show_reading
from cli.validate.cluster import Cluster
from cli.validate.report import make_report
from cli.validate.screen import describe_verdict, format_screen
from cli.validate.text import format_report
from mesh.backend import check_mesh_shape
from services.config.load import load_job_with_origins
from services.errors import Refused


def run(
    path: Path, overrides: Sequence[str], cluster: Cluster, output: Output, *, in_full: bool = False
) -> None:
    """Check a job's config, its data and its mesh, and print what the job would take, or with `in_full` all of it.

    Raises:
        Refused: something is wrong, or the job needs more memory than the named chip has; the message names the first
            such setting.
    """
    with show_reading(output):
        job, origins = load_job_with_origins(path, overrides)
    config, notices = job.config, job.notices
    descriptor = check_mesh_shape(config.device.mesh_shape, config.device.backend)
    report, shortage, advice = make_report(job, origins, cluster)
    if shortage is not None and cluster.chip is not None:
        raise Refused(shortage)
    notices += [*([shortage] if shortage is not None else []), *advice]
    output.say(describe_verdict(report))
    for line in format_report(report) if in_full else format_screen(report):
        output.say(line)
    for notice in notices:
        output.warn(notice)
    output.result(
        {
            "valid": True,
            **report,
            "mesh_graph_descriptor": str(descriptor) if descriptor else None,
            "notices": notices,
        }
    )
