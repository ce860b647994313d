"""`tiermesh tokenize`: options, the checks before any work, and the result."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.options import option, output_options, path_option
from cli.output import Output
from services.errors import Refused
from services.printable import printable_path

if TYPE_CHECKING:
    from services.corpora.sidecar import Dtype

_UINT16_IDS = 1 << 16


@click.command()
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@path_option("--tokenizer", required=True, help="A tokenizer.json of Hugging Face, or its folder.")
@path_option(
    "--output", "-o", "path", required=True, help="File to write: ids.bin, or ids.yaml as tt-train reads it."
)
@option(
    "--document-separator",
    "separator",
    metavar="SEPARATOR",
    help="Text between the documents of a file, such as `<|endoftext|>`.  [default: each file is one document]",
)
@option("--end-of-text", metavar="TOKEN", help="Token to append to each document.  [default: none]")
@option("--force", is_flag=True, help="Replace the output if it exists.")
@output_options
def tokenize(
    *,
    texts: tuple[Path, ...],
    tokenizer: Path,
    path: Path,
    separator: str | None,
    end_of_text: str | None,
    force: bool,
    output: Output,
) -> None:
    """Encode texts into a file of token ids, to train on.

    A TEXT is a file of UTF-8 text, or a .jsonl file with a "text" in each line. Each document is encoded by itself, on
    all cores.
    """
    from cli.tokenize.documents import Documents
    from cli.tokenize.encoding import Encoder, read_tokenizer_file
    from cli.tokenize.progress import TokenizeProgress
    from services.corpora.writer import TokenFileWriter, new_token_file, new_token_yaml

    if separator == "":
        raise Refused("--document-separator: '' given, expected a text such as <|endoftext|>; correct it")
    _check_output(path, force)
    content, name = read_tokenizer_file(tokenizer)
    encoder = Encoder(content, name, end_of_text)
    id_type = None if _is_yaml(path) else _dtype(path, encoder.size)
    new_output = (
        new_token_yaml(path, tokenizer_vocab_size=encoder.size)
        if id_type is None
        else new_token_file(
            path,
            id_type,
            tokenizer_vocab_size=encoder.size,
            tokenizer_sha256=hashlib.sha256(content).hexdigest(),
        )
    )
    documents = Documents(texts, separator)
    started = time.monotonic()
    number = 0
    with TokenizeProgress(output, documents.total_bytes) as progress, new_output as writer:
        for ids, encoded in encoder.encode(documents):
            writer.write(ids)
            number += encoded
            progress.update(documents.read_bytes, writer.count)
        if not writer.count:
            raise Refused(f"{printable_path(texts[0])}: no documents with a text; give files that have some")
    seconds = time.monotonic() - started
    noun = "document" if number == 1 else "documents"
    output.say(
        f"{path}: {writer.count:,} ids of {number:,} {noun}, {id_type or 'YAML'}, largest {writer.largest_id}; "
        f"{documents.total_bytes / 1e6:,.1f} MB of text in {seconds:.1f} s"
    )
    sidecar = writer.sidecar if isinstance(writer, TokenFileWriter) else None
    output.result(
        {
            "path": str(path),
            "documents": number,
            "ids": writer.count,
            "dtype": id_type,
            "largest_id": writer.largest_id,
            "tokenizer_vocab_size": encoder.size,
            "bytes": path.stat().st_size,
            "sha256": sidecar and sidecar.sha256,
            "identity": sidecar and sidecar.identity,
            "seconds": round(seconds, 3),
        }
    )


def _check_output(path: Path, force: bool) -> None:
    """Check before the work that the output can be written (Refused)."""
    place = f"--output: {printable_path(path)}"
    if path.suffix != ".bin" and not _is_yaml(path):
        raise Refused(f"{place}: expected a name that ends in .bin or .yaml; rename it")
    if path.exists() and not force:
        raise Refused(f"{place}: exists; give --force to replace it, or another name")
    if path.exists() and not path.is_file():
        raise Refused(f"{place}: is no regular file; give another name")
    if not os.access(path.parent, os.W_OK):
        raise Refused(f"{place}: its folder is missing or not writable; give a path in another one")


def _is_yaml(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml")


def _dtype(path: Path, size: int) -> Dtype:
    """Return the type of the ids: what the name says, else the smaller one that a vocabulary fits into (Refused)."""
    named = Path(path.stem).suffix
    if named == ".u16" and size > _UINT16_IDS:
        raise Refused(
            f"--output: {printable_path(path)}: the tokenizer has {size} ids, expected at most {_UINT16_IDS} for a "
            "name that ends in .u16.bin; let it end in .u32.bin"
        )
    if named == ".u16" or (named != ".u32" and size <= _UINT16_IDS):
        return "uint16"
    return "uint32"
