"""A small language model of a user's own that kills or hangs its process where its options say so."""

from __future__ import annotations

import ctypes
import os
import signal
from asyncio import CancelledError
from typing import Any

from training.api import Mesh, Tape, Tokens


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Base(BaseException):
    """An exception that `except Exception` misses."""


RAISED: dict[str, BaseException] = {
    each.__name__: each()
    for each in (RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError, StopIteration)
} | {"NoText": NoText(), "Base": Base()}


class Deadly:
    """Token embeddings and their projection.

    Args:
        options: `dies` ("build", "parameters", "forward" or "config"), `width`, and `how`: "null", "abort", "exit",
            "hang", "fork", a key of `RAISED` or a signal's name.
        vocabulary: number of tokens.
        mesh: mesh to run on.
    """

    def __init__(self, options: dict[str, Any], vocabulary: int, mesh: Mesh) -> None:
        self.options = options
        self.ends = Tokens(
            mesh, vocabulary, options["width"], embedding_export="tokens", projection_export="projection"
        )
        if options["dies"] == "build":
            self.die()

    def die(self) -> None:
        how = self.options["how"]
        if how in RAISED:
            raise RAISED[how]
        if how == "null":
            ctypes.string_at(0)
        elif how == "abort":
            os.abort()
        elif how == "exit":
            os._exit(0)
        elif how == "fork":
            if os.fork() == 0:
                signal.pause()
        elif how == "hang":
            reader, _ = os.pipe()
            os.read(reader, 1)
        else:
            os.kill(os.getpid(), signal.Signals[how])
            while True:  # the main thread gets the signal; this one must be in this function when it does
                pass

    def parameters(self) -> Any:
        if self.options["dies"] == "parameters":
            self.die()
        yield self.ends.embedding
        yield from self.ends.last_parameters()

    def loss(self, tape: Tape, inputs: Any, targets: Any) -> Any:
        if self.options["dies"] == "forward":
            self.die()
        return self.ends.loss(tape, self.ends.embed(tape, inputs), targets)

    def hugging_face_config(self) -> dict[str, Any]:
        if self.options["dies"] == "config":
            self.die()
        return {"model_type": "deadly", **self.options}

    def constant_exports(self) -> dict[str, Any]:
        return {}
