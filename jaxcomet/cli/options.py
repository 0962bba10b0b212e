"""Options that several commands share, and how their words are read."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxcomet.cli.errors import InputError, near

if TYPE_CHECKING:
    from jaxcomet.cost.conventions import Conventions
    from jaxcomet.hardware.machine import Machine

OBJECTIVES = ("latency", "energy", "edp")

_FIGURES = ("png", "svg", "pdf")

ObjectiveName = Annotated[
    str, typer.Option("--objective", metavar="latency|energy|edp", help="What is minimised.")
]
FigureFile = Annotated[
    str | None,
    typer.Option("--figure", metavar="FILE", help="Write a figure: .png, .svg or .pdf."),
]
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
LoopOrder = Annotated[
    list[str] | None,
    typer.Option(
        "--loop-order",
        metavar="LEVEL=DIMS",
        help="Order of a level's loops in time, outermost first, e.g. core=NKM; may be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print plain data as JSON.")]


def pairs(option: str, words: Iterable[str] | None, form: str = "NAME=VALUE") -> dict[str, str]:
    """Repeated NAME=VALUE words of an option, by name.

    Args:
      option: the option, for messages.
      words: the words.
      form: what they look like, for messages.

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
            raise InputError(f"{option}: got {word!r}; expected {form}")
        if name in found:
            raise InputError(f"{option} {name}: got it twice; give it once")
        found[name] = value
    return found


def choice(option: str, word: str, known: tuple[str, ...]) -> str:
    """A word that is one of those known.

    Raises:
      InputError: another one.

    Example:
      >>> choice("--objective", "energy", OBJECTIVES)
      'energy'
    """
    if word not in known:
        raise InputError(f"{option}: got {word!r}; expected {', '.join(known)}")
    return word


def figure_kind(path: str) -> str:
    """The kind of figure that the name of a file says.

    Raises:
      InputError: none that can be written.

    Example:
      >>> figure_kind("bars.PNG")
      'png'
    """
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in _FIGURES:
        endings = ", ".join(f".{kind}" for kind in _FIGURES)
        raise InputError(f"--figure: got {path!r}; expected a name that ends in {endings}")
    return kind


def loop_orders(words: Iterable[str] | None) -> dict[str, str]:
    """The dimensions of each ``--loop-order``, outermost first, by level.

    Raises:
      InputError: no LEVEL=DIMS, a level given twice, or a dimension named twice.

    Example:
      >>> loop_orders(["core=NKM"])
      {'core': 'NKM'}
    """
    found: dict[str, str] = {}
    for level, dims in pairs("--loop-order", words, "LEVEL=DIMS").items():
        twice = [d for d in dims if dims.count(d) > 1]
        if twice:
            raise InputError(f"--loop-order {level}: got {twice[0]} twice in {dims}; name it once")
        found[level] = dims
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
