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
from services.files.code_archive import hash_archive, unpack_code
from services.jobs.own_code import read_code
from services.printable import counted


def run(
    path: Path,
    overrides: Sequence[str],
    cluster: Cluster,
    output: Output,
    *,
    code: Path | None = None,
    in_full: bool = False,
) -> None:
    """Check a job's config, its data and its mesh, and print what the job would take, or with `in_full` all of it.

    Args:
        path: the job's file.
        overrides: settings that override the file's.
        cluster: what the job would run on.
        output: where the result goes.
        code: folder with code to send with the job, which is checked; None for none.
        in_full: whether to print all settings and figures.

    Raises:
        Refused: something is wrong, or the job needs more memory than the named chip has; the message names the first
            such setting.
    """
    with show_reading(output):
        job, origins = load_job_with_origins(path, overrides)
    config, notices = job.config, job.notices
    archive = b"" if code is None else read_code(code, config)[1]
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
    if archive:
        output.say(
            f"code of the job: {counted(len(unpack_code(archive)), 'file')}, {len(archive)} bytes, SHA-256 "
            f"{hash_archive(archive)[:12]}"
        )
    output.result(
        {
            "valid": True,
            **report,
            "code_sha256": hash_archive(archive) if archive else None,
            "mesh_graph_descriptor": str(descriptor) if descriptor else None,
            "notices": notices,
        }
    )
