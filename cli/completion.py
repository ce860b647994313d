"""`tiermesh completion`: prints a script by which a shell completes commands, options and files."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh")


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands and options in bash or zsh."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root()
    assert isinstance(root.command, click.Group)
    print(kind(root.command, {}, "tiermesh", "_TIERMESH_COMPLETE").source())
