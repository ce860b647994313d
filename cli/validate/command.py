"""The command `tiermesh validate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli.output import Output
from cli.reading_progress import show_reading
from cli.validate.report import Cluster, make_report
from cli.validate.text import format_report
from mesh.backend import check_mesh_shape
from services.config.load import load_job_with_origins
from services.errors import Refused


def run(path: Path, overrides: Sequence[str], cluster: Cluster, output: Output) -> None:
    """Check a job's config, its data and its mesh, and print what the job would take.

    Raises:
        Refused: something is wrong, or the job needs more memory than the named chip has; the message names the first
            such setting.
    """
    with show_reading(output):
        job, origins = load_job_with_origins(path, overrides)
    config, notices = job.config, job.notices
    descriptor = check_mesh_shape(config.device.mesh_shape, config.device.backend)
    report, shortage = make_report(job, origins, cluster)
    if shortage is not None and cluster.chip is not None:
        raise Refused(shortage)
    notices += [shortage] if shortage is not None else []
    for notice in notices:
        output.warn(notice)
    for line in format_report(report):
        output.say(line)
    output.say("the config is valid")
    output.result(
        {
            "valid": True,
            **report,
            "mesh_graph_descriptor": str(descriptor) if descriptor else None,
            "notices": notices,
        }
    )
