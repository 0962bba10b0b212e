"""Several shapes of a workload, each ranked on its machine: speedups and their geometric means."""

import math
from collections.abc import Sequence
from typing import Any

from jaxcomet import strategies
from jaxcomet.cli import shapes, tables
from jaxcomet.cli.breakdown import broken
from jaxcomet.cli.compare import as_dict, rank_all, rules_of, times, write_figure
from jaxcomet.cli.ranking import BASELINE, Ranking, Setting
from jaxcomet.cli.record import shape
from jaxcomet.operations import catalog
from jaxcomet.operations.catalog import OptionValue


def compare_shapes(
    common: dict[str, Any], variant: dict[str, OptionValue], figure: str | None, as_json: bool
) -> None:
    """Compares the shapes of a workload (`shapes`) and prints, draws or writes the result.

    Args:
      common: what all settings share.
      variant: options of the workload that replace those of the shapes.
      figure: file of the figure, if one is wanted.
      as_json: print plain data.
    """
    chosen = shapes.SHAPES[common["workload"]]
    settings = [
        Setting(
            **common,
            machine=one.machine,
            sizes=one.sizes,
            workload_options={**one.options, **variant},
        )
        for one in chosen.values()
    ]
    rankings = dict(zip(chosen, rank_all(settings), strict=True))
    names = [s.name for s in strategies.available(common["workload"])]
    speedups = {
        name: [_speedup(ranking, name) for ranking in rankings.values()]
        for name in names
        if name != BASELINE
    }
    if figure is not None:
        from jaxcomet.plot.breakdown import speedup_figure

        labels = [f"{label}\n{_lines(r.setting)}" for label, r in rankings.items()]
        form = _form(common["workload"]).replace("\n", " ").replace("x", "×")
        title = f"{common['workload']}: speedup over unfused (e: edge, c: cloud; {form})"
        write_figure(speedup_figure(title, labels, speedups), figure)
    means = {name: _geometric_mean(values) for name, values in speedups.items()}
    if as_json:
        tables.print_json(
            {
                "workload": common["workload"],
                "objective": common["objective"],
                "shapes": [{"shape": s, **as_dict(r)} for s, r in rankings.items()],
                "geometric_mean_speedup_over_unfused": means,
                "shapes_in_mean": {
                    name: sum(v is not None for v in values) for name, values in speedups.items()
                },
            }
        )
        return
    _print(rankings, names, speedups, means)
    if figure is not None:
        tables.output().print(f"figure: {figure}")


def _speedup(ranking: Ranking, name: str) -> float | None:
    entry = ranking.entry(name)
    return None if entry is None else ranking.speedup(entry)


def _geometric_mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.exp(sum(math.log(v) for v in known) / len(known)) if known else None


def _print(
    rankings: dict[str, Ranking],
    names: list[str],
    speedups: dict[str, list[float | None]],
    means: dict[str, float | None],
) -> None:
    first = next(iter(rankings.values()))
    console = tables.output()
    wide = not tables.is_narrow(console)
    columns = ["shape", _form(first.setting.workload), *(broken(name) for name in names)]
    title = (
        f"{first.setting.workload}, best {first.setting.objective} of each strategy: cycles "
        f"(speedup over unfused), conventions {rules_of(first)}"
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
                cells.append("not possible" if name in ranking.impossible else "does not fit")
                continue
            gap = " " if wide else "\n"
            speedup = "" if name == BASELINE else f"{gap}({times(ranking.speedup(entry))})"
            mark = "* " if entry is best else ""
            cells.append(mark + tables.count(entry.latency_cycles) + speedup)
        if wide:
            cells.append("none fits" if best is None else best.label)
        shown = ranking.setting.shape if wide else ranking.setting.shape.replace(" ", "\n")
        table.add_row(f"{label} {ranking.machine.name}", shown, *cells)
    table.add_section()
    cells = []
    for name in names:
        known = sum(v is not None for v in speedups.get(name, ()))
        note = "" if known == len(rankings) else f"\nof {known} shapes"
        cells.append("1.00×" if name == BASELINE else times(means[name]) + note)
    table.add_row("mean", "geometric", *cells, style="bold")
    tables.show(table)
    console.print("* best of the shape")
    reasons = {f"{n}: {r}": None for one in rankings.values() for n, r in one.impossible.items()}
    for reason in reasons:
        console.print(f"not possible: {reason}")


def _form(workload: str) -> str:
    """How the shapes of a workload are written."""
    pieces = catalog.find(workload).form
    return "".join(pieces).replace("{", "").replace("}", "").replace(" ", "\n")


def _lines(setting: Setting) -> str:
    """A shape in short lines, for a figure."""
    pieces = shape(setting.workload, setting.sizes, setting.workload_options)
    lines = (p.strip() for p in pieces)
    return "\n".join(w.replace("x", "×") if w[:1].isdigit() or w[:1] == "x" else w for w in lines)
