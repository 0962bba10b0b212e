"""`jaxcomet compare`: the strategies, each at its best mapping, and why the best one wins."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxcomet.cli import options as words
from jaxcomet.cli import tables
from jaxcomet.cli.errors import InputError
from jaxcomet.cli.files import check_writable, write_whole

if TYPE_CHECKING:
    from jaxcomet.cli.ranking import Ranking, Setting

_OBJECTIVES = ("latency", "energy", "edp")
_FIGURES = ("png", "svg", "pdf")


def compare(
    workload: Annotated[
        str, typer.Argument(metavar="[WORKLOAD]", help="The compound operation: gemm-softmax.")
    ] = "gemm-softmax",
    m: words.SizeM = None,
    n: words.SizeN = None,
    k: words.SizeK = None,
    machine: words.MachineName = None,
    objective: Annotated[
        str, typer.Option("--objective", metavar="latency|energy|edp", help="What is minimised.")
    ] = "latency",
    reduce: words.Reduce = None,
    binding: words.Binding = None,
    conventions: words.Preset = None,
    convention: words.Convention = None,
    overrides: words.Overrides = None,
    figure: Annotated[
        str | None,
        typer.Option("--figure", metavar="FILE", help="Write a figure: .png, .svg or .pdf."),
    ] = None,
    as_json: words.Json = False,
) -> None:
    r"""Ranks the strategies of a compound operation, each at its best mapping.

    All mappings of every strategy are priced, so the best one is proven. Without sizes, the twelve
    shapes that the authors of COMET released are compared on their machines.

    \b
    Examples:
      jaxcomet compare gemm-softmax --m 256 --n 256 --k 128 --machine edge
      jaxcomet compare gemm-softmax --m 1 --n 4096 --k 512 --machine cloud --figure bars.png
      jaxcomet compare gemm-softmax --m 256 --n 256 --k 128 --machine edge --json > best.json
      jaxcomet compare --figure speedups.svg
    """
    words.check_workload(workload)
    if objective not in _OBJECTIVES:
        raise InputError(f"--objective: got {objective!r}; expected {', '.join(_OBJECTIVES)}")
    if figure is not None:
        if _suffix(figure) not in _FIGURES:
            endings = ", ".join(f".{kind}" for kind in _FIGURES)
            raise InputError(f"--figure: got {figure!r}; expected a name that ends in {endings}")
        check_writable(figure)
    sizes = words.sizes({"M": m, "N": n, "K": k})
    given = {"reduce": reduce, "binding": binding}
    chosen = {name: value for name, value in given.items() if value is not None}
    rules = words.pairs("--convention", convention)
    common = {
        "workload": workload,
        "machine_overrides": tuple(overrides or ()),
        "preset": conventions or "default",
        "convention_options": rules,
        "objective": objective,
        "options": chosen,
    }
    if sizes or machine is not None:
        missing = [f"--{d.lower()}" for d in ("M", "N", "K") if d not in sizes]
        if missing:
            raise InputError(
                f"{', '.join(missing)}: missing; expected --m, --n and --k, or none of them and no "
                "--machine for the twelve published shapes on their machines"
            )
        words.load_machine(machine, overrides or ())  # says which there are if none is named
        _compare_one({**common, "sizes": sizes, "machine": machine}, figure, as_json)
    else:
        _compare_published(common, figure, as_json)


def _suffix(path: str) -> str:
    return Path(path).suffix.removeprefix(".").lower()


def _rank(settings: Sequence["Setting"]) -> list["Ranking"]:
    """Ranks each setting, with one progress bar over all mappings."""
    from jaxcomet.cli.ranking import candidates, rank, total

    first = settings[0]
    candidates(first.workload, first.options)  # refuses a wrong option before the machines load
    rules = words.choose_conventions(first.preset, first.convention_options)
    loaded = {s.machine: words.load_machine(s.machine, s.machine_overrides) for s in settings}
    rankings = []
    with tables.progress_bar() as bar:
        number = sum(total(s, loaded[s.machine]) for s in settings)
        task = bar.add_task("pricing", total=number)
        for setting in settings:
            bar.update(task, description=f"{setting.machine} {setting.shape}")
            advance = lambda priced: bar.advance(task, priced)  # noqa: E731
            rankings.append(rank(setting, loaded[setting.machine], rules, advance))
    return rankings


def _compare_one(values: dict[str, Any], figure: str | None, as_json: bool) -> None:
    from jaxcomet.cli.ranking import Setting

    (ranking,) = _rank([Setting(**values)])
    if figure is not None:
        _draw_one(ranking, figure)
    if as_json:
        tables.print_json(_as_dict(ranking))
        return
    _print_one(ranking)
    if figure is not None:
        tables.output().print(f"figure: {figure}")


def _title(ranking: "Ranking") -> str:
    setting = ranking.setting
    dims = " × ".join(f"{d} {tables.count(s)}" for d, s in setting.sizes.items())
    return f"{setting.workload} {dims} on {ranking.machine.name}"


def _print_one(ranking: "Ranking") -> None:
    from jaxcomet.cli.breakdown import broken, energy_table, latency_table
    from jaxcomet.cli.ranking import limiting, why
    from jaxcomet.mapping import describe

    setting = ranking.setting
    console = tables.output()
    narrow = tables.is_narrow(console)
    console.print(_title(ranking), style="bold")
    console.print(f"objective {setting.objective}, conventions {_rules(ranking)}")
    for override in setting.machine_overrides:
        console.print(f"machine changed: {override}")
    if setting.objective == "edp":
        console.print(
            "edp: parts of unfused and fused-distsm that run apart are each at their own best, "
            "which need not be the best product of the whole."
        )
    console.print()
    if ranking.ranked:
        scale, unit = tables.energy_unit(max(e.energy_pj for e in ranking.ranked))
        columns = ["", "strategy", "cycles", "speedup", f"energy\n{unit}", "energy\nratio"]
        columns += ["utili-\nzation", "DRAM\nbytes"]
        if not narrow:
            columns += ["largest share", "mappings\npriced"]
        table = tables.grid("Strategies, each at its best mapping", columns, left=2)
        for position, entry in enumerate(ranking.ranked, start=1):
            name, cycles = limiting(entry, ranking.machine)
            cells = [
                str(position),
                broken(entry.label),
                tables.count(entry.latency_cycles),
                _times(ranking.speedup(entry)),
                f"{entry.energy_pj / scale:.4g}",
                _times(ranking.energy_ratio(entry)),
                tables.percent(float(entry.cost.utilization)),  # pyright: ignore[reportArgumentType]
                tables.count(float(entry.cost.root_traffic_bytes)),  # pyright: ignore[reportArgumentType]
            ]
            if not narrow:
                cells.append(f"{name}\n{tables.percent(cycles, entry.latency_cycles)}")
                cells.append(tables.count(entry.best.evaluated))
            table.add_row(*cells)
        tables.show(table)
        console.print("speedup and energy ratio: unfused / strategy")
    for entry in ranking.infeasible:
        console.print(f"{entry.label}: no mapping fits; the nearest: ", style="bold red", end="")
        console.print("; ".join(entry.cost.reasons()))
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
        console.print(describe(best.best.mapping.tree, best.best.mapping.factors))


def _rules(ranking: "Ranking") -> str:
    entries = (*ranking.ranked, *ranking.infeasible)
    return entries[0].cost.conventions.preset


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}×"


def _as_dict(ranking: "Ranking") -> dict[str, Any]:
    from jaxcomet.cli.ranking import why
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
                "mappings": entry.best.evaluated,
                "latency_groups": latency_groups(entry.cost, ranking.machine),
                **entry.record(setting).as_dict(entry.cost),
            }
        )
    return {
        "workload": setting.workload,
        "sizes": {d: tables.whole(s) for d, s in setting.sizes.items()},
        "machine": setting.machine,
        "machine_overrides": list(setting.machine_overrides),
        "objective": setting.objective,
        "conventions": _rules(ranking),
        "best": ranking.ranked[0].label if ranking.ranked else None,
        "why": why(ranking),
        "ranking": entries,
    }


def _write_figure(figure: Any, path: str) -> None:
    from jaxcomet.plot.breakdown import to_bytes

    write_whole(path, to_bytes(figure, _suffix(path)))  # pyright: ignore[reportArgumentType]


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
    title = f"{_title(ranking)}\ncycles, and speedup over unfused"
    _write_figure(breakdown_figure(title, bars), path)


def _compare_published(common: dict[str, Any], figure: str | None, as_json: bool) -> None:
    from jaxcomet import strategies
    from jaxcomet.cli.ranking import Setting
    from jaxcomet.cli.shapes import SHAPES

    settings = [
        Setting(**common, machine=machine, sizes={"M": float(m), "N": float(n), "K": float(k)})
        for machine, m, n, k in SHAPES.values()
    ]
    rankings = dict(zip(SHAPES, _rank(settings), strict=True))
    names = [s.name for s in strategies.available(common["workload"])]
    speedups = {
        name: [_speedup(ranking, name) for ranking in rankings.values()]
        for name in names
        if name != "unfused"
    }
    if figure is not None:
        from jaxcomet.plot.breakdown import speedup_figure

        labels = [
            f"{label}\n{r.setting.sizes['M']:.0f}×{r.setting.sizes['N']:.0f}\n×{r.setting.sizes['K']:.0f}"
            for label, r in rankings.items()
        ]
        title = f"{common['workload']}: speedup over unfused (e: edge, c: cloud; M×N×K)"
        _write_figure(speedup_figure(title, labels, speedups), figure)
    means = {name: _geometric_mean(values) for name, values in speedups.items()}
    if as_json:
        tables.print_json(
            {
                "workload": common["workload"],
                "objective": common["objective"],
                "shapes": [{"shape": s, **_as_dict(r)} for s, r in rankings.items()],
                "geometric_mean_speedup_over_unfused": means,
                "shapes_in_mean": {
                    name: sum(v is not None for v in values) for name, values in speedups.items()
                },
            }
        )
        return
    _print_published(rankings, names, speedups, means)
    if figure is not None:
        tables.output().print(f"figure: {figure}")


def _speedup(ranking: "Ranking", name: str) -> float | None:
    entry = ranking.entry(name)
    return None if entry is None else ranking.speedup(entry)


def _geometric_mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.exp(sum(math.log(v) for v in known) / len(known)) if known else None


def _print_published(
    rankings: dict[str, "Ranking"],
    names: list[str],
    speedups: dict[str, list[float | None]],
    means: dict[str, float | None],
) -> None:
    from jaxcomet.cli.breakdown import broken

    first = next(iter(rankings.values()))
    console = tables.output()
    wide = not tables.is_narrow(console)
    columns = ["shape", "MxNxK", *(broken(name) for name in names)]
    title = (
        f"{first.setting.workload}, best {first.setting.objective} of each strategy: cycles "
        f"(speedup over unfused), conventions {_rules(first)}"
    )
    table = tables.grid(title, columns, left=2)
    if wide:
        table.add_column("best", justify="left", no_wrap=True)
    for label, ranking in rankings.items():
        best = ranking.ranked[0] if ranking.ranked else None
        cells = []
        for name in names:
            entry = ranking.entry(name)
            if entry is None:
                cells.append("does not fit")
                continue
            gap = " " if wide else "\n"
            speedup = "" if name == "unfused" else f"{gap}({_times(ranking.speedup(entry))})"
            mark = "* " if entry is best else ""
            cells.append(mark + tables.count(entry.latency_cycles) + speedup)
        if wide:
            cells.append("none fits" if best is None else best.label)
        table.add_row(f"{label} {ranking.machine.name}", ranking.setting.shape, *cells)
    table.add_section()
    cells = []
    for name in names:
        known = sum(v is not None for v in speedups.get(name, ()))
        note = "" if known == len(rankings) else f"\nof {known} shapes"
        cells.append("1.00×" if name == "unfused" else _times(means[name]) + note)
    table.add_row("mean", "geometric", *cells, style="bold")
    tables.show(table)
    console.print("* best of the shape")
