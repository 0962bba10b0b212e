"""Co-design by every method: improvement at equal joint evaluations, seconds, and what scales how.

    python benchmarks/codesign.py methods --space edge-9 --workloads 24 --keys 10
    python benchmarks/codesign.py nested  --space edge-9 --workloads 6  --keys 2
    python benchmarks/codesign.py ladder  --space edge-9
    python benchmarks/codesign.py rate    --space edge
    python benchmarks/codesign.py starts  --space edge-9
    python benchmarks/codesign.py small

Each part prints a table and appends one JSON line to the file given by --out; docs/codesign.md is
written from these lines. A suite has as many GEMM-softmax, GEMM-LayerNorm and attention workloads
as asked for, attention at 512 to 16,384 keys among them. All runs of a part share their compiled
programs; what the first run of a method takes more than the median of the others is compiling.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from jaxcomet.cost.conventions import DEFAULT
from jaxcomet.operations import attention, gemm_layernorm, gemm_softmax
from jaxcomet.optimize import load_space, pareto
from jaxcomet.optimize.joint.gradient import Descent
from jaxcomet.optimize.joint.incumbents import Incumbents
from jaxcomet.optimize.joint.nested import Enumerator
from jaxcomet.optimize.joint.objectives import aim_of, make_targets
from jaxcomet.optimize.joint.run import Effort, Run, drive, for_evaluations, prepare
from jaxcomet.optimize.joint.suite import make_suite
from jaxcomet.workload import CompoundOp

SHAPES = (
    (512, 1024, 128),
    (1024, 4096, 128),
    (2048, 2048, 256),
    (256, 16384, 128),
    (4096, 1024, 64),
    (512, 4096, 128),
    (128, 1024, 512),
    (1024, 512, 256),
)
SEQUENCES = (2048, 16384, 512, 1024)
FUSED = {"gemm-softmax": ["fused-gemm-distsm"], "gemm-layernorm": ["fused-gemm-distln"]}


def suite_of(count: int, *, products_only: bool = False) -> dict[str, CompoundOp]:
    """Workloads of several sizes, all different."""
    found: dict[str, CompoundOp] = {}
    number = 0
    while len(found) < count:
        m, n, k = SHAPES[number % len(SHAPES)]
        times = 2 ** (number // len(SHAPES) % 4)
        more = 1 + number // (4 * len(SHAPES))  # beyond 32 shapes, other multiples
        found[f"softmax-{number}"] = gemm_softmax(m * times * more, n, k)
        found[f"layernorm-{number}"] = gemm_layernorm(m * more, min(n * times, 16384), k * times)
        if number % 2 == 0 and not products_only:
            length = SEQUENCES[number // 2 % len(SEQUENCES)]
            found[f"attention-{number}"] = attention(
                batch=more,
                heads=8 * times,
                q=length,
                kv=length,
                head_dim=64 * (1 + number // 8 % 2),
            )
        number += 1
    return dict(list(found.items())[:count])


def at(run: Run, evaluations: float) -> float:
    """Improvement over the start after so many joint evaluations.

    A batch is scored as a whole: the last one may end up to 8 chains, or 2 %, beyond.
    """
    found = 1.0
    for when, totals in run.incumbents.history:
        if when <= evaluations * 1.02 + 8:
            found = float(np.exp(-totals[0]))
    return found


def begun(args: argparse.Namespace, *, fused: bool = False) -> tuple[Run, float]:
    space = load_space(args.space)
    began = time.monotonic()
    workloads = suite_of(args.workloads, products_only=fused)
    made = make_suite(workloads, space.start, strategies=FUSED if fused else None)
    targets = make_targets(space, "edp", None)
    effort = Effort(method="gradient", seeds=32, steps=60)
    run = prepare(space, made, aim_of(targets, "geomean"), effort, DEFAULT, [0])
    took = time.monotonic() - began
    print(f"{args.space} {args.workloads} workloads, {len(made.trees)} trees, start {took:.1f} s")
    return run, took


def methods(args: argparse.Namespace) -> dict[str, object]:
    """Improvement of every method at 300, 1,000 and 5,000 joint evaluations."""
    run, start_s = begun(args)
    budgets = [b for b in (300, 1000, 5000) if b <= args.most]
    found: dict[str, dict[str, list[float]]] = {}
    for method in args.methods.split(","):
        values: dict[str, list[float]] = {str(b): [] for b in budgets}
        seconds: dict[str, list[float]] = {str(b): [] for b in budgets}
        for key in range(args.keys):
            for budget in budgets:
                # others pass 300 and 1,000 on their way to 5,000
                if method != "gradient" and budget != budgets[-1]:
                    continue
                seeds, steps = for_evaluations(budget)
                effort = Effort(method=method, seeds=seeds, steps=steps, evaluations=budget)
                one = run.again(effort, [key])
                drive(one)
                took = time.monotonic() - one.began_s
                seconds[str(budget)].append(took)
                passed = [budget] if method == "gradient" else budgets
                for b in passed:
                    values[str(b)].append(at(one, b))
        found[method] = {f"improvement {b}": v for b, v in values.items()}
        found[method] |= {f"seconds {b}": v for b, v in seconds.items()}
        for b in budgets:
            v, s = values[str(b)], seconds[str(b)]
            text = f"{np.median(s):7.1f} s (first {s[0]:.1f} s)" if s else ""
            print(
                f"{args.space:8} {args.workloads:4} {method:9} {b:5}: median {np.median(v):.4f} "
                f"[{min(v):.4f}, {max(v):.4f}] of {len(v)}  {text}",
                flush=True,
            )
    parameters = run.relaxed().parameters
    return {"start_s": start_s, "parameters": parameters, "found": found}


def nested(args: argparse.Namespace) -> dict[str, object]:
    """CMA-ES around enumeration beside gradients, where enumeration is possible."""
    run, start_s = begun(args, fused=True)
    each = Enumerator(run.joint).size(run.joint.space.start_grid)
    print(f"{args.space} {args.workloads}: {each:,} mappings a machine, start {start_s:.1f} s")
    found: dict[str, list[dict[str, float]]] = {"gradient": [], "nested": []}
    for key in range(args.keys):
        for method, budget in (("gradient", 5000), ("nested", args.machines)):
            seeds, steps = for_evaluations(5000)
            effort = Effort(method=method, seeds=seeds, steps=steps, evaluations=budget)
            one = run.again(effort, [key])
            drive(one)
            row = {
                "improvement": float(np.exp(-one.incumbents.totals[0])),
                "seconds": time.monotonic() - one.began_s,
                "evaluated": one.evaluated,
                "mappings": one.joint.lanes,
            }
            found[method].append(row)
            print(method, key, {k: round(v, 4) for k, v in row.items()}, flush=True)
    return {"start_s": start_s, "mappings_a_machine": each, "found": found}


def ladder(args: argparse.Namespace) -> dict[str, object]:
    """A front and a ladder of 20 points as one batch, beside single nested runs."""
    space = load_space(args.space)
    made = make_suite(suite_of(args.workloads, products_only=True), space.start, strategies=FUSED)
    areas = np.geomspace(0.12, 1.0, 20) * space.limits[0]
    rows = {}
    for name, objective, budgets in (
        ("front", list(pareto(20)), None),
        ("ladder", "edp", [{"area": float(a)} for a in areas]),
    ):
        targets = make_targets(space, objective, budgets)
        effort = Effort(method="gradient", seeds=320, steps=60, chains=2)
        began = time.monotonic()
        run = prepare(space, made, aim_of(targets, "geomean"), effort, DEFAULT, [0])
        drive(run)
        took = time.monotonic() - began
        single = []
        values = []
        for target in (targets[0], targets[len(targets) // 2], targets[-1]):
            effort = Effort(method="nested", seeds=1, steps=1, evaluations=args.machines)
            began = time.monotonic()
            other = prepare(space, made, aim_of([target], "geomean"), effort, DEFAULT, [0])
            drive(other)
            single.append(time.monotonic() - began)
            number = targets.index(target)
            values.append([float(run.incumbents.totals[number]), float(other.incumbents.totals[0])])
        rows[name] = {
            "seconds": took,
            "nested_seconds_each": single,
            "log_objective_batch_and_nested": values,
        }
        print(name, rows[name], flush=True)
    return rows


def rate(args: argparse.Namespace) -> dict[str, object]:
    """Gradient steps a second and seed, in batches of 64 and 1,024."""
    run, _ = begun(args, fused=True)
    relaxation = run.relaxed()
    rows = {}
    for seeds in (64, 1024):
        rng = np.random.default_rng(0)
        aim = run.targets.take(np.zeros(seeds, dtype=np.int64))
        points = run.joint.random(rng, aim.limits)
        points.tree[:] = run.start.descent.tree[0]
        points.rows = run.joint.random_rows(rng, points.grid, points.tree)
        state = relaxation.start(points, aim)
        began = time.monotonic()
        state, _ = relaxation.advance(state, np.ones(4))
        compiled = time.monotonic() - began
        times = []
        for _ in range(5):
            began = time.monotonic()
            state, _ = relaxation.advance(state, np.ones(4))
            times.append(time.monotonic() - began)
        rows[str(seeds)] = {
            "seed_steps_a_second": 4 * seeds / float(np.median(times)),
            "first_call_s": compiled,
        }
    found = {"parameters": relaxation.parameters, "workloads": args.workloads, "batches": rows}
    print(found)
    return found


def starts(args: argparse.Namespace) -> dict[str, object]:
    """Descents from the worst and from the best tenth of random machines."""
    run, _ = begun(args)
    rng = np.random.default_rng(1)
    tree = run.start.descent.tree[0]
    aim = run.targets.take(np.zeros(320, dtype=np.int64))
    points = run.joint.random(rng, aim.limits)
    points.tree[:] = tree
    points.rows = run.joint.random_rows(rng, points.grid, points.tree)
    points, scores = run.joint.fitted(points, run.joint.score(points))
    order = run.joint.total(scores, aim).argsort()
    rows = {}
    for name, picked in (("best tenth", order[:32]), ("worst tenth", order[-32:])):
        effort = Effort(method="gradient", seeds=32, steps=60)
        one = run.again(effort, [0])
        own = aim.take(picked)
        one.descent = Descent(
            seeds=run.relaxed().start(points.take(picked), own),
            round=0,
            rounds=15,
            best=points.take(picked),
            scores=scores.take(picked),
            totals=run.joint.total(scores.take(picked), own),
            target=np.zeros(32, dtype=np.int64),
        )
        before = float(np.exp(np.median(np.minimum(one.descent.totals, 700.0))))
        # without the start machine, which the incumbents have been shown
        one.incumbents = Incumbents.empty(run.joint, run.targets)
        run.joint.seen = one.incumbents.see
        drive(one)
        seeds = np.exp(one.descent.totals)
        rows[name] = {
            "median_edp_before": before,
            "median_edp_of_seeds": float(np.median(seeds)),
            "best_edp_of_seeds": float(seeds.min()),
            "final_edp": float(np.exp(one.incumbents.totals[0])),
        }
        print(name, rows[name], flush=True)
    return rows


def small(args: argparse.Namespace) -> dict[str, object]:
    """The proven optimum of the small space, and what ten keys of the descent find."""
    space = load_space("edge-small")
    made = make_suite(suite_of(4, products_only=True), space.start, strategies=FUSED)
    targets = make_targets(space, "edp", None)
    effort = Effort(method="enumerate", seeds=1, steps=1)
    run = prepare(space, made, aim_of(targets, "geomean"), effort, DEFAULT, [0])
    drive(run)
    proven = float(run.incumbents.totals[0])
    found = []
    for key in range(10):
        effort = Effort(method="gradient", seeds=32, steps=60)
        one = run.again(effort, [key])
        drive(one)
        found.append(float(one.incumbents.totals[0]))
    rows = {
        "proven_improvement": float(np.exp(-proven)),
        "found": [float(np.exp(-x)) for x in found],
        "equal": int(np.isclose(found, proven, rtol=0, atol=1e-9).sum()),
    }
    print(rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {f.__name__: f for f in (methods, nested, ladder, rate, starts, small)}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--space", default="edge-9")
    parser.add_argument("--workloads", type=int, default=6)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--most", type=int, default=5000)
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--methods", default="random,cma,local,gradient")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = parts[args.part](args)
    if args.out is not None:
        about = {k: str(v) for k, v in vars(args).items() if k != "out"}
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(about | {"result": found}) + "\n")


if __name__ == "__main__":
    main()
