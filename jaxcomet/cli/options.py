"""Options that several commands share, and how their words are read."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from jaxcomet.cli.errors import InputError, near

if TYPE_CHECKING:
    from jaxcomet.cost.conventions import Conventions
    from jaxcomet.hardware.machine import Machine

MachineName = Annotated[
    str | None,
    typer.Option("--machine", metavar="NAME|FILE", help="A machine's name or its TOML file."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a number of the machine by its dotted path; may be repeated.",
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--conventions",
        metavar="PRESET",
        help="Rules of accounting: default, comet-program or roofline.",
    ),
]
Convention = Annotated[
    list[str] | None,
    typer.Option(
        "--convention",
        metavar="OPTION=VALUE",
        help="Change one rule (`jaxcomet conventions` lists them); may be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print plain data as JSON.")]


def pairs(option: str, words: Iterable[str] | None) -> dict[str, str]:
    """Repeated NAME=VALUE words of an option, by name.

    Raises:
      InputError: no ``=`` in a word, an empty name or value, or a name given twice.

    Example:
      >>> pairs("--factor", ["M_comp=64", "K_comp = 128"])
      {'M_comp': '64', 'K_comp': '128'}
    """
    found: dict[str, str] = {}
    for word in words or ():
        name, equals, value = (part.strip() for part in word.partition("="))
        if not (equals and name and value):
            raise InputError(f"{option}: got {word!r}; expected NAME=VALUE")
        if name in found:
            raise InputError(f"{option} {name}: got it twice; give it once")
        found[name] = value
    return found


def whole_number(label: str, text: str) -> float:
    """A whole number from 1 to 2**53 as a float.

    Raises:
      InputError: anything else.

    Example:
      >>> whole_number("--m", "256")
      256.0
    """
    number = parse_whole(text)
    if number is None:
        raise InputError(f"{label}: got {text!r}; expected a whole number from 1 to 2**53")
    return number


def parse_whole(text: str) -> float | None:
    """A whole number from 1 to 2**53 (``256``, ``256.0`` or ``1e6``), else None."""
    text = text.strip()
    if re.fullmatch(r"\+?\d{1,16}", text):
        number = float(int(text))
        return number if 1 <= int(text) <= 2**53 else None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 1.0 <= number <= 2.0**53 and number.is_integer() else None


def load_machine(name: str | None, overrides: Iterable[str]) -> "Machine":
    """The machine of ``--machine`` with the changes of ``--set``.

    Raises:
      InputError: no machine is named.
      MachineFileError: the machine or a change cannot be used.
    """
    from jaxcomet import hardware

    if name is None:
        known = ", ".join(hardware.machine_names())
        raise InputError(f"--machine: missing; expected {known} or the path of a .toml file")
    return hardware.load(name, list(pairs("--set", overrides).items()))


def choose_conventions(preset: str | None, options: dict[str, str]) -> "Conventions":
    """The rules of ``--conventions`` with the changes of ``--convention``.

    Raises:
      ConventionError: an unknown preset, option or value.
    """
    from jaxcomet.cost.conventions import RULES, ConventionError, conventions

    for name in options:
        if name not in RULES:
            raise ConventionError(f"--convention {name}: no such rule; {near(name, RULES)}")
    return conventions(preset or "default", **options)
