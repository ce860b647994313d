"""What an optimizer reads from its disk to open a job: spec, newest checkpoint, layout and the files beside them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from optimizer.checkpoint_store import CheckpointStore
from optimizer.core import events as ev
from services.checkpoints.format import Checkpoint, check_description
from services.config.job import JobConfig
from services.errors import Refused
from services.files.store import FileStore
from services.json_text import LAYOUT
from services.printable import printable_path
from services.protocol.file_refs import MAX_TEXT_BYTES
from services.tensors.layout import Layout, read_job_layout

log = logging.getLogger("tiermesh.optimizer")


@dataclass(frozen=True)
class CheckpointContents:
    """Contents of an open job's checkpoints besides its tensors."""

    config: JobConfig
    layout: Layout
    files: Mapping[str, bytes]


class JobFiles:
    """Reader of the files of jobs; all methods block, so they are called on the disk thread.

    Args:
        files: files that orders refer to; those of open jobs are kept.
        checkpoint_store: checkpoints on disk.
    """

    def __init__(self, files: FileStore, checkpoint_store: CheckpointStore) -> None:
        self._files = files
        self._checkpoint_store = checkpoint_store

    def prepare(self, effect: ev.Load) -> None:
        """Make what must be on disk before a job is looked up: its generation, and the checkpoint that it starts from.

        Raises:
            TiermeshError: a file is missing or wrong, or the disk failed. When it is full, a later call may succeed.
        """
        config = self._read_config(effect)
        self._files.with_room(partial(self._checkpoint_store.prepare, effect.job), MAX_TEXT_BYTES)
        self._files.with_room(partial(self._checkpoint_store.start_from, effect.job, config), MAX_TEXT_BYTES)

    def look_up(self, effect: ev.Load) -> tuple[JobConfig, Checkpoint | None, ev.Loaded]:
        """Read a job's spec, its newest intact checkpoint, None if there is none, and what the core is told of both.

        Raises:
            TiermeshError: a file is missing or wrong, or the disk failed.
        """
        config = self._read_config(effect)
        checkpoint, notices = self._checkpoint_store.read_newest(effect.job, effect.void)
        for notice in notices:
            log.warning("%s", notice)
        generation = self._checkpoint_store.read_generation(effect.job)
        loaded = ev.Loaded(effect.job, config.plan(), generation, notices=tuple(notices))
        if checkpoint is not None:
            refusal = config.parameters.check(checkpoint.layout.elements)
            if refusal is not None:
                raise Refused(f"checkpoint {printable_path(checkpoint.path)}: {refusal}")
            loaded = ev.Loaded(
                effect.job,
                loaded.plan,
                max(generation, checkpoint.generation),
                checkpoint.layout.hash,
                checkpoint.layout.elements,
                self._checkpoint_store.describe(checkpoint),
                tuple(notices),
            )
        return config, checkpoint, loaded

    def _read_config(self, effect: ev.Load) -> JobConfig:
        return JobConfig.from_json(effect.spec_json)

    def read_description(self, effect: ev.Allocate, config: JobConfig) -> tuple[Layout, dict[str, bytes]]:
        """Read the layout and the files of a job's checkpoints.

        Raises:
            TiermeshError: a file is missing or wrong, or the disk failed.
        """
        check_description(effect.layout, effect.files)
        self._files.keep(effect.job, [effect.layout, *effect.files.values()])
        layout = read_job_layout(self._files.read(effect.layout, LAYOUT.limit_bytes), config.parameters)
        return layout, {name: self._files.read(ref, MAX_TEXT_BYTES) for name, ref in effect.files.items()}
