"""Debian's Chromium, driven by playwright: installed, or unpacked by scripts/unpack_chromium.sh."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path("/usr/lib/chromium/chromium")
UNPACKED = ROOT / "build" / "chromium"
FOREIGN_NAME = "evil.example"
"""Name that the browser resolves to this host, as that of a page that points it here."""
_OPTIONS = (
    "--no-sandbox",  # which root can't have
    "--disable-dev-shm-usage",  # it is small in containers
    "--disable-gpu",
    f"--host-resolver-rules=MAP {FOREIGN_NAME} 127.0.0.1, MAP *.{FOREIGN_NAME} 127.0.0.1",
)


class NoBrowser(Exception):
    """Reason why no browser can run here."""


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Run a browser without a screen until the context ends.

    Raises:
        NoBrowser: there is none.
    """
    program, settings = find_browser()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=[*_OPTIONS], env={**os.environ, **settings}
        )
        try:
            yield browser
        finally:
            browser.close()


def find_browser() -> tuple[Path, dict[str, str]]:
    """Return the program, and the variables with which it finds its libraries and fonts.

    Raises:
        NoBrowser: there is none.
    """
    if INSTALLED.exists():
        return INSTALLED, {}
    program = UNPACKED / INSTALLED.relative_to("/")
    if not program.exists():
        raise NoBrowser("no chromium: install it, or run scripts/unpack_chromium.sh")
    libraries = {path.parent for path in UNPACKED.rglob("*.so*") if path.parent.parent.name == "lib"}
    nested = {path.parent for path in UNPACKED.rglob("lib*.so*")}
    folders = ":".join(map(str, sorted(libraries | nested)))
    return program, {"LD_LIBRARY_PATH": folders, "FONTCONFIG_FILE": str(UNPACKED / "fonts.conf")}
