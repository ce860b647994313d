"""Any content of a `--config` file is read, or refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cli.command_group import CommandGroup
from cli.daemon_commands import aggregator
from cli.main import tiermesh
from cli.options import _read_config
from services.errors import Refused
from tests.support.anything import is_one_line

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.dates()
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
KEYS = st.sampled_from(["listen", "name", "tls-ca", "heartbeat_seconds", "log-level"]) | VALUES.filter(
    lambda key: not isinstance(key, list | dict)
)


def check_read_or_refused(content: bytes, folder: Path) -> None:
    path = folder / "options.yaml"
    path.write_bytes(content)
    with click.Context(aggregator) as context:
        parameter = next(each for each in aggregator.params if each.name == "config")
        try:
            _read_config(context, parameter, path)
        except Refused as error:
            assert is_one_line(error)
            return
        assert all(isinstance(each, str | list) for each in (context.default_map or {}).values())


def ranges(command: click.Command) -> Iterator[click.FloatRange]:
    """Yield the type of each option with a number, of a command and its subcommands."""
    if isinstance(command, CommandGroup):
        for each in command.load_all().values():
            yield from ranges(each)
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        yield from ranges(each)
    for option in command.params:
        if isinstance(option.type, click.FloatRange):
            yield option.type


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_numbers_are_finite(value: str) -> None:
    found = list(ranges(tiermesh))
    assert len(found) > 10
    for each in found:
        with pytest.raises(click.BadParameter):
            each.convert(value, None, None)


@settings(max_examples=80, deadline=None)
@given(document=st.dictionaries(KEYS, VALUES, max_size=3))
def test_any_mapping(tmp_path_factory: pytest.TempPathFactory, document: Any) -> None:
    check_read_or_refused(yaml.safe_dump(document).encode(), tmp_path_factory.getbasetemp())


@settings(max_examples=30, deadline=None)
@given(content=st.binary(max_size=40))
@example(content=b"listen: 0x" + b"f" * 5000)
@example(content=b"listen: &a [*a]")
@example(content=b"[" * 5_000)
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    check_read_or_refused(content, tmp_path_factory.getbasetemp())
    check_read_or_refused(b"name: " + content, tmp_path_factory.getbasetemp())
