"""Options that several commands share, and the parsers of their values."""

from __future__ import annotations

import click

from autosync import units


def positive_seconds(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Parse an option's time such as `2min`, above 0; return None if the option is not given."""
    seconds = some_seconds(_context, _parameter, text)
    if seconds == 0:
        raise click.BadParameter("no time is too little (above 0)")
    return seconds


def some_seconds(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Parse an option's time such as `10min` or `0s`; return None if the option is not given."""
    if text is None:
        return None
    try:
        return units.parse_time(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_SCRIPT = "autosync.script"


class ScriptCommand(click.Command):
    """A command that takes a script with its arguments after `--`; `script_of_command` returns them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set aside the words after `--`, and parse the others."""
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[_SCRIPT] = tuple(args[place + 1 :])
        return super().parse_args(ctx, args[:place])


def script_of_command(context: click.Context) -> tuple[str, ...]:
    """Return the script and its arguments that follow `--` on the command line; empty if there is none."""
    script: tuple[str, ...] = context.meta[_SCRIPT]
    return script


seed_option = click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0, 2**32 - 1), help="The seed of random choices."
)
