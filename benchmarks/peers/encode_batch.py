"""Measure `encode_batch` of the tokenizers library, as its users call it: all documents in one call.

`encode_batch.py TEXTS.jsonl TOKENIZER.json METHOD` prints, as JSON, the seconds of the call and the number of ids.
METHOD is `encode_batch` or `encode_batch_fast`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer


def main(texts: str, tokenizer_file: str, method: str) -> None:
    """Encode the documents and print the result."""
    tokenizer = Tokenizer.from_file(tokenizer_file)
    documents = [json.loads(line)["text"] for line in Path(texts).read_text().splitlines()]
    started = time.perf_counter()
    encodings = getattr(tokenizer, method)(documents, add_special_tokens=False)
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "ids": sum(len(each.ids) for each in encodings)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
