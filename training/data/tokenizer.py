"""Tokenizers: tt-train's character tokenizer, made from the corpus, and byte-pair encodings from a file.

Both are Hugging Face tokenizers (`tokenizer.json`), so other programs can load those of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from services.config.tokenizer_file import parse_tokenizer
from services.errors import Refused

PADDING, BEGIN, END = "<PAD>", "<BEG>", "<END>"
"""tt-train's special tokens: padding has the first id, begin and end have the last two."""


class Tokenizer:
    """Converter of text to token ids and back.

    Args:
        tokenizer: the Hugging Face tokenizer.

    Attributes:
        size: largest id plus 1; ids may have gaps.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer) -> None:
        self._tokenizer = tokenizer
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        self.size = max(vocabulary.values()) + 1
        self._characters: npt.NDArray[np.int64] | None = None
        words = {token for token in vocabulary if len(token) != 1}
        if isinstance(tokenizer.model, models.WordLevel) and words <= {PADDING, BEGIN, END}:
            self._characters = _character_table(vocabulary)

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        """Return the ids of a text.

        Raises:
            Refused: the tokenizer does not know a character.
        """
        if self._characters is None:
            return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.uint32)
        # Same ids as the tokenizer's own, a thousand times faster.
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        table = self._characters
        ids = np.where(points < table.size, table[np.minimum(points, table.size - 1)], -1)
        if (ids < 0).any():
            position = int(np.argmax(ids < 0))
            raise Refused(
                f"text: the character {text[position]!r} at position {position} is not in the tokenizer's vocabulary "
                f"of {self.size} tokens; leave it out, or train on a text that has it"
            )
        return ids.astype(np.uint32)

    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of the start of a text, with the special tokens that the tokenizer puts there.

        Raises:
            Refused: the tokenizer does not know a character.
        """
        if self._characters is not None:
            return [int(token) for token in self.encode(text)]
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def to_json(self) -> str:
        """Return the contents of `tokenizer.json`."""
        return str(self._tokenizer.to_str(pretty=True))


def build_character_tokenizer(characters: Iterable[str]) -> Tokenizer:
    """Return tt-train's character tokenizer: a token for each character of a text, in order, and special tokens."""
    alphabet = sorted(set(characters))
    vocabulary = {token: index for index, token in enumerate([PADDING, *alphabet, BEGIN, END])}
    tokenizer = HuggingFaceTokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (PADDING, BEGIN, END)])
    return Tokenizer(tokenizer)


def load_tokenizer(content: bytes | str, name: str) -> Tokenizer:
    """Return the tokenizer in the contents of a `tokenizer.json`.

    Args:
        content: contents of the file.
        name: name of the file, for the error.

    Raises:
        Refused: it is no tokenizer.
    """
    return Tokenizer(parse_tokenizer(content, name))


def _character_table(vocabulary: dict[str, int]) -> npt.NDArray[np.int64]:
    """Return ids by code point, -1 for characters without one."""
    single = {ord(token): index for token, index in vocabulary.items() if len(token) == 1}
    table = np.full(max(single, default=0) + 1, -1, np.int64)
    table[list(single)] = list(single.values())
    return table
