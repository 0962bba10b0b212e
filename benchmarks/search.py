"""What gradients add to the search for a mapping, and what they do not.

    python benchmarks/search.py --out search.json

Four measurements, each against its rivals in the same run; raw samples, versions, device, commit
and date go to the JSON.

* hits: spaces small enough to enumerate (each strategy's best way on the twelve published shapes,
  and GEMM and GEMM-softmax of 512 cubed on the two-level machines in all loop orders). For each
  method the share of keys that find the proven optimum within 100 and 1,000 evaluations.
* gaps: spaces of one to ten million mappings. Mean distance to the proven optimum after 100, 1,000
  and 10,000 evaluations.
* speed: value and gradient of the relaxed model a second, at a batch of 16,384, beside the exact
  value alone.
* cold: one search in a new process, compiling included.

An evaluation is the exact price of one mapping, or one gradient of one seed. Exact prices are
looked up in a table made by enumerating the space, so that only what a method chooses is measured.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from provenance import provenance

from jaxcomet import attention, gemm, gemm_softmax
from jaxcomet.cli.shapes import SHAPES
from jaxcomet.hardware import load
from jaxcomet.hardware.machine import Machine
from jaxcomet.optimize.descent import Relaxed, descend
from jaxcomet.optimize.pricing import Objective, Part, Prices, best_of
from jaxcomet.optimize.problem import BudgetSpentError, Problem
from jaxcomet.optimize.race import method, seeds_for
from jaxcomet.optimize.rounding import Rounding
from jaxcomet.optimize.ways import candidates, ways
from jaxcomet.workload import CompoundOp

METHODS = ("random", "cma", "local", "gradient only", "gradient")
NAMES = {"gradient": "gradient + local", "cma": "CMA-ES"}
OPTIONS = {"algorithm": "auto", "binding": "all"}
SEEDS = 32
KEYS = 10


class Tabled(Problem):
    """A problem whose prices are looked up."""

    tables: list[Prices]

    def enumerated(self) -> "Tabled":
        """Prices every mapping."""
        self.tables = [
            Prices(
                *(
                    np.concatenate(column)
                    for column in zip(*(p.slab(s) for s in p.slab_starts()), strict=True)
                )
            )
            for p in self.parts
        ]
        return self

    def price(self, points: np.ndarray) -> Prices:
        """From the table."""
        index = np.ravel_multi_index(tuple(points[:, 1:].T), self.parts[0].sizes)
        found = [np.empty(len(points)) for _ in range(3)]
        for variant in np.unique(points[:, 0]):
            chosen = points[:, 0] == variant
            for array, column in zip(found, self.tables[variant], strict=True):
                array[chosen] = column[index[chosen]]
        return Prices(*found)

    @property
    def size(self) -> int:
        """Mappings of all variants."""
        return sum(p.size for p in self.parts)

    @property
    def optimum(self) -> float:
        """The proven optimum."""
        return min(best_of(table, self.objective).first for table in self.tables)

    def again(self, limit: int) -> "Tabled":
        """The same problem, untouched."""
        fresh = Tabled(self.parts, self.objective, limit=limit)
        fresh.tables = self.tables
        return fresh


def problems(
    workload: CompoundOp,
    machine: Machine,
    objective: Objective,
    names: Sequence[str] | None = None,
    *,
    options: Mapping[str, str] = OPTIONS,
    loop_orders: str = "fixed",
) -> dict[str, Tabled]:
    """The spaces of a workload that are searched apart, by strategy and part."""
    chosen = candidates(workload.name, options, names)
    groups: dict[object, list[Part]] = {}
    labels: dict[object, str] = {}
    for way in ways(workload, machine, chosen, loop_orders=loop_orders):  # pyright: ignore[reportArgumentType]
        if way.refusal:
            continue
        parts = way.parts(workload, machine)
        for i, part in enumerate(parts):
            if part.size == 1:
                continue
            axes = tuple((a.names, a.splits.tobytes()) for a in part.space.axes)
            group = (way.strategy.name, way.label if len(parts) > 1 else "", i, axes)
            groups.setdefault(group, []).append(part)
            labels.setdefault(group, f"{way.strategy.name} {i + 1}/{len(parts)}")
    found: dict[str, Tabled] = {}
    for group, parts in groups.items():
        one = Tabled(parts, objective).enumerated()
        if np.isfinite(one.optimum):  # else nothing fits
            found[f"{labels[group]} #{len(found)}"] = one
    return found


def search(name: str, problem: Tabled, budget: int, key: int) -> float:
    """Relative distance to the optimum of one search."""
    one = problem.again(budget)
    rng = np.random.default_rng([key, budget])
    steps: Iterator[None]
    if name == "gradient only":
        steps = descend(one, rng, seeds=seeds_for(budget, SEEDS))
    else:
        steps = method(name, one, rng, budget, SEEDS)
    try:
        for _ in steps:
            pass
    except BudgetSpentError:
        pass
    assert one.evaluated == budget
    if not one.fits:
        return np.inf
    return one.best[0] / problem.optimum - 1.0


def run(
    spaces: Mapping[str, Tabled], budgets: Sequence[int], methods: Sequence[str]
) -> list[dict[str, Any]]:
    """Gaps of every method, budget and key on every space."""
    rows = []
    for label, problem in spaces.items():
        for budget in budgets:
            for name in methods:
                gaps = [search(name, problem, budget, key) for key in range(KEYS)]
                rows.append(
                    {
                        "space": label,
                        "size": problem.size,
                        "objective": problem.objective,
                        "method": NAMES.get(name, name),
                        "evaluations": budget,
                        "gaps": [None if np.isinf(g) else float(g) for g in gaps],
                    }
                )
        print(f"{label}: {problem.size:,} mappings", file=sys.stderr)
    return rows


def published(objective: Objective, labels: Sequence[str]) -> dict[str, Tabled]:
    """GEMM-softmax on the published shapes, all strategies."""
    found = {}
    for label in labels:
        shape = SHAPES["gemm-softmax"][label]
        sizes = (int(shape.sizes[n]) for n in "MNK")
        each = problems(gemm_softmax(*sizes), load(shape.machine), objective)
        found |= {f"{label} {name}": problem for name, problem in each.items()}
    return found


def reference_machines(objective: Objective) -> dict[str, Tabled]:
    """GEMM and GEMM-softmax of 512 cubed on machines of two levels, in all loop orders."""
    small = {"algorithm": "auto"}
    first = problems(gemm(512, 512, 512), load("r2"), objective, options=small, loop_orders="all")
    names = ("fused-gemm-distsm", "fused-distsm")
    second = problems(
        gemm_softmax(512, 512, 512),
        load("r2v"),
        objective,
        names,
        options=small,
        loop_orders="all",
    )
    return {f"r2 {n}": p for n, p in first.items()} | {f"r2v {n}": p for n, p in second.items()}


def large(objective: Objective) -> dict[str, Tabled]:
    """Spaces of one to ten million mappings."""
    edge, cloud = load("edge"), load("cloud")
    fused = ("fused-gemm-distsm",)
    resident = {**OPTIONS, "weights": "resident"}
    alone = {"algorithm": "auto"}
    cases = (
        ("edge 5040x1680x240", gemm_softmax(5040, 1680, 240), edge, fused, resident, "fixed"),
        (
            *("edge 1024x1024x256", gemm_softmax(1024, 1024, 256), edge, fused),
            *({**alone, "weights": "streamed"}, "all"),
        ),
        (
            *("cloud 5040x11520x720", gemm_softmax(5040, 11520, 720), cloud, fused),
            *({**alone, "weights": "resident"}, "fixed"),
        ),
        (
            *("edge attention 12x1024x1024", attention(1, 12, 1024, 1024, 64), edge, ("flash",)),
            *({**alone, "spread": "keys"}, "all"),
        ),
    )
    found = {}
    for label, workload, machine, names, options, orders in cases:
        each = problems(workload, machine, objective, names, options=options, loop_orders=orders)
        for name, problem in each.items():
            assert 1e6 <= problem.size <= 1e7, (label, name, problem.size)
            found[f"{label} {name}"] = problem
    return found


def seconds(work: Any, runs: int = 7) -> list[float]:
    """Wall times, after two calls to compile and warm up."""
    samples = []
    for i in range(runs + 2):
        begin = time.perf_counter()
        jax.block_until_ready(work())
        if i >= 2:
            samples.append(time.perf_counter() - begin)
    return samples


def speed(batch: int) -> dict[str, Any]:
    """Times of the relaxed value with its gradient, and of the exact value, of one batch."""
    (problem,) = problems(
        gemm_softmax(1024, 1024, 256),
        load("edge"),
        "latency",
        ("fused-gemm-distsm",),
        options={"weights": "resident", "algorithm": "mesh"},
    ).values()
    part = problem.parts[0]
    rounding = Rounding(problem)
    function = Relaxed(part, "latency", rounding)
    points = problem.random(np.random.default_rng(0), batch)
    found: dict[str, Any] = {"batch": batch}
    single = np.float32
    logs = tuple(jnp.asarray(rounding.logs[i][points[:, 1 + i]], single) for i in function.axes)

    def total(logs: tuple[Any, ...]) -> Any:
        return function.values(logs)[0].sum()

    gradient = jax.jit(jax.value_and_grad(total))
    found["value and gradient, s"] = seconds(lambda: gradient(logs))
    found["exact value, s"] = seconds(lambda: part.price(points[:, 1:], compiled=True))
    return found


def cold(command: Sequence[str]) -> dict[str, Any]:
    """Wall time of one command in a new process."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "jaxcomet.cli.main", *command, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    wall = time.perf_counter() - begin
    answer = json.loads(done.stdout)
    kept = ("value", "proven", "method", "evaluated", "size", "strategy")
    return {"command": " ".join(command), "s": wall, **{k: answer[k] for k in kept}}


COLD = (
    ("map", "gemm-softmax", "--m", "1024", "--n", "1024", "--k", "256", "--machine", "edge"),
    ("map", "gemm-layernorm", "--m", "1024", "--n", "1024", "--k", "512", "--machine", "cloud"),
    *(
        (
            *("map", "attention", "--heads", "12", "--q", "1024", "--kv", "1024"),
            *("--head-dim", "64", "--machine", "edge", *more),
        )
        for more in ((), ("--method", "gradient", "--budget", "5000"))
    ),
)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Hits and mean gaps by method and evaluations, over spaces and keys."""
    lines = [f"{'method':18} {'evaluations':>12} {'hits':>8} {'mean gap':>10} {'worst space':>12}"]
    names = list(dict.fromkeys(r["method"] for r in rows))
    for budget in sorted({r["evaluations"] for r in rows}):
        for name in names:
            of = [r for r in rows if (r["method"], r["evaluations"]) == (name, budget)]
            gaps = [[np.inf if g is None else g for g in r["gaps"]] for r in of]
            flat = np.array([g for several in gaps for g in several])
            hits = (flat <= 1e-12).mean()
            found = flat[np.isfinite(flat)]
            worst = max(float(np.mean(g)) for g in gaps)
            lines.append(
                f"{name:18} {budget:12,} {hits:8.1%} {found.mean():10.3%} {worst:12.3%}"
                + (
                    f"  ({(~np.isfinite(flat)).sum()} found nothing)"
                    if len(found) < len(flat)
                    else ""
                )
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=("hits", "gaps", "speed", "cold"))
    parser.add_argument("--objective", default="latency", choices=("latency", "energy", "edp"))
    given = parser.parse_args()
    wanted = (given.only,) if given.only else ("speed", "cold", "hits", "gaps")
    found: dict[str, Any] = {"provenance": provenance()}
    for name in wanted:
        match name:
            case "hits":
                spaces = published(given.objective, list(SHAPES["gemm-softmax"]))
                spaces |= reference_machines(given.objective)
                found[name] = run(spaces, (100, 1_000), METHODS)
                print(f"{len(spaces)} spaces that are enumerated\n{table(found[name])}\n")
            case "gaps":
                spaces = large(given.objective)
                methods = [m for m in METHODS if m != "gradient only"]
                found[name] = run(spaces, (100, 1_000, 10_000), methods)
                print(f"{len(spaces)} spaces of 1 to 10 million\n{table(found[name])}\n")
            case "speed":
                found[name] = [speed(16_384)]
                for key, samples in found[name][0].items():
                    if key != "batch":
                        rate = 16_384 / statistics.median(samples)
                        print(f"{key[:-3]}: {rate / 1e6:.2f} million a second at 16,384")
            case _:
                found[name] = [cold(command) for command in COLD]
                for one in found[name]:
                    print(f"{one['s']:6.1f} s: jaxcomet {one['command']} ({one['method']})")
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
