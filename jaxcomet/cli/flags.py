"""The flags that name sizes and options of workloads and options of strategies.

The one idea: which flags there are is read off the catalog of workloads and off the strategies, so
that a workload that is added there is known to every command. A flag that the workload at hand does
not take is refused with those that it takes.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from jaxcomet import strategies
from jaxcomet.cli.errors import InputError
from jaxcomet.cli.options import whole_number
from jaxcomet.operations.catalog import CATALOG, Entry, OptionValue, Size

WorkloadName = Annotated[
    str,
    typer.Argument(metavar="WORKLOAD", help=f"The compound operation: {', '.join(CATALOG)}."),
]

_WAYS = {
    "reduce": "What the second all-reduce sends: row sums, or the whole tile as the authors' "
    "program does",
    "weights": "Whether what all row blocks share stays in the cluster memory or is streamed in "
    "tiles",
    "binding": "Whether matrix and vector operations take turns or run as stages of a pipeline",
    "tiling": "Which dimensions of a matrix product are split in time between the outermost memory "
    "and the cores: its rows alone, or all",
    "algorithm": "How collectives are done; auto takes the fastest",
    "spread": "What is laid over the units: problems (heads) first, then rows, or the keys alone",
    "order": "Loops of the outermost memory, outermost first",
}
"""What an option of a strategy chooses, for help texts."""

ALL = "all"
"""Stands for every value of an option of a strategy, where a command takes it."""

_LONGEST_METAVAR = 50


@dataclass(frozen=True, kw_only=True)
class Given:
    """The flags that were given, by name and as they were written.

    Attributes:
      sizes: sizes of the workload.
      options: options of the workload.
      ways: options of strategies.
    """

    sizes: dict[str, str]
    options: dict[str, OptionValue]
    ways: dict[str, str]


def flag(name: str) -> str:
    """The flag of a size or option.

    Example:
      >>> flag("kv_heads"), flag("M")
      ('--kv-heads', '--m')
    """
    return "--" + name.lower().replace("_", "-")


def listed(names: Iterable[str], word: str = "and") -> str:
    """Flags in a sentence.

    Example:
      >>> listed(["M", "N", "K"])
      '--m, --n and --k'
    """
    *first, last = [flag(n) for n in names]
    return f"{', '.join(first)} {word} {last}" if first else last


def known_ways() -> dict[str, tuple[str, ...]]:
    """Options that any strategy has, with all their values."""
    found: dict[str, dict[str, None]] = {}
    for workload in CATALOG:
        for name, values in _ways_of(workload).items():
            found.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: tuple(found[name]) for name in (*_WAYS, *found) if name in found}


def _ways_of(workload: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for strategy in strategies.available(workload):
        for name, values in strategy.options.items():
            found.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: tuple(values) for name, values in found.items()}


def _note(taken: list[str], default: str = "") -> str:
    whom = "" if len(taken) == len(CATALOG) else ", ".join(taken)
    return "; ".join(part for part in (whom, default) if part)


def _size_flags() -> dict[str, Any]:
    by_name: dict[str, list[tuple[str, Size]]] = {}
    for entry in CATALOG.values():
        for size in entry.sizes:
            by_name.setdefault(size.name, []).append((entry.name, size))
    found = {}
    for name, takers in by_name.items():
        size = takers[0][1]
        default = size.default
        if default is not None:
            default = f"as {flag(default)}" if isinstance(default, str) else f"{default:g}"
        note = _note([n for n, _ in takers], f"{default} if left out" if default else "")
        metavar = name.upper()
        text = f"{size.text.removesuffix('.')} ({note})."
        found[name] = Annotated[str | None, typer.Option(flag(name), metavar=metavar, help=text)]
    return found


def _option_flags() -> dict[str, Any]:
    found = {}
    for entry in CATALOG.values():
        for option in entry.options:
            takers = [
                e.name for e in CATALOG.values() if option.name in [o.name for o in e.options]
            ]
            text = f"{option.text.removesuffix('.')} ({_note(takers)})."
            if option.values:
                metavar = "|".join(option.values)
                made = typer.Option(flag(option.name), metavar=metavar, help=text)
                found[option.name] = Annotated[str | None, made]
            else:
                both = f"{flag(option.name)}/--no-{flag(option.name).removeprefix('--')}"
                found[option.name] = Annotated[bool | None, typer.Option(both, help=text)]
    return found


def _way_flags(also: tuple[str, ...]) -> dict[str, Any]:
    found = {}
    for name, known in known_ways().items():
        takers = [w for w in CATALOG if name in _ways_of(w)]
        values = (*known, *also)
        metavar, text = "|".join(values), _WAYS.get(name, "An option of strategies")
        if len(metavar) > _LONGEST_METAVAR:
            metavar, text = "NAME", f"{text}: {', '.join(values)}"
        note = _note(takers)
        text = f"{text} ({note})." if note else f"{text}."
        made = typer.Option(flag(name), metavar=metavar, help=text)
        found[name] = Annotated[str | None, made]
    return found


def with_flags(command: Callable[..., None], also: tuple[str, ...] = ()) -> Callable[..., None]:
    """The command with all flags of workloads and strategies in place of its parameter `given`.

    Args:
      command: takes `given`, and what else it likes.
      also: values that every option of a strategy has besides its own.
    """
    kinds = {"sizes": _size_flags(), "options": _option_flags(), "ways": _way_flags(also)}
    return expanded(command, kinds, Given)


def expanded(
    command: Callable[..., None], kinds: Mapping[str, Mapping[str, Any]], make: Callable[..., Any]
) -> Callable[..., None]:
    """The command with flags in place of its parameter `given`.

    Args:
      command: takes `given`, and what else it likes.
      kinds: for each kind of flag the annotations by name.
      make: makes what is given from the flags of each kind, by name, that were given.
    """
    made = {f"{kind}_{name}": hint for kind, hints in kinds.items() for name, hint in hints.items()}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        keyword = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        if parameter.name != "given":
            parameters.append(keyword)
            continue
        parameters += [
            keyword.replace(name=name, annotation=hint, default=None) for name, hint in made.items()
        ]

    def run(**values: Any) -> None:
        found: dict[str, dict[str, Any]] = {}
        for kind, hints in kinds.items():
            words = {name: values.pop(f"{kind}_{name}") for name in hints}
            found[kind] = {name: word for name, word in words.items() if word is not None}
        command(given=make(**found), **values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return run


def _refuse(given: Iterable[str], taken: Iterable[str], who: str, what: str) -> None:
    wrong = [name for name in given if name not in taken]
    if wrong:
        known = f"it has {listed(taken)}" if taken else "it has none"
        raise InputError(f"{listed(wrong)}: no {what} of {who}; {known}")


def sizes(entry: Entry, given: Given) -> dict[str, float]:
    """The sizes that were given, by name.

    Raises:
      InputError: one that the workload does not take, or that is no whole number >= 1.
    """
    _refuse(given.sizes, [s.name for s in entry.sizes], entry.name, "size")
    return {n: whole_number(flag(n), word) for n, word in given.sizes.items()}


def options(entry: Entry, given: Given) -> dict[str, OptionValue]:
    """The options of the workload that were given.

    Raises:
      InputError: one that the workload does not have, or a value that is not allowed.
    """
    by_name = {o.name: o for o in entry.options}
    _refuse(given.options, [*by_name], entry.name, "option")
    for name, value in given.options.items():
        if not by_name[name].allows(value):
            raise InputError(f"{flag(name)}: got {value!r}; expected {by_name[name].allowed}")
    return given.options


def ways(entry: Entry, given: Given, also: tuple[str, ...] = ()) -> dict[str, str]:
    """The options of strategies that were given.

    Args:
      entry: the workload.
      given: the flags.
      also: values that every option has besides its own.

    Raises:
      InputError: one that no strategy of the workload has, or a value that none allows.
    """
    known = _ways_of(entry.name)
    _refuse(given.ways, [*known], f"the strategies of {entry.name}", "option")
    for name, value in given.ways.items():
        values = (*known[name], *also)
        if value not in values:
            allowed = " or ".join(values)
            raise InputError(f"{flag(name)}: got {value!r}; expected {allowed}")
    return given.ways


def missing(entry: Entry, known: Iterable[str]) -> list[str]:
    """Sizes that must still be given."""
    return [n for n in entry.required if n not in known]
