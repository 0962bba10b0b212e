"""How results look: consoles, number formats, tables and progress bars.

Results go to standard output, progress to standard error, and the latter only on a terminal, so
that what is piped on is the result alone.
"""

import json
import math
import os
import sys
from collections.abc import Collection, Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

_PIPED_WIDTH = 140
_NARROW = 120
_NARROWEST = 14
_ENERGY_UNITS = ((1e12, "J"), (1e9, "mJ"), (1e6, "µJ"), (1e3, "nJ"), (1.0, "pJ"))


def output() -> Console:
    """The console of results; names with brackets are printed as they are."""
    width = None
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        width = _PIPED_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def is_narrow(console: Console) -> bool:
    """Whether wide tables must do without their less telling columns."""
    return console.width < _NARROW


def progress_bar(unit: str = "mappings") -> Progress:
    """A progress bar on standard error that counts in a unit; silent where that is no terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )


def stage_bar() -> Progress:
    """A progress bar of shares done, with a note behind it (a task's field of that name)."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )


def print_json(value: Any) -> None:
    """Plain data on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def grid(title: str, columns: Iterable[str], *, left: int = 1, fold: Collection[str] = ()) -> Table:
    """An empty table: the first `left` columns are aligned left, the others right.

    Only the columns named in `fold` may be broken into lines where the console is narrow.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for index, name in enumerate(columns):
        side = "left" if index < left else "right"
        table.add_column(name, justify=side, no_wrap=name not in fold, overflow="fold")
    return table


def show(table: Table, console: Console | None = None) -> None:
    """Prints a table; where its numbers do not fit the console, lines get longer, never cut."""
    console = console or output()
    needed = 1
    for column in table.columns:
        lines = [line for cell in (column.header, *column.cells) for line in str(cell).split("\n")]
        longest = max(cell_len(line) for line in lines)
        column.min_width = longest if column.no_wrap else min(longest, _NARROWEST)
        needed += column.min_width + 3
    if needed > console.width:
        console.width = needed
    console.print(table)


def exact(value: float) -> str:
    """A number in full: whole ones as such, others with all digits.

    Example:
      >>> exact(9270.0), exact(0.1), exact(2.0**53), exact(math.inf)
      ('9270', '0.1', '9007199254740992', 'unlimited')
    """
    if math.isinf(value):
        return "unlimited"
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def whole(value: float) -> int | float:
    """A number for JSON: whole ones without a decimal point."""
    return int(value) if float(value).is_integer() else float(value)


def count(value: float | int) -> str:
    """A number with thousands separators; up to 2 decimals where it is not whole.

    Example:
      >>> count(629116.0), count(1234.5678), count(0.0)
      ('629,116', '1,234.57', '0')
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def change(value: float | int) -> str:
    """A difference with its sign; 0 without.

    Example:
      >>> change(7808.0), change(-18.0), change(0.0)
      ('+7,808', '-18', '0')
    """
    return ("+" if value > 0 else "") + count(value)


def percent(share: float, total: float = 1.0) -> str:
    """A share in per cent with three significant digits; "-" where there is no total.

    Example:
      >>> percent(1.0, 8.0), percent(0.00083)
      ('12.5 %', '0.083 %')
    """
    return f"{100.0 * share / total:.3g} %" if total else "-"


def energy_unit(largest_pj: float) -> tuple[float, str]:
    """The unit in which an energy reads well: (pJ per unit, its name).

    Example:
      >>> energy_unit(2.07e7)
      (1000000.0, 'µJ')
    """
    return next((u for u in _ENERGY_UNITS if largest_pj >= u[0]), _ENERGY_UNITS[-1])


def energy(value_pj: float) -> str:
    """An energy in the unit that reads well.

    Example:
      >>> energy(20703032.6)
      '20.7 µJ'
    """
    scale, unit = energy_unit(value_pj)
    return f"{value_pj / scale:.4g} {unit}"
