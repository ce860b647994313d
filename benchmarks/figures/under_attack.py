"""under_attack: steps, memory, answers and the stop of an aggregator that peers without a certificate attack.

Four attackers (peers/attacker.py) with addresses of their own share 0.3 core. Together they hold 2,000 connections,
send byte by byte, and send each kind of HTTP/2 flood and garbage to all three ports. The baseline is the same cluster
next to processes that burn as much CPU time, before and after the attack, since the machine's other load changes.
Everything is plain text, so no TLS handshake stops an attacker early. Meanwhile a worker is killed and restarted, a job
is submitted, and `/metrics` is read, as in the baseline. A second, short attack goes on while SIGTERM stops the
aggregator. Where network namespaces can't be made, the attackers have loopback addresses of their own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from benchmarks.harness.daemons import Daemons, Job
from benchmarks.harness.hosts import GIGABIT, LOOPBACK, Host, Hosts, inner_process
from benchmarks.harness.job_settings import ROOT
from benchmarks.harness.report import Skipped, report
from services.errors import Failed
from services.timeouts import STANDARD_TIMEOUTS

SECONDS = 60.0
ATTACKERS = 4
IDLE = 2000
CORE_SHARE = 0.3
WORKERS = 2
MOST_RATIO, MOST_MEGABYTES, MOST_ANSWER_SECONDS = 1.5, 64.0, 5.0
_WARM_UP_SECONDS = 5.0
_CONFIG = ROOT / "configs" / "training_configs" / "demo.yaml"
_SETTINGS = ("batch_size=4", "training_config.gradient_accumulation_steps=2")
_ATTACKER = ROOT / "benchmarks" / "peers" / "attacker.py"
_HOSTS = ("aggregator", "worker-1", "worker-2", "person", *(f"attacker-{n + 1}" for n in range(ATTACKERS)))
_STEP = re.compile(r'"kind": ?"step"')
_SCRAPE = """
import sys, time, urllib.request
started = time.monotonic()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
text = opener.open(f"http://{sys.argv[1]}/metrics", timeout=20).read()
assert b"tiermesh_step" in text
print(time.monotonic() - started)
"""


@dataclass(frozen=True)
class Answers:
    """Times until a cluster has answered, in seconds.

    Attributes:
        submit: `tiermesh submit`, the start of its process included.
        scrape: a scrape of the aggregator's metrics.
        start: a worker's start, from its process to its open ports.
        connect: from there to its connection to the aggregator.
    """

    submit: float
    scrape: float
    start: float
    connect: float

    @property
    def longest(self) -> float:
        """Longest of the times, with start and connection of the worker as one."""
        return max(self.submit, self.scrape, self.start + self.connect)

    def __str__(self) -> str:
        restart = f"{self.start + self.connect:.2f} s ({self.connect:.2f} s of it to connect)"
        return f"submit {self.submit:.2f} s, scrape {self.scrape:.2f} s, restarted worker {restart}"


class AttackedCluster(Daemons):
    """A cluster with 2 tiers and 2 workers that train for real.

    Args:
        hosts: hosts by name; empty for this machine alone.
        name: name of its folder.
    """

    def __init__(self, hosts: dict[str, Host], name: str = "under_attack") -> None:
        job = Job(_CONFIG, None, _SETTINGS)
        metrics = "0.0.0.0" if hosts else "127.0.0.1"
        options = ("--metrics-listen", f"{metrics}:0")
        super().__init__(name, job, workers=WORKERS, aggregator_options=options, hosts=hosts)

    def _open_gate(self, path: Path, stack: ExitStack) -> None:
        """Do nothing: these workers connect to no gate."""

    @property
    def metrics_address(self) -> str:
        """`HOST:PORT` of the aggregator's `/metrics`."""
        return f"{self._host('aggregator').address}:{self.processes['aggregator'].metrics_port}"

    def steps(self) -> int:
        """Return the number of steps so far, by the job's log."""
        logs = (self.folder / "state" / "logs").glob("*.jsonl")
        return sum(len(_STEP.findall(path.read_text(errors="replace"))) for path in logs)

    def step_seconds(self, seconds: float) -> float:
        """Return the mean duration of a step over this time, or until the first step if that takes longer."""
        before, started = self.steps(), time.monotonic()
        self.until_moment(time.time() + seconds, "steps")
        count = self.until(lambda: self.steps() - before or None, "a step")
        return (time.monotonic() - started) / count

    def run_as_person(self, *words: str) -> str:
        """Run Python with these arguments on the person's host, and return its output.

        Raises:
            Failed: it ended with an error.
        """
        done = subprocess.run(
            self._host("person").command([sys.executable, *words]),
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode:
            raise Failed(f"{words}: {done.stderr.strip()[-500:]}")
        return done.stdout.strip()

    def submit_seconds(self) -> float:
        """Return how long `tiermesh submit` takes, the start of its process included."""
        started = time.monotonic()
        words = ("-m", "cli.main", "submit", str(_CONFIG), "--aggregator", self.address("aggregator"))
        self.run_as_person(*words, "--set", "max_steps=1")
        return time.monotonic() - started

    def scrape_seconds(self) -> float:
        """Return how long a scrape of the aggregator takes."""
        return float(self.run_as_person("-c", _SCRAPE, self.metrics_address))

    def restart_seconds(self) -> tuple[float, float]:
        """Kill a worker, restart it, and return how long it takes to start, and from then on to connect."""
        worker = self.processes["worker-2"]
        self.kill("worker-2")
        worker.process.wait()
        written = worker.log.stat().st_size
        started = time.monotonic()
        self.restart("worker-2")

        def connected() -> bool | None:
            return b"connected to aggregator" in worker.log.read_bytes()[written:] or None

        self.until(lambda: worker.is_ready() or None, "worker-2 to start")
        ready = time.monotonic()
        self.until(connected, "worker-2 to connect")
        return ready - started, time.monotonic() - ready

    def answer_seconds(self) -> Answers:
        """Submit a job, scrape, and restart a worker."""
        return Answers(self.submit_seconds(), self.scrape_seconds(), *self.restart_seconds())

    def stop_seconds(self) -> float:
        """Send the aggregator SIGTERM, and return how long it takes to end."""
        process = self.processes["aggregator"].process
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait()
        return time.monotonic() - started


def run(seconds: float | None = None, idle: int = IDLE) -> bool:
    """Measure and report the figures.

    Args:
        seconds: duration of the attack; by default a minute, or TIERMESH_BENCH_ATTACK_SECONDS.
        idle: number of idle connections.
    """
    if seconds is None:
        seconds = float(os.environ.get("TIERMESH_BENCH_ATTACK_SECONDS", SECONDS))
    with ExitStack() as stack:
        try:
            hosts = stack.enter_context(Hosts(_HOSTS, GIGABIT)).by_name
        except Skipped:
            hosts = {}
        cluster = stack.enter_context(AttackedCluster(hosts))
        cluster.until(lambda: cluster.steps() or None, "the first step")
        cluster.until_moment(time.time() + _WARM_UP_SECONDS, "steps")
        burners = [LOOPBACK] * ATTACKERS, ["burn", str(CORE_SHARE / ATTACKERS)]
        with _beside(*burners):
            quiet_answers = cluster.answer_seconds()  # the first ones take memory that stays
            cluster.until_moment(time.time() + _WARM_UP_SECONDS, "steps")
            quiet_seconds = [cluster.step_seconds(seconds / 4)]
        _forget_peak(cluster)
        before = cluster.memory_bytes("VmRSS")
        aggregator = cluster.processes["aggregator"]
        target = [cluster.address("aggregator").rpartition(":")[0], str(aggregator.port)]
        target += [str(aggregator.tensor_port), str(aggregator.metrics_port)]
        words = ["attack", str(CORE_SHARE / ATTACKERS), str(idle // ATTACKERS), "SOURCE", *target]
        attackers = [hosts.get(f"attacker-{number + 1}", LOOPBACK) for number in range(ATTACKERS)]
        with _beside(attackers, words):
            end = time.time() + seconds
            used, started = cluster.cpu_seconds()["aggregator"], time.monotonic()
            attacked_seconds = cluster.step_seconds(seconds / 2)
            share = (cluster.cpu_seconds()["aggregator"] - used) / (time.monotonic() - started)
            answers = cluster.answer_seconds()
            cluster.until_moment(end, "the attack's end")
            grown = (cluster.memory_bytes("VmHWM") - before) / 1e6
            open_files = sum(1 for _ in Path(f"/proc/{inner_process(aggregator.pid)}/fd").iterdir())
            refused = _refused(cluster)
        with _beside(*burners):
            cluster.until_moment(time.time() + _WARM_UP_SECONDS, "steps")
            quiet_seconds.append(cluster.step_seconds(seconds / 4))
        with _beside(attackers, words):
            cluster.until_moment(time.time() + _WARM_UP_SECONDS, "the attack")
            stop = cluster.stop_seconds()
    before_and_after = " and ".join(f"{1e3 * each:.1f}" for each in quiet_seconds)
    details = (
        f"mean step {before_and_after} ms beside burning processes, {1e3 * attacked_seconds:.1f} ms attacked",
        f"the attacked aggregator uses {share:.2f} core",
        f"{ATTACKERS} attackers {'in network namespaces' if hosts else 'on loopback'}, {idle} idle connections",
        f"open files at the end: {open_files}; connections refused: {refused}",
    )
    kept = report(
        "under_attack_step_ratio", attacked_seconds / mean(quiet_seconds), MOST_RATIO, *details, decimals=2
    )
    kept &= report("under_attack_memory_megabytes", grown, MOST_MEGABYTES, decimals=1)
    kept &= report(
        "under_attack_answer_seconds",
        answers.longest,
        MOST_ANSWER_SECONDS,
        str(answers),
        f"without attack: {quiet_answers}",
        decimals=2,
    )
    return report("under_attack_stop_seconds", stop, STANDARD_TIMEOUTS.stop, decimals=2) and kept


@contextmanager
def _beside(hosts: Sequence[Host], words: Sequence[str]) -> Iterator[None]:
    """Run an attacker on each host; its word SOURCE becomes an address of its own."""
    processes = []
    try:
        for number, host in enumerate(hosts):
            source = host.address if host.first_process else f"127.0.0.{number + 2}"
            own = [source if word == "SOURCE" else word for word in words]
            processes.append(
                subprocess.Popen(
                    host.command([sys.executable, str(_ATTACKER), *own]),
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    start_new_session=True,
                )
            )
        yield
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _forget_peak(cluster: AttackedCluster) -> None:
    """Let the peak of the aggregator's memory begin at its memory now."""
    process = inner_process(cluster.processes["aggregator"].pid)
    Path(f"/proc/{process}/clear_refs").write_text("5")


def _refused(cluster: AttackedCluster) -> int:
    script = _SCRAPE.replace("print(", "sys.stdout.buffer.write(text); (")
    text = cluster.run_as_person("-c", script, cluster.metrics_address)
    found = re.findall(r"^tiermesh_connections_refused_total\{.*\} ([\d.e+]+)$", text, re.MULTILINE)
    return int(sum(map(float, found)))
