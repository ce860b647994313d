"""Models that are not ours: a Python module of the user's, installed beside the worker and allowed by its owner."""

from __future__ import annotations

import importlib
import importlib.util
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from mesh.device import Mesh
from services.config.models import CustomConfig, ModelConfig
from services.errors import Failed, Refused, TiermeshError
from training.autograd import Parameter
from training.models.model import Model

Factory = Callable[[dict[str, Any], int, Mesh], Model]
"""From the keys of `transformer_config` (`model_type` aside), the size of the vocabulary and the mesh to a model."""

_METHODS = ("parameters", "loss", "hugging_face_config", "constant_exports")


def own_model(config: CustomConfig, vocabulary: int, mesh: Mesh, allowed: Collection[str]) -> Model:
    """The model that `package.module:Factory` gives for the job's options.

    Args:
        config: of the model.
        vocabulary: tokens of the tokenizer.
        mesh: to run on.
        allowed: `package.module` or `package.module:Factory` of each code that may be imported.

    Raises:
        Refused: the code isn't allowed, can't be imported, fails, or gives no model; says what to do.
    """
    name = config.model_type
    field = f"transformer_config.model_type: {name}"
    module_name, _, factory_name = name.partition(":")
    if name not in allowed and module_name not in allowed:
        raise Refused(
            f"{field}: not allowed on this worker, which may import {', '.join(allowed) or 'no models'}; start it with "
            f"--allow-models {module_name}, or name an allowed one"
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise Refused(
            f"{field}: {module_name} can't be imported on this worker ({_said(error, module_name)}); "
            "install it there, or mend it"
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
        model = cast(Factory, factory)(options, vocabulary, mesh)
    except TiermeshError:
        raise
    except Exception as error:
        raise Refused(
            f"{field}: {factory_name} failed ({_said(error, module_name)}); mend it or its options"
        ) from error
    _check(model, field, factory_name)
    return model


@contextmanager
def blamed(config: ModelConfig) -> Iterator[None]:
    """Around a pass: what goes wrong in a model of the user's own says whose code it was.

    Raises:
        Failed: for any other exception than our own, in one line.
    """
    try:
        yield
    except TiermeshError:
        raise
    except Exception as error:
        if not isinstance(config, CustomConfig):
            raise
        said = _said(error, config.model_type.partition(":")[0])
        raise Failed(f"model {config.model_type}: {said}") from error


def _said(error: Exception, module_name: str) -> str:
    """An exception in one line, with the place in the module's folder that it came from, if it came through there."""
    text = f"{type(error).__name__}: {' | '.join(str(error).splitlines())}"
    folder = _folder(module_name)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if folder is not None and Path(frame.filename).parent == folder:
            return f"{text}, at {Path(frame.filename).name}:{frame.lineno}"
    return text


def _folder(module_name: str) -> Path | None:
    """Where a module lies, imported or not; None if it isn't there, or in no folder."""
    try:
        spec = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _check(model: object, field: str, factory_name: str) -> None:
    """Hold that it is a model, with parameters of different names."""
    missing = [name for name in _METHODS if not callable(getattr(model, name, None))]
    if missing:
        raise Refused(
            f"{field}: {factory_name} gave a {type(model).__name__} without {', '.join(missing)}, expected a model "
            f"with the methods {', '.join(_METHODS)}; mend it"
        )
    names: set[str] = set()
    for parameter in cast(Model, model).parameters():
        if not isinstance(parameter, Parameter):
            raise Refused(
                f"{field}: parameters() gave a {type(parameter).__name__}, expected training.api.Parameter; mend it"
            )
        if parameter.name in names:
            raise Refused(f"{field}: two parameters are named {parameter.name}; give each its own name")
        names.add(parameter.name)
    if not names:
        raise Refused(f"{field}: parameters() gave none, expected at least one to train; mend it")
