"""The group of all commands: sections by purpose, an example for each, and modules that are imported when needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

_WHOLE = 1000
"""Limit on the characters of a command's line in the list: none is cut, as click would at the terminal's width."""


@dataclass(frozen=True)
class Entry:
    """A command of the group.

    Attributes:
        place: where it is defined, as `module:attribute`. The module is imported only when the command is needed.
        examples: command lines without `tiermesh`, for its help.
    """

    place: str
    examples: tuple[str, ...]

    def load(self) -> click.Command:
        """Import the command, and return it with its examples."""
        module, _, attribute = self.place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        if self.examples:
            lines = "".join(f"\n  tiermesh {each}" for each in self.examples)
            noun = "Example" if len(self.examples) == 1 else "Examples"
            command.epilog = f"\b\n{noun}:{lines}"
        return command


class WholeLineGroup(click.Group):
    """Group whose list of commands wraps long lines, in place of cutting them, and that knows misspelled commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name; for an unknown one name the nearest."""
        name = args[0]
        if name not in self.list_commands(ctx) and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, self.list_commands(ctx), 1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        write_commands(formatter, "Commands", self.commands)


def write_commands(formatter: click.HelpFormatter, title: str, commands: Mapping[str, click.Command]) -> None:
    """Write a list of commands with the first sentence of each help."""
    with formatter.section(title):
        formatter.write_dl([(name, command.get_short_help_str(_WHOLE)) for name, command in commands.items()])


class CommandGroup(WholeLineGroup):
    """Group that lists its commands by purpose, and imports a command's module when it is needed.

    Attributes:
        sections: entries by section and by the command's name, in the order of the help. The section "" is hidden.
        commands: commands that take the place of an entry.
    """

    def __init__(self, *, sections: Mapping[str, Mapping[str, Entry]], **settings: Any) -> None:
        super().__init__(**settings)
        self.sections = sections

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        """Parse the command line, which imports commands for their help; see `invoke` for Ctrl-C."""
        try:
            return super().make_context(*arguments, **settings)
        except KeyboardInterrupt:
            raise click.Abort from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; on Ctrl-C raise `click.Abort`, before click prints a blank line for it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return [name for entries in self.sections.values() for name in entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name; None if there is none."""
        for entries in self.sections.values():
            if cmd_name in entries:
                return self.commands.get(cmd_name) or entries[cmd_name].load()
        return None

    def load_all(self) -> dict[str, click.Command]:
        """Return all commands by name."""
        return {name: entry.load() for entries in self.sections.values() for name, entry in entries.items()}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list of commands for each section."""
        width = max(len(name) for title, entries in self.sections.items() if title for name in entries)
        for title, entries in self.sections.items():
            if title:
                write_commands(
                    formatter, title, {name.ljust(width): entry.load() for name, entry in entries.items()}
                )
