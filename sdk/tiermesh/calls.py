"""The calls of a client, each once, over either transport: their paths and bodies, and what they return."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from tiermesh.checkpoint_folder import CheckpointFolder
from tiermesh.curves import Curves, read_curves
from tiermesh.errors import JobFailed, NotFound, NotYet, TiermeshError, Unreachable
from tiermesh.exchange import Exchange
from tiermesh.job_files import Config, JobFiles
from tiermesh.outage import Outage
from tiermesh.records import (
    Checkpoint,
    Cluster,
    Event,
    Job,
    Malformed,
    as_list,
    read_object,
)
from tiermesh.server import MissingFiles, error_of_problem
from tiermesh.transport import Request, Transport

log = logging.getLogger("tiermesh")

_LINE_BYTES = 1 << 20
_SILENCE_SECONDS = 45.0
"""Longest silence of a stream of events, which has a sign of life each 15 s."""
_SLOW_SECONDS = 300.0
"""Longest wait for the answer to a submission or a file, which the server has to read as a whole."""
_MOST_FILE_ROUNDS = 200
"""Most submissions of one job; each but the last has to name or send a further file, of at most 64."""
_POLL_SECONDS = (0.1, 2.0)
"""First and longest time between two looks at a job that is waited for."""


class Calls:
    """What a program can ask of a cluster; jobs are named as `Client` says.

    Args:
        transport: sends the requests.
        url: address of the server, for errors.
        outage_seconds: longest outage that a call which lasts survives.
    """

    def __init__(self, transport: Transport, url: str, outage_seconds: float) -> None:
        self._transport = transport
        self._exchange = Exchange(transport, url, outage_seconds)
        self._url = url
        self._outage_seconds = outage_seconds

    # ---- jobs ----

    async def submit(
        self,
        config: Config,
        overrides: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        code: str | os.PathLike[str] | None = None,
    ) -> Job:
        """Queue a job, and send the cluster the files that its config names and that it lacks.

        Notices about settings that have no effect go to the logger `tiermesh`.

        Args:
            config: path of the job's YAML file, or its content as a mapping, whose relative paths start from
                the working directory.
            overrides: settings that replace the file's, by their dotted name.
            name: name for people, in place of the config's.
            code: folder with the code of the job's own model, at most 16 MiB. It is sent to workers, and not run here.

        Raises:
            Refused: the config is wrong, or a file that it names or the code can't be read.
            NotAllowed: the caller may not submit jobs, or not send code with them.
            NotYet: the queue or a disk of the cluster is full.
        """
        files = await self._transport.call(JobFiles.read, config, overrides or {}, code)
        submission: dict[str, Any] = {
            "config": files.config,
            "overrides": dict(overrides or {}),
            "files": files.sha256,
            "request_id": uuid.uuid4().hex,
        }
        if name is not None:
            submission["name"] = name
        if files.code is not None:
            submission["code"] = {"path": files.code.path, "sha256": files.code.sha256}
        for _ in range(_MOST_FILE_ROUNDS):
            try:
                answer = await self._exchange.post_again("/v1/jobs", submission, _SLOW_SECONDS)
            except MissingFiles as error:
                if not error.missing:
                    raise
                for path, sha256 in error.missing.items():
                    await self._supply(files, path, sha256)
                continue
            for notice in as_list(answer.get("notices", []), "notices"):
                log.warning("%s", notice)
            return Job.read(answer.get("job"))
        raise Malformed("missing", _MOST_FILE_ROUNDS, "at most 64 files")

    async def _supply(self, files: JobFiles, path: str, sha256: str | None) -> None:
        """Find a file that the server asks for, so that the submission names it; send it if it does already."""
        if sha256 is None or not files.names(path, sha256):
            await self._transport.call(files.add, path)
            return
        read, size_bytes = await self._transport.call(files.take, path, sha256)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size_bytes)}
        await self._exchange.ask_again(
            lambda: Request(
                "PUT", f"/v1/files/{sha256}", headers=headers, body=read(), silence_seconds=_SLOW_SECONDS
            )
        )

    async def jobs(
        self, *, state: str | Collection[str] = (), owner: str | None = None, name: str | None = None
    ) -> AsyncGenerator[Job, None]:
        """Yield the cluster's jobs, newest first.

        Args:
            state: only jobs in this state, or in one of these.
            owner: only jobs of this person.
            name: only jobs whose name contains this.
        """
        query: dict[str, Any] = {"state": [state] if isinstance(state, str) else list(state)}
        query |= {key: value for key, value in (("owner", owner), ("name", name)) if value is not None}
        while True:
            answer = await self._exchange.ask(Request("GET", "/v1/jobs", query))
            for each in as_list(answer.get("jobs"), "jobs"):
                yield Job.read(each)
            before, query["page_token"] = query.get("page_token"), answer.get("next_page_token")
            if query["page_token"] in (None, before):
                return

    async def get(self, job: str) -> Job:
        """Return a job."""
        return Job.read(await self._exchange.ask(Request("GET", _path(job))))

    async def cancel(self, job: str, *, now: bool = False) -> Job:
        """Cancel a job; unless `now` is set, the weights of its last step become a checkpoint."""
        return Job.read(await self._exchange.post(_path(job, "cancel"), {"now": now}))

    async def pause(self, job: str) -> Job:
        """Have a job wait after its step, until it is resumed."""
        return Job.read(await self._exchange.post(_path(job, "pause"), {}))

    async def resume(self, job: str) -> Job:
        """Queue a paused job in its old place."""
        return Job.read(await self._exchange.post(_path(job, "resume"), {}))

    async def set_priority(self, job: str, priority: int) -> Job:
        """Change a job's priority, from -100 to 100; jobs of a higher one come first."""
        return Job.read(await self._exchange.post(_path(job, "priority"), {"priority": priority}))

    async def continue_(
        self, job: str, steps: int, *, step: int | None = None, total_steps: int | None = None
    ) -> Job:
        """Queue a job that goes on where an ended one has stopped, and return it.

        Args:
            job: the job that has ended.
            steps: number of steps of the whole, those before included.
            step: step of the checkpoint to go on from; None for the newest.
            total_steps: step at which the learning rate's schedule ends; None for as before.
        """
        body = {"steps": steps, "step": step, "total_steps": total_steps, "request_id": uuid.uuid4().hex}
        return Job.read(await self._exchange.post_again(_path(job, "continue"), body))

    async def status(self) -> Cluster:
        """Return the state of the cluster."""
        return Cluster.read(await self._exchange.ask(Request("GET", "/v1/cluster")))

    # ---- a job's course ----

    async def follow(self, job: str) -> AsyncGenerator[Event, None]:
        """Yield the events of a job, from its present state until it has ended.

        Outages of up to `outage_seconds` are survived. Lines of the log that were missed meanwhile come as events of
        kind `missed`.
        """
        outage = Outage(self._outage_seconds)
        last_id = ""
        while True:
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
            request = Request("GET", _path(job, "events"), headers=headers, silence_seconds=_SILENCE_SECONDS)
            try:
                async with self._exchange.open(request) as answer:
                    if answer.status_code == 204:  # it has ended, and there was nothing since
                        return
                    async with aclosing(self._transport.events(answer)) as events:
                        async for sent in events:
                            outage.is_over()
                            last_id = sent.id or last_id
                            if sent.event == "problem":
                                raise error_of_problem(read_object(sent.data, "problem"))
                            event = Event.read(sent.event, sent.data)
                            yield event
                            if event.job is not None and event.job.has_ended:
                                return
                lost: NotYet = Unreachable(
                    f"{self._url}: ended the stream of events before the job had ended"
                )
            except NotYet as error:
                lost = error
            await self._transport.sleep(outage.pause_seconds(lost))

    async def wait(self, job: str, timeout_seconds: float | None = None) -> Job:
        """Wait until a job has succeeded, and return it. Outages are survived as by `follow`.

        Args:
            job: the job.
            timeout_seconds: longest wait; None for as long as the job takes.

        Raises:
            JobFailed: it failed or was cancelled.
            TimeoutError: it has not ended within the limit.
        """
        began = time.monotonic()
        outage = Outage(self._outage_seconds)
        pause_seconds, most_seconds = _POLL_SECONDS
        while True:
            try:
                found = await self.get(job)
            except NotYet as error:
                pause_seconds = outage.pause_seconds(error)
            else:
                outage.is_over()
                if found.has_ended:
                    break
                pause_seconds = min(1.5 * pause_seconds, most_seconds)
            if timeout_seconds is not None:
                left_seconds = began + timeout_seconds - time.monotonic()
                if left_seconds <= 0:
                    raise TimeoutError(f"job {job} has not ended within {timeout_seconds:g} s")
                pause_seconds = min(pause_seconds, left_seconds)
            await self._transport.sleep(pause_seconds)
        if found.state != "succeeded":
            raise JobFailed(f"job {found.id} {found.state}: {found.detail or 'no reason given'}", found)
        return found

    async def log(self, job: str, *, last_bytes: int | None = None) -> AsyncGenerator[str, None]:
        """Yield the lines of a job's log, each with its time.

        Args:
            job: the job.
            last_bytes: only the lines within so many bytes of its end, at most 4 MiB; None for all.
        """
        headers = {} if last_bytes is None else {"Range": f"bytes=-{last_bytes}"}
        try:
            async with self._exchange.open(Request("GET", _path(job, "log"), headers=headers)) as answer:
                begins_amid_a_line = not answer.headers.get("Content-Range", "bytes 0-").startswith(
                    "bytes 0-"
                )
                rest = b""
                async with aclosing(self._transport.blocks(answer)) as blocks:
                    async for block in blocks:
                        *lines, rest = (rest + block).split(b"\n")
                        for line in lines[begins_amid_a_line:]:
                            yield line.decode("utf-8", "replace")
                        begins_amid_a_line = begins_amid_a_line and not lines
                        if len(rest) > _LINE_BYTES:
                            raise Malformed("log", rest[:100], f"lines of at most {_LINE_BYTES} bytes")
                if rest and not begins_amid_a_line:
                    yield rest.decode("utf-8", "replace")
        except TiermeshError as error:
            if error.status != 416:  # a log that is still empty has no last bytes
                raise

    async def metrics(
        self,
        job: str,
        columns: Collection[str] = (),
        *,
        first_step: int = 0,
        last_step: int | None = None,
        points: int | None = None,
    ) -> Curves:
        """Return the history of a job: its loss, speed and so on, as arrays of equal length.

        `step` is int64, names are text, and all others are float64 with NaN for what is not known.

        Args:
            job: the job.
            columns: names of the columns; empty for all. `step` comes along.
            first_step: first step of the range.
            last_step: last step of the range; None for the newest.
            points: most rows, up to 10,000. If there are more steps, each row summarises several: `loss` is then their
                mean, beside `loss_min` and `loss_max`. None for a row for each step.
        """
        query: dict[str, Any] = {"encoding": "base64", "from": first_step}
        wanted = {"columns": ",".join(columns) or None, "to": last_step, "points": points}
        query |= {key: value for key, value in wanted.items() if value is not None}
        parts = []
        while True:
            answer = await self._exchange.ask(Request("GET", _path(job, "metrics"), query))
            parts.append(read_curves(answer))
            before, query["from"] = query["from"], answer.get("next_from")
            if query["from"] is None:
                break
            if (
                not isinstance(query["from"], int)
                or query["from"] <= before
                or parts[0].keys() != parts[-1].keys()
            ):
                raise Malformed("next_from", query["from"], f"a step after {before}, and the same columns")
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    # ---- checkpoints ----

    async def checkpoints(self, job: str) -> AsyncGenerator[Checkpoint, None]:
        """Yield the checkpoints of a job that the cluster keeps, newest first."""
        query: dict[str, Any] = {}
        while True:
            answer = await self._exchange.ask(Request("GET", _path(job, "checkpoints"), query))
            for each in as_list(answer.get("checkpoints"), "checkpoints"):
                yield Checkpoint.read(each)
            before, query["before"] = query.get("before"), answer.get("next_before")
            if query["before"] in (None, before):
                return

    async def download(self, job: str, folder: str | os.PathLike[str], *, step: int | None = None) -> Path:
        """Download a checkpoint to `folder`/step-XXXXXXXX, and return that path.

        The folder appears once all files are there and verified by their SHA-256. What had arrived of a download that
        was interrupted is not sent again.

        Args:
            job: the job.
            folder: folder for the checkpoint's folder, created if missing.
            step: step of the checkpoint; None for the newest.

        Raises:
            NotFound: there is no such checkpoint.
            Refused: the checkpoint is in `folder` already, or can't be written there.
        """
        checkpoint = await self._find_checkpoint(job, step)
        target = CheckpointFolder(checkpoint, Path(folder))
        await self._transport.call(target.create)
        for name in checkpoint.files:
            await self._download(job, checkpoint, name, target)
        return await self._transport.call(target.finish)

    async def _find_checkpoint(self, job: str, step: int | None) -> Checkpoint:
        async with aclosing(self.checkpoints(job)) as found:
            async for checkpoint in found:
                if step is None or checkpoint.step == step:
                    return checkpoint
        which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        raise NotFound(f"job {job}: has {which}; `checkpoints` yields those that there are", field="step")

    async def _download(self, job: str, checkpoint: Checkpoint, name: str, target: CheckpointFolder) -> None:
        """Download the rest of a file, and verify it."""
        path = _path(job, f"checkpoints/{checkpoint.step}/{quote(name)}")
        outage = Outage(self._outage_seconds)
        while True:
            arrived = await self._transport.call(target.arrived_bytes, name)
            if arrived == checkpoint.files[name].size_bytes:
                break
            try:
                async with self._exchange.open(
                    Request("GET", path, headers={"Range": f"bytes={arrived}-"})
                ) as answer:
                    if answer.status_code != 206:
                        arrived = 0
                    async with aclosing(self._transport.blocks(answer)) as blocks:
                        async for block in blocks:
                            outage.is_over()
                            await self._transport.call(target.write, name, arrived, block)
                            arrived += len(block)
                lost: NotYet = Unreachable(f"{self._url}: ended the transfer of {name} before its end")
            except NotYet as error:
                lost = error
            if arrived < checkpoint.files[name].size_bytes:
                await self._transport.sleep(outage.pause_seconds(lost))
        await self._transport.call(target.verify, name)


def _path(job: str, rest: str = "") -> str:
    return f"/v1/jobs/{quote(job, safe='')}" + (f"/{rest}" if rest else "")
