"""`tiermesh worker`, `aggregator`, `optimizer` and `web`: run one role daemon in the foreground."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cli.options import (
    AGGREGATOR_ADDRESS,
    ANY_PORT,
    OPTIMIZER_ADDRESS,
    OWN_TOKEN_FILE,
    WEB_ADDRESS,
    Command,
    FiniteRange,
    WholeNumber,
    address_option,
    aggregator_option,
    allow_models_option,
    daemon_options,
    option,
    path_option,
)
from cli.retention_options import read_retention
from services.caps import (
    GB,
    MOST_DOWNLOAD_MB_PER_SECOND,
    MOST_JOBS,
    MOST_LOG_MB,
    MOST_PARAMETERS,
    MOST_RUNNING_JOBS,
    MOST_UPLOAD_GB,
    MOST_UPLOADS,
    MOST_WORKERS_PER_PERSON,
    Caps,
)
from services.errors import Refused
from services.runtime.host_memory import read_host_memory
from services.timeouts import STANDARD_HEARTBEAT_SECONDS, Timeouts

if TYPE_CHECKING:
    from aggregator.core.retention import Limits, Part


BYTES_PER_PARAMETER = 20
"""Memory of an aggregator with 2 tiers for a parameter: AdamW's weight, gradient and two arrays, and the weight for
workers, all in float32. A job with a larger model could have it killed for memory, and again after each restart."""
JOIN_SOCKET = Path("/run/tiermesh/worker.sock")
"""Default path of the socket at which processes join a worker."""
DEFAULT_CACHE_GB = 200
"""Default size of a worker's cache of files, in GB."""


def _read_timeouts(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    """Return the timeouts of several texts NAME=SECONDS; raise Refused for another form."""
    timeouts = {}
    for text in given:
        name, _equals, seconds = text.partition("=")
        try:
            timeouts[name] = float(seconds)
        except ValueError:
            raise Refused(
                f"--timeout {text}: expected NAME=SECONDS, for example --timeout stall=900"
            ) from None
    return timeouts


def make_worker_command(make_step: str = "") -> click.Command:
    """Return the command `tiermesh worker`; tests and benchmarks replace its step.

    Args:
        make_step: `module:name` of what makes the training step of a job; empty for `training.step:TrainingStep`.
    """

    @click.command("worker")
    @aggregator_option
    @path_option(
        "--data", "data_dir", help="Folder to search for data files that are not at the path a job names."
    )
    @path_option(
        "--state-dir",
        default=Path(".tiermesh/worker"),
        help="Folder where this worker keeps which cluster it belongs to.",
    )
    @path_option(
        "--cache-dir",
        show_default="cache in --state-dir",
        help="Folder of the files that this worker has read from the aggregator; workers may share it.",
    )
    @option(
        "--cache-gb",
        type=WholeNumber(1, MOST_UPLOAD_GB),
        default=DEFAULT_CACHE_GB,
        help="Largest size of these files in GB; the longest unused ones make room.",
    )
    @option(
        "--advertise",
        default="",
        metavar="HOST",
        show_default="host of --listen, or the one that the aggregator sees",
        help="Name or address at which the workers of a pipeline's other stages reach this one.",
    )
    @allow_models_option
    @option(
        "--accept-code",
        "accepts_code",
        is_flag=True,
        help="Import code that comes with jobs (`tiermesh submit --code`). It runs with the rights of this process.",
    )
    @option(
        "--external",
        is_flag=True,
        help="Let a user's process compute the gradients, which joins at --socket (docs/use/own-loop.md).",
    )
    @path_option(
        "--socket",
        show_default=str(JOIN_SOCKET),
        help="Unix socket at which processes join (with --external).",
    )
    @option(
        "--allow-user",
        "allowed_users",
        multiple=True,
        metavar="USER|@GROUP",
        help="User, by name or number, or group that may join; repeatable.  [default: the user of this process]",
    )
    @daemon_options(ANY_PORT)
    def command(
        *,
        aggregator: str,
        data_dir: Path | None,
        state_dir: Path,
        cache_dir: Path | None,
        cache_gb: int,
        advertise: str,
        allowed_models: tuple[str, ...],
        accepts_code: bool,
        external: bool,
        socket: Path | None,
        allowed_users: tuple[str, ...],
        daemon: dict[str, Any],
    ) -> int:
        """Run a worker, which computes gradients on this host's mesh."""
        _check_external(external)
        from worker.daemon import WorkerOptions, run

        options = WorkerOptions(
            aggregator=aggregator,
            data_dir=data_dir,
            state_dir=state_dir,
            cache_dir=cache_dir or state_dir / "cache",
            cache_bytes=cache_gb * GB,
            advertise=advertise,
            allowed_models=allowed_models,
            accepts_code=accepts_code,
            join_socket=(socket or JOIN_SOCKET) if external else None,
            allowed_users=allowed_users,
            **daemon,
        )
        return run(options, make_step=make_step)

    return command


_OF_EXTERNAL = {"--socket": "socket", "--allow-user": "allowed_users"}
_OF_OTHERS = {"--data": "data_dir", "--allow-models": "allowed_models", "--accept-code": "accepts_code"}
"""Parameters of the command by their flags."""


def _check_external(external: bool) -> None:
    """Reject flags of an external worker without `--external`, and those of others with it (Refused).

    A host's environment may have them for its other workers.
    """
    context = click.get_current_context()
    for flag, name in (_OF_OTHERS if external else _OF_EXTERNAL).items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise Refused(
                f"{flag}: given with --external, but the process that joins has the model and the data; remove it"
                if external
                else f"{flag}: given without --external, but only external workers are joined; add --external"
            )


worker = make_worker_command()


def _caps_options(command: Command) -> Command:
    """Add the caps on what people can take from an aggregator; the command gets `caps`."""

    @option(
        "--max-queued-jobs",
        type=WholeNumber(1, MOST_JOBS),
        default=Caps.queued_jobs,
        help="Largest number of jobs that are queued, running or paused.",
    )
    @option(
        "--max-jobs-per-person",
        type=WholeNumber(1, MOST_JOBS),
        default=Caps.jobs_per_person,
        help="Largest number of them that one person has.",
    )
    @option(
        "--max-log-mb",
        type=WholeNumber(1, MOST_LOG_MB),
        default=Caps.log_mb,
        help="Largest size of a job's log in MB; what doesn't fit is removed from its middle.",
    )
    @option(
        "--max-download-mb-per-second",
        type=WholeNumber(1, MOST_DOWNLOAD_MB_PER_SECOND),
        help="Largest bandwidth of all downloads together, in MB a second.  [default: no cap]",
    )
    @option(
        "--max-uploads",
        type=WholeNumber(1, MOST_UPLOADS),
        default=Caps.uploads,
        help="Largest number of files that people have uploaded for their jobs.",
    )
    @option(
        "--max-uploads-per-person",
        type=WholeNumber(1, MOST_UPLOADS),
        default=Caps.uploads_per_person,
        help="Largest number of them that one person has uploaded.",
    )
    @option(
        "--max-upload-gb",
        type=WholeNumber(1, MOST_UPLOAD_GB),
        default=Caps.upload_gb,
        help="Largest size of all of them together, in GB.",
    )
    @option(
        "--max-upload-gb-per-person",
        type=WholeNumber(1, MOST_UPLOAD_GB),
        default=Caps.upload_gb_per_person,
        help="Largest size of those of one person, in GB.",
    )
    @option(
        "--max-parameters",
        type=WholeNumber(1, MOST_PARAMETERS),
        show_default="1 for each 20 bytes of this host's memory",
        help="Largest number of parameters of a job's model.",
    )
    @option(
        "--max-running-jobs",
        type=WholeNumber(1, MOST_RUNNING_JOBS),
        default=Caps.running_jobs,
        help="Largest number of jobs that run at once.",
    )
    @option(
        "--max-workers-per-person",
        type=WholeNumber(1, MOST_WORKERS_PER_PERSON),
        help="Largest number of workers that the jobs of one person have at once.  [default: no cap]",
    )
    @functools.wraps(command)
    def with_caps(
        *arguments: Any,
        max_queued_jobs: int,
        max_jobs_per_person: int,
        max_log_mb: int,
        max_download_mb_per_second: int | None,
        max_uploads: int,
        max_uploads_per_person: int,
        max_upload_gb: int,
        max_upload_gb_per_person: int,
        max_parameters: int | None,
        max_running_jobs: int,
        max_workers_per_person: int | None,
        **rest: Any,
    ) -> Any:
        caps = Caps(
            max_queued_jobs,
            max_jobs_per_person,
            max_log_mb,
            max_download_mb_per_second,
            max_uploads,
            max_uploads_per_person,
            max_upload_gb,
            max_upload_gb_per_person,
            max_parameters or read_host_memory().total_bytes // BYTES_PER_PARAMETER,
            max_running_jobs,
            max_workers_per_person,
        )
        return command(*arguments, caps=caps, **rest)

    return with_caps


@click.command()
@address_option(
    "--optimizer",
    help="Address of the optimizer (3 tiers); without it, the optimizer runs in this process (2 tiers).",
)
@address_option(
    "--shards",
    several=True,
    default="",
    show_default=False,
    help="Addresses of the shards that tensors are split over (2 tiers).  [default: none]",
)
@option(
    "--shard",
    is_flag=True,
    help="Run as a shard, which holds part of the tensors for an aggregator with --shards.",
)
@option(
    "--standby",
    is_flag=True,
    help="Run as a standby, which takes over when the aggregator of this state dir fails.",
)
@path_option(
    "--state-dir",
    default=Path(".tiermesh/aggregator"),
    help="Folder for the queue and, with 2 tiers, checkpoints.",
)
@option(
    "--heartbeat-seconds",
    type=FiniteRange(min=0.1, max=600),
    default=STANDARD_HEARTBEAT_SECONDS,
    help="Time between heartbeats; a worker is lost after 2.5 of them without a message.",
)
@option(
    "--timeout",
    "timeouts",
    multiple=True,
    metavar="NAME=SECONDS",
    callback=_read_timeouts,
    help="Override a timeout (docs/operate/limits.md lists them); repeatable.",
)
@option(
    "--retain",
    multiple=True,
    metavar="PART.LIMIT=VALUE",
    callback=read_retention,
    help="Limit on what ended jobs leave (docs/operate/queue.md), for example logs.older-than=90d; repeatable.",
)
@path_option(
    "--data-dir",
    help="Folder of corpora, tokenizers and checkpoints that workers may read from here by their SHA-256.",
)
@path_option("--record", help="File to record the inputs and outputs of the core in, for replay.")
@path_option("--tokens", help="File of people's tokens, as `tiermesh tokens issue` writes it.")
@path_option(
    "--notify-targets",
    help="File of webhooks that jobs may name as `notify` (docs/operate/monitoring.md), which only this user can read.",
)
@address_option(
    "--people-listen",
    default="",
    show_default=False,
    help="Further address with TLS, for people that show a token in place of a certificate.  [default: none]",
)
@_caps_options
@daemon_options(AGGREGATOR_ADDRESS)
def aggregator(
    *,
    optimizer: str | None,
    shards: str,
    shard: bool,
    standby: bool,
    state_dir: Path,
    heartbeat_seconds: float,
    timeouts: dict[str, float],
    retain: dict[Part, Limits],
    data_dir: Path | None,
    record: Path | None,
    notify_targets: Path | None,
    people_listen: str,
    caps: Caps,
    daemon: dict[str, Any],
) -> int:
    """Run an aggregator, which queues jobs and leads the workers."""
    _check_roles(
        {
            "--shards": shards,
            "--optimizer": optimizer,
            "--shard": shard,
            "--standby": standby,
            "--data-dir": data_dir,
            "--retain": retain,
            "--notify-targets": notify_targets,
        }
    )
    Timeouts.from_heartbeat(heartbeat_seconds, timeouts)
    from aggregator.daemon import AggregatorOptions, run

    return run(
        AggregatorOptions(
            state_dir=state_dir,
            optimizer=optimizer,
            data_dir=data_dir,
            record=record,
            heartbeat_seconds=heartbeat_seconds,
            timeout_overrides=timeouts,
            shards=tuple(address.strip() for address in shards.split(",") if address.strip()),
            shard=shard,
            standby=standby,
            people_listen=people_listen,
            caps=caps,
            retention=retain,
            notify_targets=notify_targets,
            **daemon,
        )
    )


def _check_roles(flags: Mapping[str, object]) -> None:
    """Reject role flags that contradict each other (Refused)."""
    for first, second, why in (
        ("--shard", "--shards", "a shard has no shards; give --shards to the aggregator"),
        ("--shard", "--optimizer", "a shard has no optimizer; give --optimizer to the aggregator"),
        ("--shard", "--standby", "only an aggregator can be a standby; remove one of the two"),
        ("--shard", "--data-dir", "workers read files from the aggregator; give --data-dir to it"),
        ("--shard", "--retain", "a shard has no jobs; give --retain to the aggregator"),
        ("--shard", "--notify-targets", "a shard has no jobs; give --notify-targets to the aggregator"),
        (
            "--shards",
            "--optimizer",
            "with shards the optimizer runs in the aggregator; remove one of the two",
        ),
    ):
        if flags[first] and flags[second]:
            raise Refused(f"{first} and {second}: given together, but {why}")


@click.command()
@path_option("--state-dir", default=Path(".tiermesh/optimizer"), help="Folder for checkpoints.")
@path_option("--record", help="File to record the inputs and outputs of the core in, for replay.")
@daemon_options(OPTIMIZER_ADDRESS)
def optimizer(*, state_dir: Path, record: Path | None, daemon: dict[str, Any]) -> int:
    """Run an optimizer, which holds the master weights and writes checkpoints."""
    from optimizer.daemon import OptimizerOptions, run

    return run(OptimizerOptions(state_dir=state_dir, record=record, **daemon))


@click.command()
@aggregator_option
@path_option("--state-dir", default=Path(".tiermesh/web"), help="Folder for files that were sent.")
@path_option(
    "--token-file",
    default=Path(OWN_TOKEN_FILE),
    help="File that keeps the token that callers show, without TLS.",
)
@option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Further name or address that callers may have for this server; repeatable.",
)
@option(
    "--cache-gb",
    type=WholeNumber(1, MOST_UPLOAD_GB),
    default=DEFAULT_CACHE_GB,
    help="Largest size of the files that were sent, in GB; the longest unused ones make room.",
)
@daemon_options(WEB_ADDRESS, tensors=False)
def web(
    *,
    aggregator: str,
    state_dir: Path,
    token_file: Path,
    allowed_hosts: tuple[str, ...],
    cache_gb: int,
    daemon: dict[str, Any],
) -> int:
    """Serve the page and the HTTP API, which call the aggregator with the tokens of people and programs."""
    from web.daemon import WebOptions, run

    return run(
        WebOptions(
            aggregator=aggregator,
            state_dir=state_dir,
            token_file=token_file.expanduser(),
            allowed_hosts=allowed_hosts,
            cache_bytes=cache_gb * GB,
            **daemon,
        )
    )
