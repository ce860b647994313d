"""Record of a run on the host that launched it, by which `--attach` and `--stop` find it again."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from cli.launch.cluster import Member
from cli.launch.command_line import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from cli.launch.openssh import OpenSSH
from cli.launch.run_certificates import WEB_TOKEN_FILE
from cli.launch.sites import Site
from services.durable_files import new_file
from services.errors import Refused
from services.input_files import NoSuchFile, read_input_file
from services.jobs.target import AggregatorTarget
from services.printable import printable_path
from services.system_errors import system_error
from services.transport.security import Security

ANSWER_SECONDS = 30.0
RECORD_FILE = "run.json"
_RECORD_BYTES = 4 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHOWN_RUNS = 5


@dataclass(frozen=True)
class Run:
    """A run of `tiermesh launch`.

    Attributes:
        name: name of the run.
        job: id of its job; empty until it is submitted.
        aggregator: `HOST:PORT` of the aggregator.
        with_tls: whether the aggregator wants the launcher's certificate.
        sites: hosts.
        members: daemons.
    """

    name: str
    job: str
    aggregator: str
    with_tls: bool
    sites: tuple[Site, ...]
    members: tuple[Member, ...]

    def target(self, folder: Path) -> AggregatorTarget:
        """Return how the aggregator is called.

        Args:
            folder: the run's folder on this host.
        """
        files = (folder / CERTIFICATE_FILE, folder / KEY_FILE, folder / AUTHORITY_FILE)
        return AggregatorTarget(
            self.aggregator, Security(*files) if self.with_tls else Security(), ANSWER_SECONDS
        )


def new_run_name() -> str:
    """Return a name for a run: date, time and a random part."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def run_folder(state_dir: Path, name: str) -> Path:
    """Return the folder of a run on this host.

    Args:
        state_dir: value of `--state-dir`; a relative one lies in the home folder, as on the other hosts.
        name: name of the run.

    Raises:
        Refused: the name can't be one of a run.
    """
    if not _NAME.fullmatch(name):
        raise Refused(f"run {name[:64]!r}: expected a name such as 20261123-055443-ab12, as launch prints it")
    return Path.home() / state_dir / name


def write_run(run: Run, folder: Path, secret_files: Mapping[str, str]) -> None:
    """Write the record of a run and the files that calling its aggregator needs; only their owner can read them.

    Raises:
        TiermeshError: the folder can't be written.
    """
    content = asdict(run)
    for site in content["sites"]:
        site["ssh"]["config"] = None if site["ssh"]["config"] is None else str(site["ssh"]["config"])
    files = {**secret_files, RECORD_FILE: json.dumps(content, indent=1) + "\n"}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in files.items():
            with new_file(folder / name, folder / f".{name}", mode=0o600) as file:
                file.write(text.encode())
    except OSError as error:
        text = f"{printable_path(folder)}: can't be written ({error.strerror}); free space, or give another --state-dir"
        raise system_error(error, text) from None


def read_run(state_dir: Path, name: str) -> Run:
    """Return the record of a run.

    Raises:
        Refused: there is no such run, or its record is damaged.
    """
    path = run_folder(state_dir, name) / RECORD_FILE
    try:
        text = read_input_file("", path, _RECORD_BYTES)
    except NoSuchFile:
        known = sorted(each.parent.name for each in (Path.home() / state_dir).glob(f"*/{RECORD_FILE}"))
        runs = (
            f"the newest here are {', '.join(known[-_SHOWN_RUNS:])}"
            if known
            else "none was launched from here"
        )
        raise Refused(f"run {name}: not in {printable_path(path.parent.parent)}; {runs}") from None
    try:
        content = json.loads(text)
        sites = tuple(_site(each) for each in content.pop("sites"))
        members = tuple(Member(**each) for each in content.pop("members"))
        return Run(**content, sites=sites, members=members)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Refused(
            f"{printable_path(path)}: is damaged, or of another version; end the run's daemons on its hosts by hand"
        ) from None


def forget_run(folder: Path) -> None:
    """Remove the record of a run that has ended, and the launcher's key and token."""
    for name in (RECORD_FILE, KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE, WEB_TOKEN_FILE):
        (folder / name).unlink(missing_ok=True)


def _site(content: dict[str, object]) -> Site:
    ssh = content.pop("ssh")
    assert isinstance(ssh, dict)
    config = None if ssh["config"] is None else Path(ssh["config"])
    program = tuple(map(str, content["program"])) if isinstance(content["program"], list) else ()
    host = None if content["host"] is None else str(content["host"])
    openssh = OpenSSH(str(ssh["program"]), config, tuple(map(str, ssh["options"])))
    return Site(host, str(content["folder"]), program, openssh)
