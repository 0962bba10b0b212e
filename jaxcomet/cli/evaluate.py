"""`jaxcomet evaluate`: the exact cost of one mapping, or of a table of mappings."""

from typing import TYPE_CHECKING, Annotated

import typer

from jaxcomet.cli import flags, tables
from jaxcomet.cli import options as words
from jaxcomet.cli.errors import InputError
from jaxcomet.cli.files import check_writable, csv_text, read_csv, read_text, write_whole
from jaxcomet.operations import catalog
from jaxcomet.operations.catalog import Entry, OptionValue

if TYPE_CHECKING:
    from jaxcomet.cli.record import Priced, Record


@flags.with_flags
def evaluate(
    *,
    workload: flags.WorkloadName,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="A strategy of the workload, e.g. unfused; a wrong name lists them.",
        ),
    ] = None,
    machine: words.MachineName = None,
    given: flags.Given,
    factor: Annotated[
        list[str] | None,
        typer.Option(
            "--factor",
            metavar="NAME=VALUE",
            help="A factor of the mapping, e.g. M_comp=64; may be repeated; those left out are 1.",
        ),
    ] = None,
    loop_order: words.LoopOrder = None,
    mapping: Annotated[
        str | None,
        typer.Option(
            "--mapping",
            metavar="FILE.json",
            help="A mapping as --json of evaluate, map or compare prints it, - for standard input. "
            "Other options change it.",
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="IN.csv",
            help="A table of mappings: sizes (M, N, K, or batch, heads, kv_heads, ...) and factors "
            "as columns by name; others are kept. A column machine or platform names each row's "
            "machine.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="OUT.csv", help="Where --table's result goes, - for stdout."),
    ] = None,
    conventions: words.Preset = None,
    convention: words.Convention = None,
    overrides: words.Overrides = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the formulas with their numbers.")
    ] = False,
    as_json: words.Json = False,
) -> None:
    r"""Prices one mapping, or a table of mappings in one batch.

    \b
    Examples:
      jaxcomet evaluate gemm-softmax --strategy fused-gemm-distsm --machine edge \
        --m 256 --n 256 --k 128 --factor M_dram_t=4 --factor M_comp=64 --factor K_comp=128 \
        --factor N_dram_sx=2 --factor N_dram_sy=2 --factor N_gb_sx=2 --factor N_gb_sy=2 \
        --factor N_comp=16
      jaxcomet evaluate gemm-softmax --mapping best.json --set memory.dram.child_bandwidth=50
      jaxcomet map gemm --m 64 --n 64 --k 64 --machine edge --json | \
        jaxcomet evaluate gemm --mapping - --loop-order core=NKM
      jaxcomet evaluate gemm-softmax --strategy fused-gemm-distsm --reduce tile \
        --conventions comet-program --machine edge --table IN.csv --out OUT.csv
      jaxcomet evaluate attention --strategy flash --spread keys --algorithm auto \
        --machine edge --heads 12 --q 1 --kv 1024 --head-dim 64 --factor H_dram_t=12 \
        --factor N_dram_t=4 --factor N_dram_sx=2 --factor N_dram_sy=2 --factor N_gb_sx=2 \
        --factor N_gb_sy=2 --factor N_comp=16 --factor K_comp=64 --factor L_comp=64
    """
    entry = catalog.find(workload)
    chosen = flags.ways(entry, given)
    workload_options = flags.options(entry, given)
    sizes = flags.sizes(entry, given)
    orders = words.loop_orders(loop_order)
    if table is not None:
        clash = [flags.flag(name) for name in sizes]
        clash += [o for o, v in (("--factor", factor), ("--mapping", mapping)) if v]
        if explain:
            clash.append("--explain")
        if clash:
            raise InputError(
                f"--table: got it together with {', '.join(clash)}; the table gives sizes and "
                "factors; leave the others out"
            )
        _evaluate_table(
            entry,
            workload_options,
            strategy,
            chosen,
            orders,
            machine,
            tuple(overrides or ()),
            conventions,
            convention,
            table,
            out,
            as_json,
        )
        return
    if out is not None:
        raise InputError("--out: got it without --table; expected a table to price")
    record = _record(
        entry,
        workload_options,
        strategy,
        chosen,
        orders,
        machine,
        overrides or [],
        conventions,
        words.pairs("--convention", convention),
        sizes,
        {
            name: words.whole_number(f"--factor {name}", text)
            for name, text in words.pairs("--factor", factor).items()
        },
        mapping,
    )
    _show(record, explain, as_json)


def _need_strategy(workload: str, strategy: str | None) -> str:
    from jaxcomet import strategies

    if strategy is None:
        known = ", ".join(s.name for s in strategies.available(workload))
        raise InputError(f"--strategy: missing; expected one of {known}")
    return strategy


def _record(
    entry: Entry,
    workload_options: dict[str, OptionValue],
    strategy: str | None,
    chosen: dict[str, str],
    loop_orders: dict[str, str],
    machine: str | None,
    overrides: list[str],
    preset: str | None,
    rules: dict[str, str],
    sizes: dict[str, float],
    factors: dict[str, float],
    mapping: str | None,
) -> "Record":
    import dataclasses

    from jaxcomet.cli.record import Record, changed, record_from_json

    if mapping is not None:
        label = "standard input" if mapping == "-" else mapping
        found = record_from_json(label, read_text(mapping), entry.name, strategy)
        return dataclasses.replace(
            changed(
                found,
                sizes=sizes,
                workload_options=workload_options,
                options=chosen,
                machine=machine,
                overrides=overrides,
                preset=preset,
                convention_options=rules,
                factors=factors,
                loop_orders=loop_orders,
            ),
            strategy=strategy or found.strategy,
        )
    strategy = _need_strategy(entry.name, strategy)
    missing = flags.missing(entry, sizes)
    if missing:
        raise InputError(
            f"{', '.join(map(flags.flag, missing))}: missing; expected "
            f"{flags.listed(entry.required)}, or --mapping, or --table"
        )
    words.load_machine(machine, overrides)
    assert machine is not None
    return Record(
        workload=entry.name,
        sizes=sizes,
        workload_options=workload_options,
        strategy=strategy,
        options=chosen,
        machine=machine,
        machine_overrides=tuple(overrides),
        preset=preset or "default",
        convention_options=rules,
        factors=factors,
        loop_orders=loop_orders,
    )


def _evaluate_table(
    entry: Entry,
    workload_options: dict[str, OptionValue],
    strategy: str | None,
    chosen: dict[str, str],
    loop_orders: dict[str, str],
    machine: str | None,
    overrides: tuple[str, ...],
    preset: str | None,
    convention: list[str] | None,
    table: str,
    out: str | None,
    as_json: bool,
) -> None:
    from jaxcomet import strategies
    from jaxcomet.cli.pricing import price_table

    found = strategies.get(entry.name, _need_strategy(entry.name, strategy))
    if out is None:
        raise InputError("--out: missing; expected the file for the result, or - for stdout")
    if out == "-" and as_json:
        raise InputError("--json: got it together with --out -; both would write to stdout")
    check_writable(out)
    rules = words.choose_conventions(preset, words.pairs("--convention", convention))
    priced = price_table(
        read_csv(table),
        workload=entry,
        workload_options=workload_options,
        strategy=found,
        options=chosen,
        machine=machine,
        overrides=overrides,
        conventions=rules,
        loop_orders=loop_orders,
    )
    write_whole(out, csv_text(priced.columns, priced.rows))
    label = found.label(chosen, loop_orders)
    if as_json:
        tables.print_json(
            {
                "out": out,
                "rows": len(priced.rows),
                "feasible": priced.feasible,
                "machines": priced.machines,
                "strategy": label,
                "conventions": rules.preset,
            }
        )
        return
    on = ", ".join(f"{rows:,} on {name}" for name, rows in priced.machines.items())
    text = (
        f"{len(priced.rows):,} mappings of {label} priced under {rules.preset} "
        f"({on}), "
        f"{priced.feasible:,} feasible"
    )
    typer.echo(f"{text}: {out}" if out != "-" else text, err=out == "-")


def _show(record: "Record", explain: bool, as_json: bool) -> None:
    from jaxcomet.cli.record import price

    priced = price(record)
    if as_json:
        data = priced.record.as_dict(priced.cost)
        if explain:
            data["explanation"] = priced.cost.explain()
        tables.print_json(data)
        return
    _print(priced)
    if explain:
        console = tables.output()
        console.print()
        console.print(priced.cost.explain(), soft_wrap=True)


def _print(priced: "Priced") -> None:
    from jaxcomet.cli.breakdown import (
        collective_table,
        energy_table,
        latency_table,
        occupancy_table,
        traffic_table,
    )
    from jaxcomet.cli.nest import nest
    from jaxcomet.cli.record import title
    from jaxcomet.explain import below_bound

    record, cost = priced.record, priced.cost
    console = tables.output()
    head = title(record.workload, record.sizes, record.workload_options, priced.machine.name)
    console.print(head, style="bold")
    console.print(f"strategy {cost.strategy}, conventions {cost.conventions.preset}")
    for override in record.machine_overrides:
        console.print(f"machine changed: {override}")
    console.print()
    console.print(nest(priced.mapping))
    console.print()
    console.print(
        f"latency {tables.exact(float(cost.latency_cycles))} cycles, "  # pyright: ignore[reportArgumentType]
        f"energy {tables.exact(float(cost.energy_pj))} pJ, "  # pyright: ignore[reportArgumentType]
        f"utilization {tables.percent(float(cost.utilization))}",  # pyright: ignore[reportArgumentType]
        style="bold",
    )
    if below_bound(cost):
        console.print(below_bound(cost), style="bold yellow")
    for reason in cost.reasons():
        console.print(f"INFEASIBLE: {reason}", style="bold red")
    console.print()
    named = {cost.strategy: cost}
    for part in (
        latency_table(named, priced.machine),
        energy_table(named),
        traffic_table(cost),
        collective_table(cost),
        occupancy_table(cost),
    ):
        if part.row_count:
            tables.show(part)
