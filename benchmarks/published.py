"""The strategies on twelve shapes each, beside the speedups that were published for COMET.

    python benchmarks/published.py

Every strategy is taken at its fastest mapping of all, for GEMM-softmax, GEMM-LayerNorm and
attention, under two sets of conventions. Then single assumptions of the comparison are changed:
what "unfused" means, what is exchanged, the conventions as a whole and one by one, the widths,
the mapper, the shapes. The results go to docs/published.json, their tables into the marked sections
of docs/published.md. What was found is kept in out/published.jsonl; later runs search only what is
new. A first run prices some 700 million mappings: half an hour on two cores.
"""

import argparse
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # an installed jaxcomet is preferred

from published_readings import (  # noqa: E402
    FUSED,
    PUBLISHED,
    START,
    Reading,
    Speedups,
    changes,
    combinations,
    dist,
    speedups,
    with_rules,
)
from published_search import (  # noqa: E402
    CASES,
    DEFAULT,
    PROGRAM,
    THREE_STAGES,
    Case,
    Result,
    Rules,
    Searcher,
    geometric_mean,
    strategy_of,
)
from rich.progress import (  # noqa: E402
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from jaxcomet import strategies  # noqa: E402
from jaxcomet.cost.conventions import PRESETS, RULES  # noqa: E402

PAGE, DATA = ROOT / "docs" / "published.md", ROOT / "docs" / "published.json"

BOUND = 1.2
"""Ratio to the published figure beyond which the assumptions are searched for a cause."""


# -- single rules, at fixed mappings ------------------------------------------------------------


def rule_effects(search: Searcher, reading: Reading) -> list[dict[str, Any]]:
    """The speedup with one rule changed and the two mappings kept, where it changes by over 2 %."""
    at = speedups(search, reading).at
    case = next(c for c in reading.cases() if c.label == at)
    preset = dict(reading.rules)["preset"]
    base = search.fastest(case, (reading.base,), reading.rules, **reading.fixed)
    best = search.fastest(case, reading.fused, reading.rules, **reading.fixed)
    found = []
    for name, rule in RULES.items():
        same = getattr(PRESETS["default"], name) == getattr(PRESETS["comet-program"], name)
        if rule.group == "energy" or same:
            continue
        rules = with_rules(name, preset=preset)
        one, other = (search.again(case, result, rules) for result in (base, best))
        if not (one.feasible and other.feasible):
            continue
        speedup = one.latency / other.latency
        if abs(speedup / (base.latency / best.latency) - 1.0) > 0.02:
            found.append(
                {
                    "preset": preset,
                    "shape": at,
                    "rule": name,
                    "value": dict(rules)[name],
                    "baseline_change": one.latency / base.latency - 1.0,
                    "fused_change": other.latency / best.latency - 1.0,
                    "speedup": speedup,
                }
            )
    return sorted(found, key=lambda f: f["speedup"])


# -- tables --------------------------------------------------------------------------------------


def table(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are text, the others numbers."""
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines))


def energy(pj: float) -> str:
    """Energy in a unit that suits it."""
    for scale, unit in ((1e12, "J"), (1e9, "mJ"), (1e6, "µJ")):
        if pj >= scale:
            return f"{pj / scale:.3g} {unit}"
    return f"{pj:.3g} pJ"


def main_table(search: Searcher, workload: str, rules: Rules) -> tuple[str, list[dict[str, Any]]]:
    """Every strategy on every shape, and the same as data."""
    names = [s.name for s in strategies.available(workload)]
    tile = (
        {n: f"{n}, tile" for n in names if "reduce" in strategy_of(workload, n).options}
        if rules == PROGRAM
        else {}
    )
    columns = [(n, n, "rows") for n in names] + [(t, n, "tile") for n, t in tile.items()]
    lines, data = [], []
    gains: dict[str, list[tuple[float, float]]] = {c: [] for c, _, _ in columns}
    for case in CASES[workload]:
        base = search.fastest(case, ("unfused",), rules)
        cells = [f"{case.label} {case.text}"]
        for column, name, exchange in columns:
            result = search.fastest(case, (name,), rules, reduce=(exchange,))
            data.append(_record(case, column, result, base))
            if not result.feasible:
                cells.append("does not fit")
                continue
            gains[column].append((base.latency / result.latency, base.energy / result.energy))
            mark = "†" if result.latency < result.bus else ""
            speedup, saving = gains[column][-1]
            below = (
                energy(result.energy)
                if column == "unfused"
                else (f"{speedup:.2f}× / {saving:.2f}×")
            )
            cells.append(f"{result.latency:,.0f}{mark}<br>{below}")
        lines.append(cells)
    for word, pick in (
        ("largest", lambda values: max(values)),
        ("geometric mean", geometric_mean),
    ):
        cells = [f"**{word}**", ""]
        for column, _, _ in columns[1:]:
            several = [*zip(*gains[column], strict=True)]
            part = len(gains[column]) < len(CASES[workload])
            note = f" of {len(gains[column])}" if part else ""
            cells.append(" / ".join(f"{pick(v):.2f}×" for v in several) + note if several else "-")
        lines.append(cells)
    return table(["shape", *(c for c, _, _ in columns)], lines), data


def _record(case: Case, column: str, result: Result, base: Result) -> dict[str, Any]:
    return {
        "shape": case.label,
        "machine": case.machine,
        "sizes": dict(case.sizes),
        "strategy": column,
        "label": result.label,
        "feasible": result.feasible,
        "latency_cycles": result.latency,
        "energy_pj": result.energy,
        "speedup_over_unfused": base.latency / result.latency if result.feasible else None,
        "energy_ratio_of_unfused": base.energy / result.energy if result.feasible else None,
        "mappings": result.mappings,
        "dram_bus_cycles": result.bus,
        "latency_groups": result.groups,
        "energy_parts_pj": result.energy_parts,
        "factors": result.factors,
    }


def _cells(words: str, s: Speedups, published: float) -> list[str]:
    band = "" if s.low is None else f" ({s.low:.2f} to {s.high:.2f})"
    near = "" if max(s.largest / published, published / s.largest) > BOUND else "*"
    return [words, f"{s.largest:.2f}{near}{band}", s.at, f"{s.mean:.2f}"]


def in_words(reading: Reading) -> str:
    """A reading, by its assumptions."""
    fused = "all fused" if reading.fused == FUSED[reading.workload] else "/".join(reading.fused)
    parts = [f"{reading.baseline} / {fused}", dict(reading.rules)["preset"]]
    if reading.workload == "gemm-softmax":
        parts.append(f"exchange {reading.exchange}")
    if reading.spread:
        parts.append(f"spread {reading.spread}")
    if reading.whole:
        parts.append("B whole")
    if reading.bits != 16:
        parts.append(f"{reading.bits} bits")
    if reading.shapes != "all":
        parts.append(
            reading.shapes.replace("M", "q") if reading.workload == "attention" else reading.shapes
        )
    return ", ".join(parts)


def assumption_table(search: Searcher, workload: str) -> tuple[str, list[dict[str, Any]]]:
    """The largest speedup with single assumptions changed, from both sets of conventions."""
    published = PUBLISHED[workload]
    lines, data = [], []
    for preset, rules in (("default", DEFAULT), ("comet-program", PROGRAM)):
        start = replace(START[workload], rules=rules)
        for words, reading in {"as the package has it": start, **changes(start)}.items():
            found = speedups(search, reading)
            lines.append([preset, *_cells(words, found, published)])
            data.append({"preset": preset, "assumption": words, **found.__dict__})
    head = ["conventions", "assumption", "largest", "at", "mean"]
    return table(head, lines, left=2), data


def nearest_table(search: Searcher, workload: str) -> tuple[str, list[dict[str, Any]]]:
    """The combinations of assumptions that come nearest to the published figure.

    Left out: those under which fusion does not pay in the mean, and those that only add assumptions
    to one that gives the same figure.
    """
    published = PUBLISHED[workload]
    found = [(speedups(search, r), r) for r in combinations(workload)]
    found = [pair for pair in found if pair[0].mean >= 1.0]
    found.sort(key=lambda pair: abs(math.log(pair[0].largest / published)))
    seen: set[tuple[str, float]] = set()
    lines, data = [], []
    for s, reading in found:
        if (reading.baseline, s.largest) in seen or len(lines) == 6:
            continue
        seen.add((reading.baseline, s.largest))
        lines.append(_cells(in_words(reading), s, published))
        data.append({"reading": in_words(reading), **s.__dict__})
    return table(["combination", "largest", "at", "mean"], lines), data


def rules_table(search: Searcher, workload: str) -> tuple[str, list[dict[str, Any]]]:
    """Effects of single rules, from both presets."""
    data = []
    for rules in (DEFAULT, PROGRAM):
        data += rule_effects(search, replace(START[workload], rules=rules))
    lines = [
        [
            e["preset"], e["shape"], f"`{e['rule']}` = {e['value']}",
            f"{e['baseline_change']:+.0%}", f"{e['fused_change']:+.0%}", f"{e['speedup']:.2f}",
        ]
        for e in data
    ]  # fmt: skip
    return table(["from", "at", "rule changed", "unfused", "fused", "speedup"], lines, left=3), data


def same_reading_table(search: Searcher) -> tuple[str, list[dict[str, Any]]]:
    """Both GEMM workloads under one reading at a time: a single cause should explain both."""
    lines, data = [], []
    for rules, bits, whole, machine in itertools.product(
        (DEFAULT, PROGRAM), (16, 8), (False, True), ("both", "edge", "cloud")
    ):
        for softmax, norm in (
            (("unfused", "rows"), "unfused"),
            (("unfused-tile", "tile"), "unfused"),
            (("fused-distsm", "rows"), "fused-distln"),
        ):
            pair = []
            for workload, baseline, exchange in (
                ("gemm-softmax", *softmax),
                ("gemm-layernorm", norm, "rows"),
            ):
                reading = Reading(
                    workload=workload,
                    baseline=baseline,
                    fused=(f"fused-gemm-dist{dist(workload)}",),
                    exchange=exchange,
                    rules=rules,
                    bits=bits,
                    whole=whole,
                )
                values = speedups(search, reading).by_shape
                prefix = {"both": "", "edge": "e", "cloud": "c"}[machine]
                pair.append(max(v for n, v in values.items() if n.startswith(prefix)))
            distance = sum(
                abs(math.log(v / PUBLISHED[w]))
                for v, w in zip(pair, ("gemm-softmax", "gemm-layernorm"), strict=True)
            )
            data.append(
                {
                    "unfused": softmax[0],
                    "exchange": softmax[1],
                    "conventions": dict(rules)["preset"],
                    "bits": bits,
                    "B": "whole" if whole else "tiled",
                    "machine": machine,
                    "gemm-softmax": pair[0],
                    "gemm-layernorm": pair[1],
                    "distance": distance,
                }
            )
    data.sort(key=lambda d: d["distance"])
    keys = ("unfused", "exchange", "conventions", "bits", "B", "machine")
    lines = [
        [*(str(d[k]) for k in keys), f"{d['gemm-softmax']:.2f}", f"{d['gemm-layernorm']:.2f}"]
        for d in data[:8]
    ]
    return table([*keys, "softmax", "LayerNorm"], lines, left=6), data[:8]


def variants_table(search: Searcher) -> tuple[str, list[dict[str, Any]]]:
    """Attention of one head and of others than the twelve shapes, keys over the units."""
    edge = Case(workload="attention", label="edge", machine="edge", sizes=())
    cloud = replace(edge, label="cloud", machine="cloud")
    basic = {"batch": 1, "heads": 1, "q": 1024, "kv": 1024, "head_dim": 64}
    shapes = [
        machine.with_sizes(machine.label, **{**basic, "q": n, "kv": n})
        for machine in (edge, cloud)
        for n in (256, 1024, 4096, 16384)
    ]
    for machine in (edge, cloud):
        for more in (
            {"head_dim": 128},
            {"vector_bits": 8},
            {"heads": 8},
            {"heads": 8, "kv_heads": 1},
        ):
            shapes.append(machine.with_sizes(machine.label, **{**basic, **more}))
    lines, data = [], []
    names = (THREE_STAGES.name, "partial", "row-fused", "flash")
    for case in shapes:
        cells = [case.label, case.text]
        for rules in (DEFAULT, PROGRAM):
            base = search.best(case, "unfused", {"spread": "keys"}, rules)
            for name in names:
                options = {"spread": "keys"}
                result = search.best(case, name, options, rules)
                ratio = base.latency / result.latency if result.feasible else None
                cells.append("-" if ratio is None else f"{ratio:.2f}")
                data.append(
                    {
                        "machine": case.machine,
                        "shape": case.text,
                        "strategy": name,
                        "conventions": dict(rules)["preset"],
                        "speedup_over_unfused": ratio,
                    }
                )
        lines.append(cells)
    head = ["machine", "shape", *names, *(f"{n}, program" for n in names)]
    return table(head, lines, left=2), data


def summary_table(search: Searcher, nearest: dict[str, dict[str, Any]]) -> str:
    """Published figures beside ours."""
    lines = []
    for workload, published in PUBLISHED.items():
        cells = [workload, f"{published:.2f}"]
        for rules in (DEFAULT, PROGRAM):
            s = speedups(search, replace(START[workload], rules=rules))
            cells.append(f"{s.largest:.2f} ({s.at})")
            cells.append(f"{s.mean:.2f}")
        cells.append(f"{nearest[workload]['largest']:.2f}: {nearest[workload]['reading']}")
        lines.append(cells)
    head = ["workload", "published, up to", "ours, `default`", "mean", "`comet-program`", "mean",
            "nearest combination"]  # fmt: skip
    return table(head, lines)


# -- run -----------------------------------------------------------------------------------------

Job = Callable[[], object]


def build(search: Searcher, step: Callable[[str], None]) -> tuple[dict[str, str], dict[str, Any]]:
    """All sections and all data."""
    sections: dict[str, str] = {}
    data: dict[str, Any] = {
        "source": "arXiv:2509.00599 (abstract) for `published`",
        "date": datetime.now(UTC).date().isoformat(),
        "published_largest_speedup": PUBLISHED,
    }
    nearest: dict[str, dict[str, Any]] = {}
    for workload in CASES:
        for preset, rules in (("default", DEFAULT), ("comet-program", PROGRAM)):
            step(f"{workload}, {preset}")
            text, records = main_table(search, workload, rules)
            sections[f"{workload} {preset}"], data[f"{workload} {preset}"] = text, records
        for name, make in (
            ("assumptions", assumption_table),
            ("rules", rules_table),
            ("nearest", nearest_table),
        ):
            step(f"{workload}, {name}")
            text, records = make(search, workload)
            sections[f"{workload} {name}"], data[f"{workload} {name}"] = text, records
        nearest[workload] = data[f"{workload} nearest"][0]
    step("one reading for both")
    sections["one reading"], data["one reading"] = same_reading_table(search)
    step("attention, other shapes")
    sections["attention variants"], data["attention variants"] = variants_table(search)
    sections["summary"] = summary_table(search, nearest)
    return sections, data


def fill(page: str, sections: dict[str, str]) -> str:
    """The page with its marked sections replaced.

    Raises:
      ValueError: a section that the page has no mark for, or a mark without a section.
    """
    marks = re.findall(r"<!-- table: (.*?) -->", page)
    if sorted(marks) != sorted(sections):
        raise ValueError(f"{PAGE.name}: got marks {sorted(marks)}; expected {sorted(sections)}")
    for name, text in sections.items():
        pattern = rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)"
        page = re.sub(pattern, lambda m: f"{m[1]}\n{text}\n\n{m[2]}", page, flags=re.S)  # noqa: B023
    return page


def as_text(data: dict[str, Any]) -> str:
    """JSON, a line for each record."""
    parts = []
    for name, value in data.items():
        if isinstance(value, list):
            text = "[\n" + ",\n".join(json.dumps(v, sort_keys=True) for v in value) + "\n]"
        else:
            text = json.dumps(value)
        parts.append(f"{json.dumps(name)}: {text}")
    return "{" + ",\n".join(parts) + "}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Ours beside the published speedups of COMET.")
    parser.add_argument(
        "--kept", type=Path, default=ROOT / "out" / "published.jsonl", help="mappings found so far"
    )
    options = parser.parse_args()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), transient=not sys.stderr.isatty()) as bar:
        tables = bar.add_task("tables", total=5 * len(CASES) + 2)
        searches = bar.add_task("searches", total=None)
        search = Searcher(
            options.kept, lambda what: bar.update(searches, advance=1, description=what)
        )

        def step(what: str) -> None:
            bar.update(tables, advance=1, description=what)

        sections, data = build(search, step)
    for name, text in sections.items():
        print(f"\n{name}\n\n{text}")
    DATA.write_text(as_text(data), encoding="utf-8")
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), sections), encoding="utf-8")
    print(f"\n{search.searched} searches; wrote {DATA.name} and {PAGE.name}")


if __name__ == "__main__":
    main()
