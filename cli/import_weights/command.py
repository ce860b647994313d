"""`tiermesh import-weights`: options, and the result."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.job_commands import job_config
from cli.options import output_options, path_option
from cli.output import Output
from services.errors import Refused
from services.printable import counted, one_line, printable_path

if TYPE_CHECKING:
    from services.config.architecture import PretrainableConfig
    from services.config.origins import Origins
    from services.config.resolve.job import ResolvedJob
    from services.tensors.kernels.arithmetic import Float32Array
    from training.data.tokenizer import Tokenizer

_MODEL_SECTION = "transformer_config"
_SHOWN_GROUPS = 5


@click.command("import-weights")
@click.argument("weights", metavar="WEIGHTS", type=click.Path(path_type=Path))
@job_config
@path_option("--output", "-o", "folder", required=True, help="Folder to make.")
@output_options
def import_weights(
    *, weights: Path, path: Path, overrides: tuple[str, ...], folder: Path, output: Output
) -> None:
    """Turn weights of tt-train into a folder that jobs can start from.

    WEIGHTS is a .msgpack file that tt-train's nano_gpt has saved, JOB.yaml the config that it was trained with. The
    folder has the format of Hugging Face.
    """
    from cli.import_weights.parameters import find_sources
    from cli.import_weights.weights_file import open_weights
    from cli.reading_progress import show_reading
    from services.checkpoints.hugging_face import write_hugging_face
    from services.config.load import load_job_with_origins
    from services.config.models import GPT2Config

    _check_output(folder)
    with show_reading(output):
        job, origins = load_job_with_origins(path, overrides)
        for notice in job.notices:
            output.warn(notice)
        tokenizer, model = _read_model(job)
        with open_weights(weights) as file:
            sources = find_sources(model, file)
            if isinstance(model, GPT2Config) and model.positional_embedding_type == "fixed":
                output.warn(
                    f"{_MODEL_SECTION}.positional_embedding_type: fixed given; the folder's positions have the same "
                    "values, but a job that starts from it trains them, as a GPT-2's config.json has no such setting"
                )
            files, constants = _describe(model, tokenizer)
            shapes = {name: source.shape for name, source in sources.items()}
            model_sha256 = write_hugging_face(
                folder,
                {**shapes, **{name: tensor.shape for name, tensor in constants.items()}},
                lambda name: (
                    constants[name]
                    if name in constants
                    else sources[name].convert(file.read(sources[name].name))
                ),
                files,
            )
            left_out = dict(sorted(file.left_out.items()))
    if left_out:
        output.warn(f"left out: {_groups(left_out)}; a job begins with an optimizer's state of zeros")
    output.say(
        f"{folder}: a {model.model_type} of {counted(model.num_blocks, 'block')} and {model.vocab_size} tokens, from "
        f"{counted(len({source.name for source in sources.values()}), 'tensor')} of {weights}"
    )
    start = shlex.join(
        ["tiermesh", "submit", str(path), *overrides, *_start_settings(folder, model, origins)]
    )
    output.say(f"start a job from it: {start}")
    output.result(
        {
            "path": str(folder),
            "model_type": model.model_type,
            "tensors": len(sources),
            "vocab_size": model.vocab_size,
            "left_out": left_out,
            "model_sha256": model_sha256,
            "start": start,
        }
    )


def _groups(left_out: Mapping[str, int]) -> str:
    """Return the first groups of what a file has besides parameters, as text."""
    shown = [
        f"{one_line(name, 40)} ({counted(number, 'tensor')})" if number else one_line(name, 40)
        for name, number in list(left_out.items())[:_SHOWN_GROUPS]
    ]
    return ", ".join(shown) + (" and others" if len(left_out) > _SHOWN_GROUPS else "")


def _check_output(folder: Path) -> None:
    """Check before the work that the output can be written (Refused)."""
    place = f"--output: {printable_path(folder)}"
    if folder.exists() or folder.is_symlink():
        raise Refused(f"{place}: exists; give another name, or remove it")
    if not os.access(folder.parent, os.W_OK):
        raise Refused(f"{place}: its parent folder is missing or not writable; give a path in another one")


def _read_model(job: ResolvedJob) -> tuple[Tokenizer | None, PretrainableConfig]:
    """Return the tokenizer and the model of a job, with its vocabulary (Refused)."""
    from services.config.models import GPT2Config, LlamaConfig
    from training.data.load import load_job_tokenizer

    config = job.config
    if not isinstance(config.model, GPT2Config | LlamaConfig) or config.data is None:
        raise Refused(
            f"{_MODEL_SECTION}.model_type: {config.model.model_type} given, expected gpt2 or llama, the models whose "
            "weights can be imported; give the config that the weights were trained with"
        )
    if config.pretrained is not None:
        raise Refused(
            f"{_MODEL_SECTION}.model_path: given, expected a config without it, as the weights come from the file; "
            "remove it"
        )
    tokenizer = load_job_tokenizer(config.data)
    vocabulary = config.vocabulary or (tokenizer.size if tokenizer else 0)
    return tokenizer, config.model.model_copy(update={"vocab_size": vocabulary})


def _describe(
    model: PretrainableConfig, tokenizer: Tokenizer | None
) -> tuple[dict[str, bytes], dict[str, Float32Array]]:
    """Return the files that describe a model, and the tensors that Hugging Face's model has beyond its parameters."""
    from mesh.device import open_host_mesh
    from services.checkpoints.export import read_constants
    from services.checkpoints.format import CONSTANTS_FILE
    from training.models.build import build_model
    from training.models.checkpoint_files import describe_model

    with open_host_mesh() as mesh:
        files = describe_model(build_model(model, model.vocab_size or 0, mesh), tokenizer)
    constants = read_constants(files)
    files.pop(CONSTANTS_FILE, None)
    return files, constants


def _start_settings(folder: Path, model: PretrainableConfig, origins: Origins) -> list[str]:
    """Return the settings that make the job start from the folder, whose sizes it may not contradict."""
    stored = {"vocab_size": model.vocab_size, "positional_embedding_type": "trainable"}
    given = {key: origins.find_written(f"{_MODEL_SECTION}.{key}") for key in stored}
    return [
        f"{_MODEL_SECTION}.model_path={folder}",
        *(
            f"{_MODEL_SECTION}.{key}={value}"
            for key, value in stored.items()
            if (written := given[key]) is not None and written[1] not in (None, value)
        ),
    ]
