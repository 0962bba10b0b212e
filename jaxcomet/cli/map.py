"""`jaxcomet map`: the best mapping of a compound operation on a machine, and how sure that is."""

import contextlib
import functools
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxcomet.cli import flags, tables
from jaxcomet.cli import options as words
from jaxcomet.cli.errors import InputError, near
from jaxcomet.cli.files import check_writable
from jaxcomet.operations import catalog
from jaxcomet.operations.catalog import Entry

if TYPE_CHECKING:
    from jaxcomet.cli.record import Record
    from jaxcomet.hardware.machine import Machine
    from jaxcomet.optimize import MapResult

_METHODS = ("auto", "enumerate", "gradient", "local", "random", "cma")
_INTERRUPTED = 130  # as a shell says of a program that SIGINT ended


@functools.partial(flags.with_flags, also=(flags.ALL,))
def map(
    *,
    workload: flags.WorkloadName,
    given: flags.Given,
    machine: words.MachineName = None,
    objective: words.ObjectiveName = "latency",
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Try this strategy only; may be repeated; all are tried if left out.",
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="NAME", help="Leave a strategy out; may be repeated."),
    ] = None,
    loop_orders: Annotated[
        str | None,
        typer.Option(
            "--loop-orders",
            metavar="fixed|all",
            help="Loop orders of the strategies, or all that can cost less as well.",
        ),
    ] = None,
    loop_order: words.LoopOrder = None,
    tiles: Annotated[
        str,
        typer.Option(
            "--tiles",
            metavar="padded|divisors|any",
            help="Sizes of tiles: divisors of each extent; padded, also those of extents a little "
            "larger; or any, the last tile being partial.",
        ),
    ] = "padded",
    units: Annotated[
        str,
        typer.Option(
            "--units",
            metavar="all|free",
            help="Use all units that find work, or try every number of them.",
        ),
    ] = "all",
    fix: Annotated[
        list[str] | None,
        typer.Option(
            "--fix",
            metavar="FACTOR=VALUE",
            help="Only mappings with this factor, e.g. M_comp=16; may be repeated.",
        ),
    ] = None,
    max_units: Annotated[
        list[str] | None,
        typer.Option(
            "--max-units",
            metavar="LEVEL=NUMBER",
            help="Only mappings on so many units of a level, over the whole machine; may be "
            "repeated.",
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help="auto, enumerate (all mappings: proven), gradient, local, random or cma; auto "
            "enumerates what is not too large.",
        ),
    ] = "auto",
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", metavar="NUMBER", help="Seeds that descend at once (32)."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="NUMBER",
            help="Most evaluations (20000; enumeration prices all if left out).",
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option("--time-limit", metavar="SECONDS", help="Then the best so far is the answer."),
    ] = None,
    key: Annotated[
        str, typer.Option("--key", metavar="SEED", help="Seed of all randomness.")
    ] = "0",
    conventions: words.Preset = None,
    convention: words.Convention = None,
    overrides: words.Overrides = None,
    figure: words.FigureFile = None,
    as_json: words.Json = False,
) -> None:
    r"""Finds the best mapping, with a lower bound beside it.

    Where there are not too many mappings, all are priced and the best one is proven. Of options of
    strategies that are left out, all weights, spreads, orders and bindings are tried, the fastest
    algorithm of each collective, and the first value of others. Ctrl-C ends the search and shows
    the best mapping so far.

    \b
    Examples:
      jaxcomet map gemm-softmax --m 256 --n 256 --k 128 --machine edge
      jaxcomet map gemm --m 64 --n 64 --k 64 --machine edge --objective edp --loop-orders all
      jaxcomet map gemm --m 96 --n 80 --k 72 --machine edge --fix M_comp=16 --max-units core=2
      jaxcomet map attention --heads 12 --q 256 --head-dim 64 --machine edge --without unfused \
        --algorithm all --tiles any --method gradient --budget 2000 --figure search.png
      jaxcomet map gemm-layernorm --m 64 --n 256 --k 64 --machine edge --json > best.json
    """
    entry = catalog.find(workload)
    if figure is not None:
        words.figure_kind(figure)
        check_writable(figure)
    sizes = flags.sizes(entry, given)
    missing = flags.missing(entry, sizes)
    if missing:
        raise InputError(
            f"{', '.join(flags.flag(name) for name in missing)}: missing; expected "
            f"{flags.listed(entry.required)}"
        )
    loaded = words.load_machine(machine, overrides or ())
    assert machine is not None
    asked = {
        "objective": words.choice("--objective", objective, words.OBJECTIVES),
        "strategies": tuple(strategy or ()) or "all",
        "without": tuple(without or ()),
        "options": _options(entry, given, strategy, without),
        "loop_orders": _loop_orders(loop_orders, loop_order, loaded),
        "tiles": words.choice("--tiles", tiles, ("padded", "divisors", "any")),
        "units": words.choice("--units", units, ("all", "free")),
        "fixed": _numbers("--fix", fix, "FACTOR=VALUE"),
        "max_units": _numbers("--max-units", max_units, "LEVEL=NUMBER"),
        "method": words.choice("--method", method, _METHODS),
        "seeds": 32 if seeds is None else int(words.whole_number("--seeds", seeds)),
        "budget": None if budget is None else int(words.whole_number("--budget", budget)),
        "time_limit_s": None if time_limit is None else _seconds(time_limit),
        "key": _seed(key),
    }
    operation = entry.build(sizes, flags.options(entry, given))
    _check_factors(asked, operation, loaded)
    rules = words.pairs("--convention", convention)
    found = _search(
        operation,
        loaded,
        {**asked, "conventions": words.choose_conventions(conventions, rules)},
    )
    from jaxcomet.cli import map_report
    from jaxcomet.cli.record import Record, filled

    record = Record(
        workload=entry.name,
        sizes=filled(entry.name, sizes),
        workload_options=entry.chosen(flags.options(entry, given)),
        strategy=found.strategy,
        options=found.options,
        machine=machine,
        machine_overrides=tuple(overrides or ()),
        preset=conventions or "default",
        convention_options=rules,
        factors={n: float(f) for n, f in found.mapping.factors.items()},  # pyright: ignore[reportArgumentType]
        loop_orders=found.loop_orders,
    )
    if figure is not None and found.history:
        _draw(figure, record, found)
    if as_json:
        tables.print_json(map_report.as_dict(record, found, asked))
    else:
        map_report.show(record, found, asked)
    if figure is not None:
        text = f"figure: {figure}" if found.history else f"no figure {figure}: nothing that fits"
        typer.echo(text, err=as_json or not found.history)
    if found.stopped == "interrupted":
        raise typer.Exit(_INTERRUPTED)


def _search(workload: Any, machine: "Machine", asked: dict[str, Any]) -> "MapResult":
    """The search with its progress bar."""
    from jaxcomet import optimize

    with tables.progress_bar() as bar:
        task = bar.add_task("searching", total=None)

        def progress(done: int, most: int) -> None:
            bar.update(task, completed=done, total=most)

        return optimize.map(workload, machine, **asked, progress=progress)


def _options(
    entry: Entry, given: flags.Given, wanted: list[str] | None, without: list[str] | None
) -> dict[str, str]:
    """The options of strategies that were given; one that no strategy tried has is refused."""
    from jaxcomet import strategies

    found = flags.ways(entry, given, (flags.ALL,))
    names = wanted or [s.name for s in strategies.available(entry.name)]
    tried = [strategies.get(entry.name, n) for n in names if n not in (without or ())]
    for name in found:
        if tried and all(name not in s.options for s in tried):
            known = ", ".join(s.name for s in strategies.available(entry.name) if name in s.options)
            raise InputError(
                f"{flags.flag(name)}: no option of {', '.join(s.name for s in tried)}; leave it "
                f"out, or try one that has it: {known}"
            )
    return found


def _loop_orders(
    named: str | None, single: list[str] | None, machine: "Machine"
) -> str | dict[str, str]:
    orders = words.loop_orders(single)
    if named is not None:
        words.choice("--loop-orders", named, ("fixed", "all"))
    if not orders:
        return named or "fixed"
    if named == "all":
        raise InputError("--loop-order: got it together with --loop-orders all; leave one out")
    levels = [level.name for level in machine.levels]
    for level in orders:
        if level not in levels:
            raise InputError(
                f"--loop-order {level}: {machine.name} has no such level; {near(level, levels)}"
            )
    return orders


def _check_factors(asked: dict[str, Any], workload: Any, machine: "Machine") -> None:
    """Refuses a fixed factor that no strategy that is tried has, with those that there are."""
    from jaxcomet import strategies
    from jaxcomet.mapping import MappingError
    from jaxcomet.optimize.search import OPTIONS
    from jaxcomet.optimize.ways import candidates

    if not asked["fixed"]:
        return
    names = [s.name for s in strategies.available(workload.name)]
    wanted = names if asked["strategies"] == "all" else asked["strategies"]
    tried = [n for n in wanted if n not in asked["without"]]
    known: dict[str, None] = {}
    for strategy, several in candidates(workload.name, {**OPTIONS, **asked["options"]}, tried):
        for chosen in several:
            with contextlib.suppress(MappingError):  # the search says why
                known |= dict.fromkeys(strategy.factor_names(workload, machine, **chosen))
    for name in asked["fixed"]:
        if known and name not in known:
            raise InputError(f"--fix {name}: no such factor; {near(name, known)}")


def _numbers(option: str, given: list[str] | None, form: str) -> dict[str, int]:
    return {
        name: int(words.whole_number(f"{option} {name}", text))
        for name, text in words.pairs(option, given, form).items()
    }


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds < math.inf:
        raise InputError(f"--time-limit: got {text!r}; expected seconds above 0")
    return seconds


def _seed(text: str) -> int:
    if text.strip() == "0":
        return 0
    return int(words.whole_number("--key", text))


def _draw(path: str, record: "Record", found: "MapResult") -> None:
    from jaxcomet.cli.compare import write_figure
    from jaxcomet.cli.record import title
    from jaxcomet.plot.convergence import Run, convergence_figure

    run = Run(history=found.history, evaluated=found.evaluated, proven=found.proven)
    drawn = convergence_figure(
        title(record.workload, record.sizes, record.workload_options, found.machine.name),
        {found.method: run},
        objective=found.objective,
        bound=found.bound.of(found.objective),
    )
    write_figure(drawn, path)
