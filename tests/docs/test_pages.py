"""Check that everything the pages name exists: pages, files, commands, flags, metrics, variables, make targets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.main import tiermesh
from services.instrumentation import failpoints
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.certificate_watch import EXPIRY_METRIC
from services.runtime.metrics import ConnectionMetrics, WorkerMetrics
from services.tracking.points import METRICS

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md"))
)
FOLDERS = (
    "protos|services|plane|mesh|training|compute|worker|aggregator|optimizer|cli|configs|deploy|benchmarks|docs"
    "|tests|sdk"
)

OTHER_PROGRAMS_FLAGS = {"--pid"}
MOST_WORDS = 1300
MOST_PICTURE_BYTES = 200_000
LONG_PAGES = {
    "docs/internals/contract.md",
    "benchmarks/README.md",
    "CHANGELOG.md",
}
"""Reference tables and lists, which are looked up rather than read."""
MOST_COLUMNS = 100
PARTS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
"""Suffixes of the series of a metric family."""


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def quoted(page: str) -> list[str]:
    """Return every text between backticks."""
    return re.findall(r"`([^`\n]+)`", text_of(page))


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words of each `tiermesh` command that a page gives as an example."""
    blocks = "\n".join(line[4:] for line in text_of(page).splitlines() if line.startswith("    "))
    for line in blocks.replace("\\\n", " ").splitlines():
        if found := re.match(
            r"(?:\.venv/bin/)?tiermesh +(.+)", line.replace("$tls", "--tls-cert a --tls-key b --tls-ca c")
        ):
            yield shlex.split(found[1].replace("[JOB]", "JOB"), comments=True)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_have_targets(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = (ROOT / page).parent / name if name else ROOT / page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    for text in quoted(page):
        if re.fullmatch(rf"({FOLDERS})/[\w./*{{}},-]+", text):
            start, _, rest = text.partition("{")
            choice, _, end = rest.rpartition("}")
            for each in choice.split(","):
                assert [*ROOT.glob(f"{start}{each}{end}".rstrip("/"))], text


def test_files_named_in_the_code_exist() -> None:
    paths = [path for folder in FOLDERS.split("|") for path in ROOT.glob(f"{folder}/**/*.py")]
    known = "\n".join(f"/{path.relative_to(ROOT)}" for path in paths) + "\n"
    for path in paths:
        for line in path.read_text().splitlines():
            of_tt_train = "tt-train" in line or "ttml/" in line
            for name in [] if of_tt_train else re.findall(r"(?<![\w/.])\w+/[\w/]+\.py\b", line):
                assert f"/{name}\n" in known, f"{path}: {line.strip()}"


@pytest.mark.parametrize("page", [page for page in PAGES if [*commands(page)]])
def test_commands_parse(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for name, *arguments in commands(page):
        command = tiermesh.load_all()[name]
        if isinstance(command, click.Group):
            command = command.commands[arguments.pop(0)]
        with click.Context(tiermesh) as context:
            command.make_context(name, arguments, parent=context).close()


def flags_of(command: click.Command) -> set[str]:
    """Return the flags of a command and of its sub-commands."""
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return {flag for each in command.params for flag in each.opts}.union(*map(flags_of, inner))


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_the_flags_named_in_their_sentence(page: str) -> None:
    flags = {name: flags_of(command) for name, command in tiermesh.load_all().items()}
    for text in quoted(page):
        first, *words = text.split()
        if first == "tiermesh" and words:
            assert {word for word in words if word.startswith("--")} <= flags[words[0]], text
        elif first.startswith("--"):
            assert first in OTHER_PROGRAMS_FLAGS.union(*flags.values()), text


def metrics() -> set[str]:
    """Return the names of the series that the roles serve at `/metrics`."""
    aggregator = AggregatorMetrics()
    ConnectionMetrics(aggregator.registry, aggregator.role)
    roles = WorkerMetrics(), aggregator, aggregator.optimizer
    families = [family for role in roles for family in role.registry.collect()]
    named = {f"{family.name}{part}" for family in families for part in PARTS.get(family.type, ("",))}
    return {*named, *METRICS, EXPIRY_METRIC}


@pytest.mark.parametrize("page", PAGES)
def test_metrics_are_served(page: str) -> None:
    assert {*re.findall(r"\btiermesh_[a-z_]*[a-z]\b", text_of(page))} <= metrics()


@pytest.mark.parametrize("page", PAGES)
def test_variables_are_read(page: str) -> None:
    options = {each.envvar for command in tiermesh.load_all().values() for each in command.params}
    sources = [path for name in FOLDERS.split("|") for path in (ROOT / name).rglob("*.py")]
    read = {name for path in sources for name in re.findall(r"\"(TIERMESH_[A-Z_]+)\"", path.read_text())}
    assert {*re.findall(r"\bTIERMESH_[A-Z_]*[A-Z]\b", text_of(page))} <= options | read


def figures() -> set[str]:
    """Return the names of the figures that `make bench` measures."""
    return {*re.findall(r'^    "(\w+)": ', text_of("benchmarks/__main__.py"), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_and_figures_exist(page: str) -> None:
    text = text_of(page)
    targets = re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE)
    asked = re.findall(r"(?:^    |`)make (?:-C \S+ )?([a-z-]+)", text, re.MULTILINE)
    assert {*asked} <= {*targets}
    groups = re.findall(r'^GROUPS = {"(\w+)": ', text_of("benchmarks/__main__.py"), re.MULTILINE)
    assert {*re.findall(r"\bONLY=(\w+)", text)} <= {*figures(), *groups}


def test_every_figure_is_in_the_table_of_benchmarks() -> None:
    listed = set()
    for name, other in re.findall(
        r"^\| `(\w+)`(?:, `(_\w+)`)? \|", text_of("benchmarks/README.md"), re.MULTILINE
    ):
        listed |= {name, name[: len(name) - len(other)] + other}
    assert listed == figures()


def test_failpoints_exist() -> None:
    (plan,) = re.findall(rf"{failpoints.VARIABLE}=(\S+)", text_of("docs/operate/recovery.md"))
    assert failpoints.parse(plan) == {
        "checkpoint.mid-file": ("kill", 1),
        "aggregator.save.before": ("error", 3),
    }


def test_threads_are_in_the_table() -> None:
    rows = re.findall(r"^\|[^|]+\|([^|]+)\|", text_of("docs/internals/a-step.md"), re.MULTILINE)
    listed = {name for row in rows for name in re.findall("`([a-z]+)`", row)}
    sources = [
        path
        for role in ("worker", "aggregator", "optimizer", "plane")
        for path in (ROOT / role).rglob("*.py")
    ]
    sources.append(ROOT / "services" / "runtime" / "metrics_server.py")
    text = "".join(path.read_text() for path in sources)
    made = re.findall(
        r"ThreadPoolExecutor\(1, \"(.+?)\"\)|start_thread\([^)]*, \"(.+?)\"\)|OrderThread\(\"(.+?)\"", text
    )
    assert listed == {name for names in made for name in names if name}


def test_pages_are_short() -> None:
    words = {page: len(text_of(page).split()) for page in PAGES if page not in LONG_PAGES}
    assert {page: count for page, count in words.items() if count > MOST_WORDS} == {}


def test_lines_are_short() -> None:
    """Rows of tables may be longer, and so may a link, which has no space to break it at."""
    pages = [page for page in PAGES if page.startswith("docs/") or page == "README.md"]
    lines = [f"{page}: {line}" for page in pages for line in text_of(page).splitlines() if too_long(line)]
    assert lines == []


def too_long(line: str) -> bool:
    return len(line) > MOST_COLUMNS and " " in line.strip() and not line.lstrip().startswith("|")


@pytest.mark.parametrize("shelf", ["use", "operate", "internals"])
def test_a_shelf_s_index_leads_to_each_of_its_pages(shelf: str) -> None:
    questions, _, tree = text_of(f"docs/{shelf}/index.md").partition("```{toctree}")
    pages = {path.stem for path in (ROOT / "docs" / shelf).glob("*.md")} - {"index"}
    assert pages <= {*re.findall(r"\]\(([\w-]+)\.md\)", questions)}
    assert pages == {*re.findall(r"^([\w-]+)$", tree, re.MULTILINE)}


def test_pictures_are_small_and_shown() -> None:
    for path in (ROOT / "docs" / "pictures").iterdir():
        assert path.stat().st_size <= MOST_PICTURE_BYTES
        assert any(f"pictures/{path.name})" in text_of(page) for page in PAGES), path
