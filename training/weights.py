"""The weights of a model, or of a range of its blocks, on a mesh: their initial values, loading, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.transfer import download
from services.config.job import JobConfig
from services.tensors.layout import Layout
from training.autograd.variable import Parameter, Tensor
from training.gradient_sink import GradientSink
from training.models.build import load_parameter
from training.models.initialise import draw_initial_value
from training.models.pretrained import load_pretrained_weights
from training.parameter_placement import from_mesh

Float32Array = npt.NDArray[np.float32]


class Weights:
    """The parameters of a model, or of a range of its blocks, on a mesh.

    Args:
        mesh: the mesh.
        layout: layout of the whole model.
        parameters: the parameters to train, in order; they are contiguous in the layout.
        copies: parameters that another range trains and this one needs too. They have that range's names.

    Attributes:
        parameters: the parameters to train, without the copies.
        entries: their layout entries, contiguous.
        loaded: indices in the layout of all entries that are loaded: those of the parameters and of the copies.
    """

    def __init__(
        self, mesh: Mesh, layout: Layout, parameters: Sequence[Parameter], copies: Sequence[Parameter] = ()
    ) -> None:
        self._mesh = mesh
        self.parameters = tuple(parameters)
        places = {entry.name: index for index, entry in enumerate(layout.entries)}
        self._by_entry = {places[parameter.name]: parameter for parameter in (*parameters, *copies)}
        first = places[parameters[0].name]
        self.entries = layout.entries[first : first + len(self.parameters)]
        self.loaded = tuple(self._by_entry)
        self._places = {parameter: place for place, parameter in enumerate(self.parameters)}

    @property
    def offset(self) -> int:
        """Index of the first element in the whole layout."""
        return self.entries[0].offset

    @property
    def elements(self) -> int:
        """Number of elements of the parameters, without the copies."""
        return self.entries[-1].stop - self.offset

    def initial(
        self, config: JobConfig, data_dir: Path | None = None, out: Float32Array | None = None
    ) -> Float32Array:
        """Return the weights that training starts from, flat in layout order, without the copies.

        They come from the checkpoint that the job names. Without one they follow from the job's seed and the
        parameters' names.

        Args:
            config: config of the job.
            data_dir: folder of this host that is searched for a checkpoint missing at the job's path.
            out: float32 [elements] to write them to; None for a new array.

        Raises:
            Refused: the checkpoint is not on this host, or has changed since the job was submitted.
        """
        if out is None:
            out = np.empty(self.elements, np.float32)
        if config.pretrained is not None:
            return load_pretrained_weights(config, self.entries, data_dir, out)
        for entry, parameter in zip(self.entries, self.parameters, strict=True):
            out[entry.offset - self.offset : entry.stop - self.offset] = draw_initial_value(
                parameter, config.seed
            )
        return out

    def expect(self, fetch: Callable[[int], None]) -> None:
        """Let passes wait for newer weights, parameter by parameter.

        Args:
            fetch: callback, called before a pass uses a parameter that has not been loaded since, with the index of its
                layout entry; returns when it has been loaded.
        """
        for index, parameter in self._by_entry.items():
            parameter.fetch = partial(fetch, index)

    def fetch_all(self) -> None:
        """Wait for all weights that are on their way."""
        for parameter in self._by_entry.values():
            _ = parameter.value

    def needs(self, entry_index: int) -> bool:
        """Return whether an entry of the layout is among those to load."""
        return entry_index in self._by_entry

    def load(self, entry_index: int, values: Float32Array) -> None:
        """Put one parameter on the mesh.

        Args:
            entry_index: index of its layout entry, one of `loaded`.
            values: float32, flat.
        """
        parameter = self._by_entry[entry_index]
        parameter.fetch = None
        load_parameter(self._mesh, parameter, values)

    def sink(self, out: Float32Array, ready: Callable[[int], None]) -> GradientSink:
        """Return a sink of one backward pass's gradients.

        Args:
            out: float32 [elements].
            ready: callback, called with an index of `out` from which on it is complete.
        """
        return GradientSink(self.entries, self._places, self.read_gradient, out, ready)

    def read_gradient(self, parameter: Parameter, gradient: Tensor) -> Float32Array:
        """Return a complete gradient from the mesh, flat and in the order of its logical shape."""
        return from_mesh(parameter, download(self._mesh, gradient, parameter.placements), self._mesh)

    def close(self) -> None:
        """Free the weights on the mesh."""
        for parameter in self._by_entry.values():
            parameter.value = None
