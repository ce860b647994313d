"""`tiermesh generate`, `validate`, `measure`, `check` and `timeline`: the commands about models, meshes and links."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.job_commands import job_config
from cli.options import (
    DEFAULT_MFU,
    FiniteRange,
    LinkRate,
    WholeNumber,
    allow_models_option,
    client_options,
    code_option,
    option,
    output_options,
    path_option,
)
from cli.output import Output
from services.errors import Refused
from services.sizing.chips import CHIPS

if TYPE_CHECKING:
    from services.jobs.target import AggregatorTarget


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@option("--prompt", default="\n", show_default="an empty line", help="Text to continue.")
@option("--max-new-tokens", type=WholeNumber(min=1), default=200, help="Number of tokens to generate.")
@option(
    "--temperature",
    type=FiniteRange(min=0),
    help="Randomness; 0 always takes the likeliest token.  [default: the job's]",
)
@option(
    "--top-k",
    type=WholeNumber(min=0),
    help="Draw from this many likeliest tokens; 0 draws from all.  [default: the job's]",
)
@option(
    "--top-p",
    type=FiniteRange(min=0, max=1, min_open=True),
    help="Draw from the likeliest tokens that together have this probability.  [default: the job's]",
)
@option(
    "--repetition-penalty",
    type=FiniteRange(min=0, min_open=True),
    help="Values above 1 make repetitions less likely.  [default: the job's]",
)
@option("--seed", type=WholeNumber(min=0), default=0, help="Seed of the random draws.")
@output_options
def generate(
    *,
    checkpoint: Path,
    prompt: str,
    max_new_tokens: int,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    repetition_penalty: float | None,
    seed: int,
    output: Output,
) -> None:
    """Generate text with a trained model.

    CHECKPOINT is a folder step-XXXXXXXX, a folder that contains such folders, or a GPT-2 or Llama model saved
    by Hugging Face's tools.
    """
    from cli.generate import run

    run(
        checkpoint,
        prompt,
        output,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )


@click.command()
@job_config
@option(
    "--workers",
    type=WholeNumber(min=1, max=65536),
    show_default="the job's num_workers",
    help="Number of worker daemons that the figures are for.",
)
@option(
    "--tiers",
    type=click.Choice(["2", "3"]),
    default="3",
    help="3 for an optimizer daemon of its own, 2 for one inside the aggregator.",
)
@option(
    "--shards",
    type=WholeNumber(min=0, max=64),
    default=0,
    help="Number of shards that tensors are split over (2 tiers); 0 for none.",
)
@option(
    "--chip",
    type=click.Choice(list(CHIPS)),
    help="Chips of the workers; a job that needs more memory than one has is refused.",
)
@option(
    "--link",
    type=LinkRate(),
    help="Rate of each host's link, such as 10G; then the time of a step and of the job is shown.",
)
@option(
    "--mfu",
    type=FiniteRange(min=0, max=1, min_open=True),
    default=DEFAULT_MFU,
    help="Share of the chips' peak that computing is assumed to reach.",
)
@path_option("--measured", help="Result of tiermesh measure --json, in place of --mfu.")
@code_option
@option("--long", "in_full", is_flag=True, help="Show all settings and figures.")
@output_options
def validate(
    *,
    path: Path,
    overrides: tuple[str, ...],
    workers: int | None,
    tiers: str,
    shards: int,
    chip: str | None,
    link: float | None,
    mfu: float,
    measured: Path | None,
    code: Path | None,
    in_full: bool,
    output: Output,
) -> None:
    """Check a job's config without a cluster, and show what the job would take."""
    from cli.validate.cluster import Cluster
    from cli.validate.command import run

    cluster = Cluster(workers, int(tiers), shards, chip, link, mfu, measured)
    run(path, overrides, cluster, output, code=code, in_full=in_full)


@click.command()
@job_config
@option(
    "--passes", type=WholeNumber(min=1, max=1000), default=5, help="Number of timed passes of each range."
)
@option(
    "--limit-seconds",
    type=FiniteRange(min=1, max=86400),
    default=600,
    help="Limit on the time of all passes.",
)
@path_option(
    "--data-dir", help="Folder that is searched for corpora and tokenizers missing at the job's path."
)
@allow_models_option
@output_options
def measure(
    *,
    path: Path,
    overrides: tuple[str, ...],
    passes: int,
    limit_seconds: float,
    data_dir: Path | None,
    allowed_models: tuple[str, ...],
    output: Output,
) -> None:
    """Time the blocks of a job's model on this host's mesh, and balance its pipeline.

    The result is the line blocks_per_rank to write into the job's YAML file. Only one or two blocks are on the mesh
    at a time.
    """
    from cli.measure.command import MeasureOptions, run

    run(path, overrides, MeasureOptions(passes, limit_seconds, data_dir, allowed_models), output)


@click.command()
@option(
    "--mesh",
    "of_mesh",
    is_flag=True,
    help="Check the mesh of this host.",
)
@option(
    "--cluster",
    "of_cluster",
    is_flag=True,
    help="Check the mesh of every worker and all links between roles, while no job runs.",
)
@option(
    "--mesh-shape",
    metavar="ROWSxCOLUMNS",
    help="Shape of each mesh.  [default: that of a worker's last job, else all devices, as ttnn arranges them]",
)
@option(
    "--backend", default="auto", help="Device module: auto, ttnn or emulator, as in device_config.backend."
)
@client_options
def check(
    *,
    of_mesh: bool,
    of_cluster: bool,
    mesh_shape: str | None,
    backend: str,
    target: AggregatorTarget,
    output: Output,
) -> None:
    """Check the mesh of this host, or all meshes and links of a cluster.

    --mesh runs an all-reduce with a known sum along each axis, and prints which device is where. --cluster does so on
    every worker, sends known values both ways over each link, and prints latency and bandwidth.
    """
    if of_mesh == of_cluster:
        chosen = "two checks selected" if of_mesh else "no check selected"
        raise Refused(
            f"check: {chosen}; give --mesh to check the mesh of this host, or --cluster for all meshes and links"
        )
    if of_cluster:
        import asyncio

        from cli.cluster_check import run as run_cluster

        asyncio.run(run_cluster(target, mesh_shape, backend, output))
        return
    from cli.check import run

    run(mesh_shape, backend, output)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@path_option("--output", "into", help="Folder for the results.  [default: FOLDER/merged]")
@option("--job", default="", metavar="JOB", help="Job of the step, if several were recorded.")
@output_options
def timeline(*, folder: Path, into: Path | None, job: str, output: Output) -> None:
    """Merge the timelines that daemons wrote to FOLDER, and draw a step of them.

    The results are timeline.json for a trace viewer and step.svg, a picture of one step.
    """
    from cli.timeline.command import run

    run(folder, into, job, output)
