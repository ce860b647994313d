"""`tiermesh plot`: curves of jobs as a picture."""

from __future__ import annotations

from pathlib import Path

import click

from cli.options import WholeNumber, client_options, option, path_option, step_range_options
from cli.output import Output
from services.errors import Refused
from services.jobs.target import AggregatorTarget


@click.command()
@click.argument("sources", metavar="JOB|FOLDER...", nargs=-1, required=True)
@path_option(
    "--output", "-o", "path", default=Path("plot.svg"), help="File to write, whose name ends with .svg."
)
@option(
    "--columns",
    default="loss,validation_loss",
    metavar="NAMES",
    help="Columns to draw (docs/use/metrics-history.md), for example loss,grad_norm.",
)
@step_range_options
@option("--log", is_flag=True, help="Make the vertical axes logarithmic.")
@option(
    "--smooth",
    "smooth_steps",
    type=WholeNumber(1, 1_000_000),
    default=1,
    metavar="STEPS",
    help="Draw the mean of so many steps up to each.",
)
@option("--title", help="Title of the picture.  [default: the jobs]")
@client_options
def plot(
    *,
    sources: tuple[str, ...],
    path: Path,
    columns: str,
    first_step: int,
    last_step: int,
    log: bool,
    smooth_steps: int,
    title: str | None,
    target: AggregatorTarget,
    output: Output,
) -> None:
    """Draw curves of jobs as a picture (SVG).

    A FOLDER is the --state-dir of `tiermesh local` or of an aggregator, or metrics/JOB in it. It needs no aggregator.
    """
    if path.suffix.lower() != ".svg":
        raise Refused(f"--output {path}: expected a name that ends with .svg; correct it")
    names = tuple(dict.fromkeys(name for each in columns.split(",") if (name := each.strip())))
    if not names:
        raise Refused("--columns: no names given, expected some, for example --columns loss,grad_norm")
    import asyncio

    from cli.plot.run import PlotOptions, run

    options = PlotOptions(sources, path, names, first_step, last_step, log, smooth_steps, title or "")
    asyncio.run(run(target, options, output))
