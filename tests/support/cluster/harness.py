"""Clusters of real daemons on loopback. Tests start, watch, kill and restart them; all daemons end with the test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar

import grpc

from cli.chaos.proxy import ProxyTarget
from protos import jobs_pb2 as jobs
from protos.jobs_pb2_grpc import JobsStub
from services.instrumentation import failpoints
from services.runtime.launcher import Spawn, kill_all
from tests.support.cluster import held_steps
from tests.support.cluster.daemon import LIMIT_SECONDS, Daemon, eventually, tls_flags
from tests.support.cluster.relay import Relay

MOST_SECONDS = 600.0
"""Longest run of a job that makes steps."""
ENDED = (jobs.SUCCEEDED, jobs.FAILED, jobs.CANCELLED)


class Cluster:
    """An aggregator, workers, and in 3 tiers an optimizer. Leaving the context ends all processes.

    Every caller of the aggregator or the optimizer connects through a relay, so addresses stay the same over restarts.

    Args:
        folder: folder of state and logs.
        tiers: 2 or 3.
        workers: number of workers to start, named worker-1, worker-2, ...
        shards: number of the aggregator's shards, named shard-0, shard-1, ...; 0 for none.
        delays: seed of random delays between shards and their callers; None for no delays.
        options: further options of every daemon.
        certificates: folder with the authority and a certificate for each kind of caller (`make_certificates`), for
            mutual TLS; None for plain text.
        aggregator_options: further options of the aggregator.
        heartbeat_seconds: the aggregator's heartbeat.
        recorded: whether aggregator and optimizer record their cores, in `folder`.
        worker_module: module that runs as a worker, in place of the command.
        modules: the same for other roles, by role; "shard" for shards alone. What changes holds for later starts.
        spawns: by role, or "shard", how daemons of another build start; the others start in the usual way.
        failpoints: function that returns the failpoints of a daemon about to start, from its role or "shard". They are
            logged to `failpoints.log` in `folder`. None for no failpoints.
        steps: number of steps that its jobs make until `allow_steps` or `finish`; None for no limit.
    """

    known: ClassVar[list[Cluster]] = []  # The report of a failed test shows their logs.

    def __init__(
        self,
        folder: Path,
        *,
        tiers: int = 2,
        workers: int = 0,
        shards: int = 0,
        delays: int | None = None,
        options: tuple[object, ...] = (),
        certificates: Path | None = None,
        aggregator_options: tuple[object, ...] = (),
        heartbeat_seconds: float = 5.0,
        recorded: bool = False,
        worker_module: str = "cli.main",
        modules: Mapping[str, str] | None = None,
        spawns: Mapping[str, Spawn | None] | None = None,
        failpoints: Callable[[str], str] | None = None,
        steps: int | None = None,
    ) -> None:
        self._failpoints = failpoints
        self._steps = steps
        self.folder = folder
        self.modules = {"worker": worker_module, **(modules or {})}
        self.spawns = dict(spawns or {})
        self.tiers = tiers
        self.closed = False
        self.daemons: list[Daemon] = []
        self.workers: list[Daemon] = []
        self.relays: list[Relay] = []
        self.shards: list[Daemon] = []
        self.to_shards: list[Relay] = []
        self._number_of_shards = shards
        self._delays = delays
        self.optimizer: Daemon | None = None
        self.aggregator: Daemon
        self._options = options
        self._certificates = certificates
        self._aggregator_options = aggregator_options
        self._heartbeat_seconds = heartbeat_seconds
        self._recorded = recorded
        self._number_of_workers = workers
        self._channel: grpc.Channel | None = None
        self.stub: JobsStub
        self.channel: grpc.Channel
        self.to_aggregator: Relay
        self.to_optimizer: Relay

    def __enter__(self) -> Cluster:
        Cluster.known.append(self)
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._steps is not None:
            self.allow_steps(self._steps)
        try:
            if self.tiers == 3:
                self.start_optimizer()
            for number in range(self._number_of_shards):
                self.start_shard(number)
            self.start_aggregator()
            started = [self.start_worker(wait=False) for _ in range(self._number_of_workers)]
            for worker in started:
                worker.ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all daemons and relays."""
        if self._channel is not None:
            self._channel.close()
        kill_all(self.daemons)
        for relay in self.relays:
            relay.close()
        self.closed = True

    # ---- daemons ----

    def _start(self, role: str, name: str, *arguments: object, certificate: str = "") -> Daemon:
        kind = "shard" if "--shard" in arguments else role
        module = self.modules.get(kind) or self.modules.get(role, "cli.main")
        options = (*arguments, *self._options, *tls_flags(self._certificates, certificate or kind))
        settings = {}
        if self._failpoints is not None:
            settings[failpoints.VARIABLE] = self._failpoints(kind)
            settings[failpoints.LOG_VARIABLE] = str(self.folder / "failpoints.log")
        if self._steps is not None and role == "worker":
            settings[held_steps.VARIABLE] = str(self._steps_file)
        daemon = Daemon(
            role,
            name,
            self.folder,
            *options,
            module=module,
            settings=settings,
            spawn=self.spawns.get(kind),
        )
        self.daemons.append(daemon)
        return daemon

    def relay(self, target: ProxyTarget, **settings: object) -> Relay:
        """Return a new relay, which is closed with the cluster."""
        relay = Relay(target, **settings)  # type: ignore[arg-type]
        self.relays.append(relay)
        return relay

    def start_optimizer(self) -> Daemon:
        """Start the optimizer, or restart it on the same state."""
        state = self.folder / "optimizer-state"
        again = self.optimizer is not None
        record = ["--record", self.folder / "optimizer.record"] if self._recorded else []
        self.optimizer = self._start("optimizer", "optimizer", "--state-dir", state, *record).ready()
        if again:
            self.to_optimizer.aim(self.optimizer)
        else:
            self.to_optimizer = self.relay(self.optimizer)
        return self.optimizer

    def start_shard(self, number: int) -> Daemon:
        """Start a shard, or restart it."""
        name = f"shard-{number}"
        shard = self._start(
            "aggregator", name, "--shard", "--state-dir", self.folder / f"{name}-state"
        ).ready()
        if number < len(self.shards):
            self.shards[number] = shard
            self.to_shards[number].aim(shard)
        else:
            self.shards.append(shard)
            seed = None if self._delays is None else self._delays + number
            self.to_shards.append(self.relay(shard, seed=seed))
        return shard

    def reshard(self, number: int) -> None:
        """Replace all shards by this many new ones, for the next aggregator."""
        for shard in self.shards:
            shard.kill()
        self.shards, self.to_shards = [], []
        for each in range(number):
            self.start_shard(each)

    def start_aggregator(self) -> Daemon:
        """Start the aggregator, or restart it on the same state."""
        arguments: list[object] = ["--state-dir", self.folder / "aggregator-state"]
        arguments += ["--heartbeat-seconds", self._heartbeat_seconds, *self._aggregator_options]
        if self.optimizer is not None:
            arguments += ["--optimizer", self.to_optimizer.address]
        if self.shards:
            arguments += ["--shards", ",".join(relay.address for relay in self.to_shards)]
        if self._recorded:
            arguments += ["--record", self.folder / "aggregator.record"]
        again = self._channel is not None
        self.aggregator = self._start("aggregator", "aggregator", *arguments).ready()
        if again:
            self.to_aggregator.aim(self.aggregator)
        else:
            self.to_aggregator = self.relay(self.aggregator)
            self.connect()
        return self.aggregator

    def start_other_aggregator(self, name: str) -> Daemon:
        """Start an aggregator on a state of its own, which knows none of the others."""
        return self._start("aggregator", name, "--state-dir", self.folder / f"{name}-state").ready()

    def start_standby(self, name: str = "standby") -> Daemon:
        """Start a standby aggregator on the same state."""
        arguments: list[object] = ["--state-dir", self.folder / "aggregator-state", "--standby"]
        arguments += ["--heartbeat-seconds", self._heartbeat_seconds]
        if self.optimizer is not None:
            arguments += ["--optimizer", self.to_optimizer.address]
        if self.shards:
            arguments += ["--shards", ",".join(relay.address for relay in self.to_shards)]
        return self._start("aggregator", name, *arguments).ready()

    def switch_to(self, aggregator: Daemon) -> None:
        """Direct later calls to this aggregator."""
        self.aggregator = aggregator
        self.to_aggregator.aim(aggregator)
        self.to_aggregator.cut()

    def connect(self) -> None:
        """Open the channel of job calls."""
        self._channel = grpc.insecure_channel(
            self.to_aggregator.address,
            options=(("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 500)),
        )
        self.call_over(self._channel)

    def call_over(self, channel: grpc.Channel) -> None:
        """Make job calls over a channel."""
        self.channel = channel
        self.stub = JobsStub(channel)  # type: ignore[no-untyped-call]

    def start_worker(
        self,
        *arguments: object,
        name: str = "",
        aggregator: str = "",
        wait: bool = True,
        certificate: str = "",
    ) -> Daemon:
        """Start a worker, with the certificate of this name, or that of all workers."""
        name = name or f"worker-{len(self.workers) + 1}"
        address = aggregator or self.to_aggregator.address
        worker = self._start("worker", name, "--aggregator", address, *arguments, certificate=certificate)
        self.workers.append(worker)
        return worker.ready() if wait else worker

    def serving(self, role: str) -> Daemon:
        """Return the daemon of a role; for workers it is worker-1."""
        daemon = {"worker": self.workers[0], "aggregator": self.aggregator, "optimizer": self.optimizer}[role]
        assert daemon is not None
        return daemon

    # ---- jobs ----

    def submit(self, spec_json: str) -> str:
        """Submit a job; return its id."""
        request = jobs.SubmitRequest(spec_json=spec_json)
        return str(self.stub.Submit(request, timeout=LIMIT_SECONDS, wait_for_ready=True).id)

    def job(self, job: str) -> jobs.Job:
        """Return the current state of a job."""
        request = jobs.JobRequest(job=job)
        answer: jobs.Job = self.stub.Get(request, timeout=LIMIT_SECONDS, wait_for_ready=True)
        return answer

    def status(self) -> jobs.ClusterStatus:
        """Return the current state of the cluster."""
        answer: jobs.ClusterStatus = self.stub.Status(
            jobs.StatusRequest(), timeout=LIMIT_SECONDS, wait_for_ready=True
        )
        return answer

    def events(self, job: str) -> Iterator[jobs.JobEvent]:
        """Yield the job's events until it ends, also over restarts of the aggregator.

        Raises:
            grpc.RpcError: none came for LIMIT_SECONDS, or the job goes on after MOST_SECONDS.
        """
        deadline = time.monotonic() + MOST_SECONDS
        while True:
            call = self.stub.Watch(jobs.JobRequest(job=job), timeout=LIMIT_SECONDS, wait_for_ready=True)
            progressed = False
            try:
                for event in call:
                    yield event
                    progressed = progressed or event.job.step > 0
                return
            except grpc.RpcError as error:
                late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                goes_on = late and progressed and time.monotonic() < deadline
                if not goes_on and error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise

    def wait(self, job: str, until: Callable[[jobs.Job], bool], what: str) -> jobs.Job:
        """Watch a job until the condition is true. Raises AssertionError if the job ends before."""
        for event in self.events(job):
            if until(event.job):
                return event.job
        raise AssertionError(f"job {job} ended before {what}: {event.job}")

    def wait_step(self, job: str, step: int) -> jobs.Job:
        """Watch a job until this many updates are done."""
        return self.wait(job, lambda each: each.step >= step, f"step {step}")

    def allow_steps(self, steps: int | None) -> None:
        """Let jobs of a cluster with a limit of steps make this many, or any number."""
        assert self._steps is not None, "give the cluster a limit when it is made"
        held_steps.allow_steps(self._steps_file, steps)

    @property
    def _steps_file(self) -> Path:
        return self.folder / "steps"

    def finish(self, job: str) -> jobs.Job:
        """Let the job make all its steps, and wait for its end; check that it succeeded."""
        if self._steps is not None:
            self.allow_steps(None)
        ended = self.wait(job, lambda each: each.state in ENDED, "its end")
        assert ended.state == jobs.SUCCEEDED, ended
        return ended

    def wait_workers(self, number: int, *states: str) -> None:
        """Wait until this many workers are in one of these states, or in any state if none is given."""

        def look() -> bool:
            found = [each for each in self.status().workers if not states or each.state in states]
            return len(found) == number

        eventually(look, f"{number} workers {' or '.join(states)}")

    def checkpoints(self, job: str) -> Path:
        """Return the folder of a job's checkpoints."""
        owner = "optimizer-state" if self.tiers == 3 else "aggregator-state"
        return self.folder / owner / "checkpoints" / job

    def checkpoint(self, job: str, step: int) -> Path:
        """Wait for the checkpoint of a step and return its folder. No step waits for the disk, so it may come later."""
        folder = self.checkpoints(job) / f"step-{step:08d}"
        eventually(folder.is_dir, f"the checkpoint of step {step}")
        return folder

    def saved_steps(self, job: str) -> list[int]:
        """Return the steps of a job's checkpoints. The first and the last are certain once it has ended.

        A checkpoint that is due while the previous one is being written is left out.
        """
        return sorted(int(path.name[5:]) for path in self.checkpoints(job).glob("step-*"))
