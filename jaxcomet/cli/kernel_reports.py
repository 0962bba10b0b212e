"""What `jaxcomet kernels run` and `bench` do with a case, and how they show it.

The one idea: a report is plain data first, with units in its names; the tables are made from it.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomet.cli import tables
from jaxcomet.cli.errors import InputError
from jaxcomet.kernels import trials
from jaxcomet.kernels.compiled import Collective, collectives, memory_bytes
from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.measure import Summary, measure, summarize, to_json
from jaxcomet.kernels.trials import Case, Program

_BUDGET_S = 60.0
"""No further round of timing begins after so long; what was made is shown."""


def report_run(case: Case, rounds: int, as_json: bool) -> None:
    """Compiles, checks and times one kernel, and prints what was found."""
    with tables.progress_bar("steps") as bar:
        task = bar.add_task(f"{case.kernel.name}: compiling", total=rounds + 3)
        program = trials.program(case)
        result = program()
        bar.update(task, advance=2, description="float64 reference")
        deviations = trials.deviations(case, result)
        bar.update(task, advance=1, description="timing")
        samples = measure(
            {"run": program},
            rounds=rounds,
            warmups=1,  # the second, after the one whose result was checked
            budget_s=_BUDGET_S,
            progress=lambda made, _: bar.advance(task),
        )
    summary = summarize(samples, "run")["run"]
    rows, unit = case.rows(), float(jnp.finfo(case.dtype).eps) / 2
    sizes = case.kernel.filled(case.sizes)
    total = sizes[case.kernel.result_shape[case.kernel.row_axis]]
    report = {
        **_setting(case),
        "strategy": case.strategy or next(iter(case.kernel.strategies), None),
        "partitioner": case.partitioner,
        "undivided_axes": list(program.undivided),
        "error": {
            "reference": "float64",
            "rows": len(rows),
            "rows_total": total,
            "reduction_length": sizes[case.kernel.length],
            "unit_roundoff": unit,
            "arrays": {
                name: {
                    "max_abs_error": _finite(one.max_abs_error),
                    "largest_element": one.largest,
                    "relative_error": _finite(one.relative),
                    "relative_error_unit_roundoffs": _finite(one.relative / unit),
                }
                for name, one in deviations.items()
            },
        },
        "time": {**_times(summary), **to_json(samples)["run"]},
        **_compiled(program),
    }
    if as_json:
        tables.print_json(report)
    else:
        _print_run(report)


def report_bench(
    case: Case,
    builders: Mapping[str, Callable[[], Program]],
    baseline: str,
    rounds: int,
    as_json: bool,
) -> None:
    """Compiles the variants and times them in turns, and prints what was found.

    Raises:
      InputError: the baseline does not run on this split.
    """
    programs: dict[str, Program] = {}
    refused: dict[str, str] = {}
    with tables.progress_bar("steps") as bar:
        task = bar.add_task("compiling", total=len(builders) + rounds)
        for name, build in builders.items():
            bar.update(task, description=f"compiling {name}")
            try:
                programs[name] = build()
            except KernelError as error:
                refused[name] = str(error)
            bar.advance(task)
        if baseline not in programs:
            raise InputError(f"--baseline: {baseline} cannot run here: {refused[baseline]}")
        bar.update(task, description="timing")
        samples = measure(
            programs,
            rounds=rounds,
            budget_s=_BUDGET_S,
            progress=lambda made, _: bar.advance(task),
        )
    summaries, raw = summarize(samples, baseline), to_json(samples)
    report = {
        **_setting(case),
        "baseline": baseline,
        "variants": {
            name: {
                "time": {
                    **_times(summary),
                    "wall_ratio": dataclasses.asdict(summary.wall_ratio),
                    "cpu_ratio": dataclasses.asdict(summary.cpu_ratio),
                    "min_wall_ratio": summary.min_wall_ratio,
                    **raw[name],
                },
                **_compiled(programs[name]),
            }
            for name, summary in summaries.items()
        },
        "not_run": refused,
    }
    if as_json:
        tables.print_json(report)
    else:
        _print_bench(report)


def _finite(value: float) -> float | None:
    """A number for JSON; None where it is infinite."""
    return value if math.isfinite(value) else None


def _setting(case: Case) -> dict[str, Any]:
    """What was run, for both reports."""
    device = jax.devices()[0]
    mesh, options = case.mesh, {o.name: o.default for o in case.kernel.options}
    return {
        "kernel": case.kernel.name,
        "sizes": case.kernel.filled(case.sizes),
        "options": options | dict(case.options),
        "dtype": case.dtype,
        "gradient": case.gradient,
        "seed": case.seed,
        "platform": device.platform,
        "device": device.device_kind,
        "devices": 1 if mesh is None else mesh.size,
        "mesh": {} if mesh is None else dict(mesh.shape),
        "split": {} if mesh is None else _split(case),
    }


def _split(case: Case) -> dict[str, list[str]]:
    """The mesh axes of each dimension, as far as all strategies agree."""
    if case.axis is None and case.strategy is None and len(case.kernel.strategies) > 1:
        defaults = {split.default for split in case.kernel.strategies.values()}
        if len(defaults) > 1:
            return {}
    asked = case.axis
    if isinstance(asked, Mapping):
        return {dimension: list(names) for dimension, names in asked.items()}
    return {dimension: list(names) for dimension, names in case.partition.axes}


def _times(summary: Summary) -> dict[str, Any]:
    return {
        "rounds": summary.rounds,
        "median_wall_s": summary.median_wall_s,
        "min_wall_s": summary.min_wall_s,
        "median_cpu_s": summary.median_cpu_s,
        "min_cpu_s": summary.min_cpu_s,
    }


def _compiled(program: Program) -> dict[str, Any]:
    """Collectives and memory of a program, on one device."""
    found = collections.Counter(collectives(program.compiled))
    memory = memory_bytes(program.compiled)
    return {
        "collectives": [
            {**dataclasses.asdict(one), "count": count, "total_bytes": _moved(one, count)}
            for one, count in found.items()
        ],
        "memory": {**dataclasses.asdict(memory), "total_bytes": memory.total_bytes},
    }


def _moved(one: Collective, count: int) -> int | None:
    """Bytes of a collective over one run; None where it runs an unknown number of times."""
    return None if one.times is None else one.bytes * one.times * count


def _words(report: Mapping[str, Any]) -> str:
    """A report's setting in two lines."""
    sizes = " ".join(f"{name}={size}" for name, size in report["sizes"].items())
    options = [
        name if value is True else f"{name}={value}"
        for name, value in report["options"].items()
        if value not in (False, 0.0, "combined", "accumulator")
    ]
    split = ", ".join(f"{d} over {'+'.join(names)}" for d, names in report["split"].items())
    mesh = "x".join(str(size) for size in report["mesh"].values())
    lines = [
        " ".join([report["kernel"], sizes, report["dtype"], *options])
        + (", value and gradients" if report["gradient"] else ""),
        f"{report['devices']} {report['platform']} device"
        + ("s" if report["devices"] > 1 else "")
        + (f", mesh {mesh} ({', '.join(report['mesh'])})" if mesh else "")
        + (f", {split}" if split else ""),
    ]
    return "\n".join(lines)


def _print_run(report: Mapping[str, Any]) -> None:
    console = tables.output()
    how = report["strategy"] if report["partitioner"] == "shard_map" else "XLA's partitioner"
    console.print(_words(report) + (f"\nby {how}" if how else ""))
    for axis in report["undivided_axes"]:
        console.print(f"{axis} devices does not divide: it lies whole on each, and is padded")
    error = report["error"]
    part = "all rows"
    if error["rows"] < error["rows_total"]:
        part = (
            f"{error['rows']:,} of {error['rows_total']:,} rows, evenly spread; all would be too "
            "much for a float64 reference"
        )
    columns = ("array", "max abs error", "largest element", "relative", "in unit roundoffs")
    table = tables.grid(f"Error against the float64 reference, {part}", columns)
    for name, one in error["arrays"].items():
        label = name if name == "result" else f"gradient of {name}"
        numbers = [one[key] for key in ("max_abs_error", "largest_element", "relative_error")]
        units = one["relative_error_unit_roundoffs"]
        table.add_row(
            label,
            *("not finite" if value is None else f"{value:.3g}" for value in numbers),
            "not finite" if units is None else f"{units:.2f}",
        )
    tables.show(table)
    console.print(
        f"unit roundoff of {report['dtype']}: {error['unit_roundoff']:.3g}; longest sum: "
        f"{error['reduction_length']:,} terms\n"
    )
    time = report["time"]
    table = tables.grid(f"Time in ms, {time['rounds']} runs", ("", "median", "min"))
    for label, clock in (("wall", "wall"), ("CPU, all threads", "cpu")):
        table.add_row(
            label, *(f"{1e3 * time[f'{kind}_{clock}_s']:.3f}" for kind in ("median", "min"))
        )
    tables.show(table)
    _print_collectives(report["collectives"])
    table = tables.grid("Memory on one device", ("", "bytes"))
    for name, value in report["memory"].items():
        table.add_row(name.removesuffix("_bytes"), tables.count(value))
    tables.show(table)


def _print_collectives(found: list[dict[str, Any]]) -> None:
    if not found:
        tables.output().print("Collectives: none\n")
        return
    columns = ("kind", "dtype", "devices", "count", "times", "bytes each", "bytes in all")
    title = "Collectives of the compiled program, with the bytes of their results on one device"
    table = tables.grid(title, columns, left=2)
    for one in found:
        times = "?" if one["times"] is None else tables.count(one["times"])
        total = "?" if one["total_bytes"] is None else tables.count(one["total_bytes"])
        count, size = tables.count(one["count"]), tables.count(one["bytes"])
        table.add_row(one["kind"], one["dtype"], str(one["group_size"]), count, times, size, total)
    tables.show(table)
    if any(one["times"] is None for one in found):
        tables.output().print(
            "?: in a branch, or in a loop that turns an unknown number of times\n"
        )


def _print_bench(report: Mapping[str, Any]) -> None:
    console = tables.output()
    console.print(_words(report))
    baseline, rounds = report["baseline"], 0
    columns = [
        "variant",
        "collectives",
        "wall\n/ base",
        "CPU\n/ base",
        "min wall\n/ base",
        "median\nwall ms",
        "min\nwall ms",
        "median\nCPU ms",
        "collective\nbytes",
        "temporary\nbytes",
    ]
    rows = []
    for name, one in report["variants"].items():
        time, rounds = one["time"], one["time"]["rounds"]
        kinds = collections.Counter()
        for collective in one["collectives"]:
            kinds[collective["kind"]] += collective["count"]
        moved = [c["total_bytes"] for c in one["collectives"]]
        known = [value for value in moved if value is not None]
        rows.append(
            [
                name,
                "\n".join(f"{count} {kind}" for kind, count in kinds.items()) or "-",
                f"{time['wall_ratio']['median']:.2f}×",
                f"{time['cpu_ratio']['median']:.2f}×",
                f"{time['min_wall_ratio']:.2f}×",
                *(
                    f"{1e3 * time[key]:.3f}"
                    for key in ("median_wall_s", "min_wall_s", "median_cpu_s")
                ),
                ("≥ " if len(known) < len(moved) else "") + tables.count(sum(known)),
                tables.count(one["memory"]["temporary_bytes"]),
            ]
        )
    title = f"Variants in turns, {rounds} rounds, base {baseline}"
    table = tables.grid(title, columns, left=2)
    for row in rows:
        table.add_row(*row)
    tables.show(table)
    for name, reason in report["not_run"].items():
        console.print(f"{name}: not run: {reason}")
    console.print(
        "Ratios are medians over the rounds. Bytes are those of one device, of collectives those "
        "of their results."
    )
    if any(row[8].startswith("≥") for row in rows):
        console.print("≥: without what runs an unknown number of times")
