"""Documents to token ids: batches on all cores, with the ids that one call for each document gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from cli.tokenize.documents import Document
from services.errors import Refused
from services.input_files import read_input_file
from services.json_text import TOKENIZER, check_size
from services.printable import one_line, printable_path

BATCH_CHARACTERS = 2 << 20
"""Characters of a batch, unless one document has more. Two batches are in memory at a time."""
BATCH_DOCUMENTS = 8192
TOKENIZER_FILE = "tokenizer.json"


class Encoder:
    """A tokenizer for documents.

    Args:
        content: content of a `tokenizer.json`.
        name: the file, for errors.
        end_of_text: token that follows each document; None for none.

    Attributes:
        size: largest id of its vocabulary plus 1.

    Raises:
        Refused: it is no tokenizer, or has no such token.
    """

    def __init__(self, content: bytes, name: str, end_of_text: str | None) -> None:
        try:
            check_size(content, TOKENIZER)
            self._tokenizer = Tokenizer.from_str(content.decode())
        except Exception as error:  # the library raises plain Exception for every error
            raise Refused(
                f"--tokenizer: {name} is no Hugging Face tokenizer ({one_line(str(error), 80)}); expected a "
                "tokenizer.json as the `tokenizers` library saves it"
            ) from None
        # Settings for batches of a fixed shape, which would cut documents, or fill them up.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.size = max(self._tokenizer.get_vocab().values(), default=-1) + 1
        self._end: list[int] = []
        if end_of_text is not None:
            token = self._tokenizer.token_to_id(end_of_text)
            if token is None:
                raise Refused(
                    f"--end-of-text: {name} has no token {end_of_text!r}, expected one of its vocabulary; correct it"
                )
            self._end = [token]

    def encode(self, documents: Iterable[Document]) -> Iterator[tuple[npt.NDArray[np.uint32], int]]:
        """Yield the ids of the documents, and how many documents they are, batch by batch.

        The ids of a batch are collected while the library's threads encode the next one.

        Raises:
            Refused: the tokenizer fails at a document.
        """
        executor = ThreadPoolExecutor(1, "encode")
        try:
            running: tuple[list[Document], Future[list[Any]]] | None = None
            for batch in _batches(documents):
                texts = [document.text for document in batch]
                # It tracks no offsets, which halves the time; its ids are those of `encode`.
                future = executor.submit(self._tokenizer.encode_batch_fast, texts, add_special_tokens=False)
                if running is not None:
                    yield self._collect(*running)
                running = batch, future
            if running is not None:
                yield self._collect(*running)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _collect(
        self, batch: list[Document], future: Future[list[Any]]
    ) -> tuple[npt.NDArray[np.uint32], int]:
        """Return the ids of a batch, and its number of documents (Refused)."""
        try:
            encodings = future.result()
        except Exception as error:
            raise Refused(
                f"{self._first_failure(batch)}: the tokenizer can't encode it ({one_line(str(error), 100)}); give "
                "another tokenizer, or leave the document out"
            ) from None
        ids: list[int] = []
        for encoding in encodings:
            ids += encoding.ids
            ids += self._end
        return np.array(ids, np.uint32), len(batch)

    def _first_failure(self, batch: list[Document]) -> str:
        """Return the place of the first document of a batch that can't be encoded."""
        for document in batch:
            try:
                self._tokenizer.encode(document.text, add_special_tokens=False)
            except Exception:
                return document.place
        return batch[0].place


def read_tokenizer_file(path: Path) -> tuple[bytes, str]:
    """Return the content and the name of a `tokenizer.json`, given by its path or its folder.

    Raises:
        Refused: there is none.
    """
    if path.is_dir():
        path = path / TOKENIZER_FILE
    return read_input_file("--tokenizer", path, TOKENIZER.limit_bytes), printable_path(path)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS or len(batch) == BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
