"""`jaxcomet compare`: the strategies, each at its best mapping, and why the best one wins."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxcomet.cli import flags, tables
from jaxcomet.cli import options as words
from jaxcomet.cli.errors import InputError
from jaxcomet.cli.files import check_writable, write_whole
from jaxcomet.cli.shapes import SHAPES
from jaxcomet.operations import catalog

if TYPE_CHECKING:
    from jaxcomet.cli.ranking import Ranking, Setting


@flags.with_flags
def compare(
    *,
    workload: Annotated[
        str,
        typer.Argument(
            metavar="[WORKLOAD]", help=f"The compound operation: {', '.join(catalog.CATALOG)}."
        ),
    ] = next(iter(SHAPES)),
    given: flags.Given,
    machine: words.MachineName = None,
    objective: words.ObjectiveName = "latency",
    conventions: words.Preset = None,
    convention: words.Convention = None,
    overrides: words.Overrides = None,
    figure: words.FigureFile = None,
    as_json: words.Json = False,
) -> None:
    r"""Ranks the strategies of a compound operation, each at its best mapping.

    All mappings of every strategy are priced, with both ways to hold the weights, every spread and
    every loop order where none is named, so the best one is proven. Without sizes, twelve shapes
    are compared on their machines: those that the authors of COMET released, or, for attention,
    shapes of BERT, GPT-2 and Llama.

    \b
    Examples:
      jaxcomet compare gemm-softmax --m 256 --n 256 --k 128 --machine edge
      jaxcomet compare gemm-softmax --m 1 --n 4096 --k 512 --machine cloud --figure bars.png
      jaxcomet compare gemm-layernorm --m 256 --n 256 --k 128 --norm rms --machine edge
      jaxcomet compare attention --batch 1 --heads 32 --kv-heads 8 --q 2048 --kv 2048 \
        --head-dim 128 --causal --machine cloud
      jaxcomet compare attention --heads 12 --q 1 --kv 1024 --head-dim 64 --machine edge
      jaxcomet compare gemm --m 512 --n 512 --k 512 --machine r2 --conventions roofline \
        --objective energy
      jaxcomet compare gemm-softmax --m 256 --n 256 --k 128 --machine edge --json > best.json
      jaxcomet compare --figure speedups.svg
    """
    entry = catalog.find(workload)
    words.choice("--objective", objective, words.OBJECTIVES)
    if figure is not None:
        words.figure_kind(figure)
        check_writable(figure)
    sizes = flags.sizes(entry, given)
    common = {
        "workload": workload,
        "machine_overrides": tuple(overrides or ()),
        "preset": conventions or "default",
        "convention_options": words.pairs("--convention", convention),
        "objective": objective,
        "options": flags.ways(entry, given),
    }
    variant = flags.options(entry, given)
    if sizes or machine is not None:
        missing = flags.missing(entry, sizes)
        if missing:
            instead = ""
            if workload in SHAPES:
                instead = (
                    f", or none of them and no --machine for the {len(SHAPES[workload])} shapes "
                    f"of {workload} on their machines"
                )
            raise InputError(
                f"{', '.join(map(flags.flag, missing))}: missing; expected "
                f"{flags.listed(entry.required)}{instead}"
            )
        words.load_machine(machine, overrides or ())  # says which there are if none is named
        one = {**common, "sizes": sizes, "workload_options": variant, "machine": machine}
        _compare_one(one, figure, as_json)
    elif workload in SHAPES:
        from jaxcomet.cli.several import compare_shapes

        compare_shapes(common, variant, figure, as_json)
    else:
        raise InputError(
            f"{', '.join(map(flags.flag, entry.required))}: missing; {workload} has no shapes to "
            f"compare without sizes (those that have: {', '.join(SHAPES)}); name sizes and a "
            "machine"
        )


def rank_all(settings: Sequence["Setting"]) -> list["Ranking"]:
    """Ranks each setting, with one progress bar over all strategies."""
    from jaxcomet import strategies
    from jaxcomet.cli.ranking import rank

    first = settings[0]
    rules = words.choose_conventions(first.preset, first.convention_options)
    loaded = {s.machine: words.load_machine(s.machine, s.machine_overrides) for s in settings}
    names = [s.name for s in strategies.available(first.workload)]
    rankings = []
    with tables.progress_bar("strategies") as bar:
        task = bar.add_task("pricing", total=len(settings) * len(names))
        for position, setting in enumerate(settings):

            def advance(name: str, share: float, one: int = position) -> None:
                place = f"{settings[one].machine} {settings[one].shape} {name}"
                done = one * len(names) + names.index(name) + share
                bar.update(task, description=place, completed=done)

            rankings.append(rank(setting, loaded[setting.machine], rules, advance))
    return rankings


def _compare_one(values: dict[str, Any], figure: str | None, as_json: bool) -> None:
    from jaxcomet.cli.ranking import Setting

    (ranking,) = rank_all([Setting(**values)])
    if figure is not None:
        _draw_one(ranking, figure)
    if as_json:
        tables.print_json(as_dict(ranking))
        return
    _print_one(ranking)
    if figure is not None:
        tables.output().print(f"figure: {figure}")


def _title(ranking: "Ranking") -> str:
    from jaxcomet.cli.record import title

    setting = ranking.setting
    return title(setting.workload, setting.sizes, setting.workload_options, ranking.machine.name)


def _print_one(ranking: "Ranking") -> None:
    from jaxcomet.cli.breakdown import broken, energy_table, latency_table
    from jaxcomet.cli.nest import nest
    from jaxcomet.cli.ranking import BASELINE
    from jaxcomet.cli.reasons import limiting, why
    from jaxcomet.explain import below_bound

    setting = ranking.setting
    console = tables.output()
    narrow = tables.is_narrow(console)
    console.print(_title(ranking), style="bold")
    console.print(f"objective {setting.objective}, conventions {rules_of(ranking)}")
    for override in setting.machine_overrides:
        console.print(f"machine changed: {override}")
    console.print()
    if ranking.ranked:
        scale, unit = tables.energy_unit(max(e.energy_pj for e in ranking.ranked))
        rated = ranking.has_baseline
        columns = ["", "strategy", "cycles", *(["speedup"] if rated else []), f"energy\n{unit}"]
        columns += [*(["energy\nratio"] if rated else []), "utili-\nzation", "DRAM\nbytes"]
        if not narrow:
            columns += ["largest share", "mappings\npriced"]
        table = tables.grid("Strategies, each at its best mapping", columns, left=2)
        for position, entry in enumerate(ranking.ranked, start=1):
            name, cycles = limiting(entry, ranking.machine)
            cells = [
                str(position),
                broken(entry.label),
                tables.count(entry.latency_cycles),
                *([times(ranking.speedup(entry))] if rated else []),
                f"{entry.energy_pj / scale:.4g}",
                *([times(ranking.energy_ratio(entry))] if rated else []),
                tables.percent(float(entry.cost.utilization)),  # pyright: ignore[reportArgumentType]
                tables.count(float(entry.cost.root_traffic_bytes)),  # pyright: ignore[reportArgumentType]
            ]
            if not narrow:
                cells.append(f"{name}\n{tables.percent(cycles, entry.latency_cycles)}")
                cells.append(tables.count(entry.evaluated))
            table.add_row(*cells)
        tables.show(table)
        if rated:
            console.print(f"speedup and energy ratio: {BASELINE} / strategy")
    for entry in ranking.ranked:
        if below_bound(entry.cost):
            console.print(f"{entry.label}: {below_bound(entry.cost)}", style="bold yellow")
    for entry in ranking.infeasible:
        console.print(f"{entry.label}: no mapping fits; the nearest: ", style="bold red", end="")
        console.print("; ".join(entry.cost.reasons()))
    for name, reason in ranking.impossible.items():
        console.print(f"{name}: not possible: {reason}", style="bold red")
    console.print()
    for sentence in why(ranking):
        console.print(sentence)
    console.print()
    if ranking.ranked:
        costs = {e.label: e.cost for e in ranking.ranked}
        tables.show(latency_table(costs, ranking.machine, shares=not narrow))
        if setting.objective != "latency":
            tables.show(energy_table(costs))
        best = ranking.ranked[0]
        console.print(f"Best mapping, {best.label}", style="bold")
        console.print(nest(best.mapping))


def rules_of(ranking: "Ranking") -> str:
    """The conventions of a ranking, in a word."""
    entries = (*ranking.ranked, *ranking.infeasible)
    return entries[0].cost.conventions.preset


def times(ratio: float | None) -> str:
    """A ratio for a table."""
    return "-" if ratio is None else f"{ratio:.2f}×"


def as_dict(ranking: "Ranking") -> dict[str, Any]:
    """A ranking as plain data."""
    from jaxcomet.cli.reasons import why
    from jaxcomet.cli.record import filled
    from jaxcomet.plot.groups import latency_groups

    setting = ranking.setting
    entries = []
    for position, entry in enumerate((*ranking.ranked, *ranking.infeasible), start=1):
        entries.append(
            {
                "rank": position if entry.feasible else None,
                "label": entry.label,
                "speedup_over_unfused": ranking.speedup(entry) if entry.feasible else None,
                "energy_ratio_of_unfused": ranking.energy_ratio(entry) if entry.feasible else None,
                "mappings": entry.evaluated,
                "proven": entry.proven,
                "gap": entry.gap,
                "latency_groups": latency_groups(entry.cost, ranking.machine),
                **entry.record(setting).as_dict(entry.cost),
            }
        )
    return {
        "workload": setting.workload,
        "sizes": {n: tables.whole(s) for n, s in filled(setting.workload, setting.sizes).items()},
        "workload_options": catalog.find(setting.workload).chosen(setting.workload_options),
        "machine": setting.machine,
        "machine_overrides": list(setting.machine_overrides),
        "objective": setting.objective,
        "conventions": rules_of(ranking),
        "best": ranking.ranked[0].label if ranking.ranked else None,
        "why": why(ranking),
        "ranking": entries,
        "not_possible": ranking.impossible,
    }


def write_figure(figure: Any, path: str) -> None:
    """Writes a figure as the kind of file that its name says."""
    from jaxcomet.plot.breakdown import to_bytes

    write_whole(path, to_bytes(figure, words.figure_kind(path)))  # pyright: ignore[reportArgumentType]


def _draw_one(ranking: "Ranking", path: str) -> None:
    from jaxcomet.plot.breakdown import Bar, breakdown_figure
    from jaxcomet.plot.groups import latency_groups

    bars = [
        Bar(
            label=entry.label,
            parts=latency_groups(entry.cost, ranking.machine),
            speedup=ranking.speedup(entry),
        )
        for entry in ranking.ranked
    ]
    if not bars:
        raise InputError(f"--figure {path}: no strategy fits this machine; nothing to draw")
    note = "cycles, and speedup over unfused" if ranking.has_baseline else "cycles"
    write_figure(breakdown_figure(f"{_title(ranking)}\n{note}", bars), path)
