"""Python warnings, such as one about an import in a user's model, as lines of the log."""

from __future__ import annotations

import logging
import warnings
from typing import TextIO

log = logging.getLogger("tiermesh.compute")


def log_python_warnings() -> None:
    """Put Python warnings, such as one about an import in a user's model, on one line of the log each."""

    def log_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        del category, file, line
        log.warning("%s:%d: %s", filename, lineno, message)

    warnings.showwarning = log_warning
