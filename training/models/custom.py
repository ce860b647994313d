"""Users' own models: a Python module that is installed on the worker and allowed by its owner."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from mesh.device import Mesh
from services.config.models import CustomConfig, ModelConfig, check_allowed
from services.errors import Failed, Refused, TiermeshError, text_of
from services.pipeline.split import BlockRange
from training.autograd.variable import Parameter
from training.models.model import Model, RangeModel

_FAILURES = (Exception, SystemExit)
"""What a model may raise, `sys.exit()` among it. Ctrl-C of `tiermesh validate` is not."""

Factory = Callable[..., Model]
"""Returns a model, given the keys of `transformer_config` without `model_type`, the vocabulary's size and the mesh.

A factory that can build a range of the model's blocks takes the range as its fourth argument, `blocks`."""

_MEMBERS = ("parameters", "loss", "hugging_face_config", "constant_exports")
_MEMBERS_OF_RANGES = ("width", "tied_table", "tied_copy", "run_blocks", "leave")


def build_custom_model(config: CustomConfig, vocabulary: int, mesh: Mesh, allowed: Collection[str]) -> Model:
    """Build the model that `package.module:Factory` returns for the job's options.

    Args:
        config: config of the model.
        vocabulary: number of the tokenizer's tokens.
        mesh: the mesh to run on.
        allowed: code that may be imported, `package.module` or `package.module:Factory` each.

    Raises:
        Refused: the code is not allowed, can't be imported, fails, or returns no model.
    """
    return _build(config, allowed, (vocabulary, mesh), _MEMBERS)


def build_custom_range(
    config: CustomConfig, vocabulary: int, mesh: Mesh, blocks: BlockRange, allowed: Collection[str]
) -> RangeModel:
    """Build a range of the blocks of a user's own model; see `build_custom_model`.

    Raises:
        Refused: see `build_custom_model`; or the factory takes no range.
    """
    model = _build(config, allowed, (vocabulary, mesh, blocks), _MEMBERS + _MEMBERS_OF_RANGES)
    return cast(RangeModel, model)


def _build(
    config: CustomConfig, allowed: Collection[str], arguments: tuple[Any, ...], members: tuple[str, ...]
) -> Model:
    name = config.model_type
    field = f"transformer_config.model_type: {name}"
    module_name, _, factory_name = name.partition(":")
    check_allowed(name, allowed)
    try:
        module = importlib.import_module(module_name)
    except _FAILURES as error:
        raise Refused(
            f"{field}: {module_name} can't be imported on this worker ({_describe(error, module_name)}); "
            "install it there, or fix it"
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise Refused(f"{field}: {module_name} has no function or class {factory_name}; correct the name")
    options = {
        **config.options,
        "max_sequence_length": config.max_sequence_length,
        "runner_type": config.runner_type,
    }
    try:
        if not _takes(factory, len(arguments) + 1):
            raise Refused(
                f"{field}: {factory_name} does not take {len(arguments) + 1} arguments, expected options, vocabulary, "
                "mesh and, for a pipeline, the range of blocks; correct it, or remove the pipeline"
            )
        model = cast(Factory, factory)(options, *arguments)
        _check_model(model, field, factory_name, members)
    except TiermeshError:
        raise
    except _FAILURES as error:
        raise Refused(
            f"{field}: {factory_name} failed ({_describe(error, module_name)}); fix it or its options"
        ) from error
    return model


@contextmanager
def name_own_model_in_errors(config: ModelConfig) -> Iterator[None]:
    """Run a pass so that an error in a user's own model names the user's code.

    Raises:
        Failed: the model raised an exception of another kind than Tiermesh's own.
    """
    try:
        yield
    except TiermeshError:
        raise
    except _FAILURES as error:
        if not isinstance(config, CustomConfig):
            raise
        described = _describe(error, config.model_type.partition(":")[0])
        raise Failed(f"model {config.model_type}: {described}") from error


def _takes(factory: Callable[..., object], arguments: int) -> bool:
    """Return whether a factory can be called with so many arguments; True for one that does not tell."""
    try:
        signature = inspect.signature(factory)
    except ValueError:
        return True
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True


def _describe(error: BaseException, module_name: str) -> str:
    """Return an exception in one line, with the line of the user's code that it passed through."""
    lines = " | ".join(text_of(error).splitlines())
    text = f"{type(error).__name__}: {lines}" if lines else type(error).__name__
    folder = _find_folder(module_name)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if folder is not None and Path(frame.filename).parent == folder:
            return f"{text}, at {Path(frame.filename).name}:{frame.lineno}"
    return text


def _find_folder(module_name: str) -> Path | None:
    """Return the folder of a module, imported or not; None if it is not installed, or in no folder."""
    try:
        spec = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _check_model(model: object, field: str, factory_name: str, members: tuple[str, ...]) -> None:
    """Check that it is a model, and that its parameters have different names."""
    missing = [name for name in members if not hasattr(model, name)]
    if missing:
        raise Refused(
            f"{field}: {factory_name} returned a {type(model).__name__} without {', '.join(missing)}, expected a model "
            f"with {', '.join(members)}; fix it"
        )
    names: set[str] = set()
    for parameter in cast(Model, model).parameters():
        if not isinstance(parameter, Parameter):
            raise Refused(
                f"{field}: parameters() yielded a {type(parameter).__name__}, expected training.api.Parameter; fix it"
            )
        if parameter.name in names:
            raise Refused(f"{field}: two parameters are named {parameter.name}; give each its own name")
        names.add(parameter.name)
    if not names:
        raise Refused(f"{field}: parameters() yielded none, expected at least one to train; fix it")
