"""Files of Hugging Face's tokenizers (`tokenizer.json`)."""

from __future__ import annotations

from tokenizers import Tokenizer

from services.errors import Refused
from services.json_text import TOKENIZER, check_size
from services.printable import one_line, printable_path


def parse_tokenizer(content: bytes | str, name: str) -> Tokenizer:
    """Return the tokenizer in the contents of a `tokenizer.json`.

    Args:
        content: contents of the file.
        name: name of the file, for the error.

    Raises:
        Refused: it is no tokenizer, or has no tokens.
    """
    data = content if isinstance(content, bytes) else content.encode()
    text = data.decode("utf-8", errors="replace")
    try:
        check_size(data, TOKENIZER)
        tokenizer = Tokenizer.from_str(text)
        reason = "" if tokenizer.get_vocab_size() else "it has no tokens"
    except Exception as error:  # the library raises plain Exception for every error
        tokenizer, reason = None, one_line(str(error), 100)
    if reason or tokenizer is None:
        raise Refused(
            f"training_config.tokenizer_path: {printable_path(name)} is no Hugging Face tokenizer ({reason}); "
            "expected a tokenizer.json as the `tokenizers` library saves it"
        )
    return tokenizer
