"""The console script: the application and what it does with errors.

The one idea: an error that tells the user what to change is one message on standard error and exit
code 2; anything else is a bug and shows its traceback.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
import typer.core

from jaxcomet._version import __version__
from jaxcomet.cli import codesign, compare, conventions, evaluate, kernels, machines
from jaxcomet.cli import map as map_
from jaxcomet.cli.errors import is_user_error


class _Application(typer.core.TyperGroup):
    """Turns errors of the user into a message and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ValueError as error:
            if not is_user_error(error):
                raise
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    name="jaxcomet",
    cls=_Application,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # messages in one line, not broken by a box
)


def _show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"jaxcomet {__version__}")
        raise typer.Exit
    return wanted


def _help(command: Callable[..., None]) -> str:
    """A command's docstring as help text, with the mark that keeps its examples in their lines."""
    return inspect.cleandoc(command.__doc__ or "").replace("\\b", "\b")


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    r"""What a mapping of a compound operation costs on a machine, exactly.

    \b
    Example:
      jaxcomet compare gemm-softmax --m 256 --n 256 --k 128 --machine edge
    """
    del version


app.callback(help=_help(_root))(_root)
for _command in (
    machines.machines,
    conventions.conventions,
    evaluate.evaluate,
    compare.compare,
    map_.map,
):
    app.command(_command.__name__, help=_help(_command))(_command)

_kernels = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_kernels.callback(help=_help(kernels.kernels))(kernels.kernels)
for _name, _command in (
    ("list", kernels.list_kernels),
    ("run", kernels.run),
    ("bench", kernels.bench),
):
    _kernels.command(_name, help=_help(_command))(_command)
app.add_typer(_kernels, name="kernels")

_codesign = typer.Typer(cls=codesign.Group, rich_markup_mode=None)
for _name, _command in (
    ("run", codesign.run),
    ("show", codesign.show),
    ("spaces", codesign.spaces),
):
    _codesign.command(_name, help=_help(_command))(_command)
app.add_typer(
    _codesign, name="codesign", short_help="Finds the best machine of a space for workloads."
)


def main() -> None:
    """Runs the command line."""
    app()


if __name__ == "__main__":
    main()
