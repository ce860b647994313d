"""The page's files: what is served without a token, with which headers, and that nothing else of the disk is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.errors import Failed
from services.version import tiermesh_version
from tests.support.fake_aggregator import FakeAggregator
from tests.support.web_server import Answer, Web, serving_web
from web.static import PAGE_FOLDER, read_page

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 300_000
"""Largest size of all files of the page."""
INDEX = '<!doctype html><meta name="tiermesh-version" content=""><script type="module" src="/page/main.js"></script>'


@pytest.fixture
def page(tmp_path: Path) -> Path:
    folder = tmp_path / "page"
    (folder / "vendor/chart").mkdir(parents=True)
    (folder / "index.html").write_text(INDEX)
    (folder / "main.js").write_text("export {};\n")
    (folder / "page.css").write_text("body { margin: 0; }\n")
    (folder / "vendor/chart/chart.js").write_text("var chart;\n")
    (folder / "vendor/chart/chart.d.ts").write_text("declare const chart: unknown;\n")
    (tmp_path / "secret.js").write_text("secret")
    return folder


@pytest.fixture
def web(fake: FakeAggregator, tmp_path: Path, page: Path) -> Iterator[Web]:
    with serving_web(tmp_path, fake.address, page_folder=page) as web:
        yield web


def fetch(web: Web, path: str, method: str = "GET", **headers: str) -> Answer:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return web.call(method, path, None, {"Authorization": "", **named})


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html"),
        ("/page/main.js", "text/javascript"),
        ("/page/page.css", "text/css"),
        ("/page/vendor/chart/chart.js", "text/javascript"),
    ],
)
def test_a_file_needs_no_token_and_is_asked_for_again_by_its_content(
    web: Web, path: str, media_type: str
) -> None:
    answer = fetch(web, path)
    assert (answer.status, answer.headers["content-type"]) == (200, f"{media_type}; charset=utf-8")
    assert answer.headers["cache-control"] == "no-cache"
    etag = answer.headers["etag"]
    again = fetch(web, path, If_None_Match=f'"other", W/{etag}')
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", etag)
    head = fetch(web, path, "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.body))
    assert fetch(web, path, "POST").status in (405, 415)


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/v1/health", "/v1/cluster", "/nothing"])
def test_every_answer_says_what_a_browser_may_do_with_it(web: Web, path: str) -> None:
    headers = fetch(web, path).headers
    policy = dict(each.split(" ", 1) for each in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["tiermesh-version"] == tiermesh_version()


def test_the_index_has_its_servers_version(web: Web) -> None:
    assert f'content="{tiermesh_version()}"' in fetch(web, "/").body.decode()


@pytest.mark.parametrize(
    "path",
    [
        "/page/../secret.js",
        "/page/%2e%2e/secret.js",
        "/page/..%2fsecret.js",
        "/page//etc/passwd",
        "/page/vendor/chart/chart.d.ts",
        "/page/",
        "/page/index.html",
        "/index.html",
        "/page/main.js/",
    ],
)
def test_nothing_else_is_served(web: Web, path: str) -> None:
    assert fetch(web, path).status in (401, 404)


def test_a_name_that_another_page_has_pointed_here_gets_no_page(web: Web) -> None:
    assert fetch(web, "/", Host="evil.example").status == 421


def test_a_missing_page_is_named(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"page: no index\.html, expected the page; install again"):
        read_page(tmp_path / "page")


def test_the_page_that_ships_is_small_and_takes_nothing_from_elsewhere() -> None:
    files = read_page(PAGE_FOLDER)
    assert sum(len(file.body) for file in files.values()) <= MOST_BYTES
    index = files["/"].body.decode()
    assert f'<meta name="tiermesh-version" content="{tiermesh_version()}">' in index
    assert "http:" not in index and "https:" not in index and "<style" not in index


def test_an_installed_package_has_the_page() -> None:
    script = (
        "from setuptools import Distribution\n"
        "found = Distribution()\n"
        "found.parse_config_files(['pyproject.toml'])\n"
        "build = found.get_command_obj('build_py')\n"
        "build.ensure_finalized()\n"
        "build.manifest_files = {}\n"
        "print(*build.find_data_files('web', 'web'), sep='\\n')\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    shipped = {Path(line) for line in printed.splitlines()}
    served = {path.relative_to(ROOT) for path in PAGE_FOLDER.rglob("*") if path.is_file()}
    assert served <= shipped
