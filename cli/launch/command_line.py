"""The command of each rank's daemon: arguments, environment, and the files that it needs on its host."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from cli.launch.environment import CACHE_VARIABLE, RANK_VARIABLES
from cli.launch.plan import LaunchPlan, Rank
from mesh.descriptors.choose import PATH_VARIABLE
from services.transport.addresses import join_address

AGGREGATOR_PORT = 7070
OPTIMIZER_PORT = 7071
WEB_PORT = 7080
PEOPLE_PORT = 7079

DESCRIPTOR_FILE = "mgd.textproto"
CERTIFICATE_FILE, KEY_FILE, AUTHORITY_FILE = "daemon.crt", "daemon.key", "authority.crt"
TOKENS_FILE = "tokens.txt"
READY_FILE = "ready.json"
STATE_FOLDER = "state"
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """Ports that other daemons and people connect to.

    Attributes:
        aggregator: port of the aggregator.
        optimizer: port of the optimizer.
        web: port of the HTTP API.
        people: port of the aggregator that the HTTP API calls, on loopback.
    """

    aggregator: int = AGGREGATOR_PORT
    optimizer: int = OPTIMIZER_PORT
    web: int = WEB_PORT
    people: int = PEOPLE_PORT


@dataclass(frozen=True)
class Place:
    """Where a rank's daemon runs.

    Attributes:
        program: command that starts Tiermesh there; the role and its options follow.
        folder: absolute path of the rank's own folder there, without a slash at its end.
        address: name or IP address by which the other ranks reach that host.
        cache: absolute path of a folder there that outlives the launch, for compiled kernels; empty to let the worker
            choose one.
    """

    program: tuple[str, ...]
    folder: str
    address: str
    cache: str = ""

    def path(self, file: str) -> str:
        """Return the path of a file in the rank's folder."""
        return f"{self.folder}/{file}"


@dataclass(frozen=True)
class DaemonCommand:
    """What starts a rank's daemon.

    Attributes:
        rank: rank that the daemon is.
        arguments: program and arguments.
        environment: variables to add to those of the host.
        unset: variables to take from those of the host, because they would select another mesh.
        files: text files to write first, by absolute path.
        ports: ports that must be free; none if the daemon takes any.
    """

    rank: Rank
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    unset: tuple[str, ...]
    files: Mapping[str, str]
    ports: tuple[int, ...]

    def in_shell(self) -> str:
        """Return the command as a POSIX shell reads it."""
        unset = [text for name in self.unset for text in ("-u", name)]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join(["env", *unset, *variables, *self.arguments])


def daemon_commands(
    plan: LaunchPlan, places: Mapping[int, Place], ports: Ports = Ports()
) -> tuple[DaemonCommand, ...]:
    """Return the commands of all daemons, in the order in which they start: optimizer, aggregator, workers, web.

    Daemons on other hosts speak TLS with the certificates in their folders. Those of a local launch listen on loopback.

    Args:
        plan: ranks to start.
        places: where each rank runs, by its number.
        ports: ports of the other roles.
    """
    order = (plan.optimizer, plan.aggregator, *plan.workers, plan.web)
    return tuple(_command(rank, plan, places, ports) for rank in order if rank is not None)


def aggregator_address(plan: LaunchPlan, places: Mapping[int, Place], ports: Ports = Ports()) -> str:
    """Return the address at which workers and people reach the aggregator."""
    return join_address(places[plan.aggregator.number].address, ports.aggregator)


def web_url(plan: LaunchPlan, places: Mapping[int, Place], ports: Ports = Ports()) -> str:
    """Return the URL of the HTTP API of a plan that has it."""
    assert plan.web is not None
    scheme = "http" if plan.is_local else "https"
    return f"{scheme}://{join_address(places[plan.web.number].address, ports.web)}"


def _command(rank: Rank, plan: LaunchPlan, places: Mapping[int, Place], ports: Ports) -> DaemonCommand:
    place = places[rank.number]
    needed, own_options = [0], ["--state-dir", place.path(STATE_FOLDER)]
    environment, files = dict(rank.environment), {}
    if rank.role == "worker":
        own_options += ["--aggregator", aggregator_address(plan, places, ports)]
        if plan.stages > 1 and not plan.is_local:
            own_options += ["--advertise", place.address]  # which its certificate has
        if rank.descriptor_text:
            environment[PATH_VARIABLE] = place.path(DESCRIPTOR_FILE)
            files[place.path(DESCRIPTOR_FILE)] = rank.descriptor_text
        if place.cache:
            environment.setdefault(CACHE_VARIABLE, f"{place.cache}/{rank.name}")
    elif rank.role == "optimizer":
        needed = [ports.optimizer]
    elif rank.role == "web":
        needed = [ports.web]
        local = join_address(_LOOPBACK, ports.people)  # both are on one host
        own_options += ["--aggregator", aggregator_address(plan, places, ports) if plan.is_local else local]
    else:
        needed = [ports.aggregator]
        if plan.optimizer is not None:
            optimizer = places[plan.optimizer.number].address
            own_options += ["--optimizer", join_address(optimizer, ports.optimizer)]
        if plan.web is not None and not plan.is_local:
            needed.append(ports.people)
            own_options += ["--tokens", place.path(TOKENS_FILE)]
            own_options += ["--people-listen", join_address(_LOOPBACK, ports.people)]
    # Workers are dialed by those of other stages alone; the other roles always are, from other hosts too.
    listen = _LOOPBACK
    if (rank.role != "worker" or plan.stages > 1) and not plan.is_local:
        listen = "::" if ":" in place.address else "0.0.0.0"
    arguments = [
        *place.program,
        rank.role,
        *("--name", rank.name),
        *("--listen", join_address(listen, needed[0])),
        *("--ready-file", place.path(READY_FILE)),
        *own_options,
        *([] if plan.is_local else _tls_options(place)),
    ]
    unset = tuple(sorted(RANK_VARIABLES - set(environment))) if rank.role == "worker" else ()
    return DaemonCommand(rank, tuple(arguments), environment, unset, files, tuple(filter(None, needed)))


def _tls_options(place: Place) -> list[str]:
    return [
        *("--tls-cert", place.path(CERTIFICATE_FILE)),
        *("--tls-key", place.path(KEY_FILE)),
        *("--tls-ca", place.path(AUTHORITY_FILE)),
    ]
