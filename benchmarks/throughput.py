"""How many exact evaluations a second: every strategy, both presets, and a grid of machines.

    python benchmarks/throughput.py --out throughput.json

Batches of 65,536 random mappings of every strategy on the edge machine (GEMM, GEMM-softmax and
GEMM-LayerNorm of 1024 x 1024 x 256; attention of 32 heads, 8 key/value heads, 2,048 x 2,048, width
64, with and without a causal mask), and 4,096 mappings on 16 machines, all numbers already on the
device. Mappings are drawn from the space that `jaxcomet.optimize` enumerates. Two ways are timed:
the public `evaluate_totals` (checks its arguments, copies the totals back) and the same totals
inside a jitted function of the caller. The baseline, measured between them in the same run, is the
scalar Python transcription of the authors' closed form (tests/reference/comet_program.py) on 200
mappings.
Raw samples, versions, device, commit and date go to the JSON; medians are computed from them.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from provenance import provenance

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # for tests.reference

from jaxcomet import attention, gemm, gemm_layernorm, gemm_softmax, strategies  # noqa: E402
from jaxcomet._compat import enable_x64  # noqa: E402
from jaxcomet.cost import conventions, evaluate_totals  # noqa: E402
from jaxcomet.cost.evaluate import totals_of  # noqa: E402
from jaxcomet.hardware import load  # noqa: E402
from jaxcomet.optimize.space import spaces  # noqa: E402
from jaxcomet.rewrite import rewritten  # noqa: E402
from jaxcomet.workload import CompoundOp  # noqa: E402
from tests.reference import comet_program  # noqa: E402

SHAPE = (1024, 1024, 256)
BATCH = 65_536
MACHINES = 16
MAPPINGS = 4_096
BASELINE_ROWS = 200
WORKLOADS: dict[str, CompoundOp] = {
    "gemm": gemm(*SHAPE),
    "gemm-softmax": gemm_softmax(*SHAPE),
    "gemm-layernorm": gemm_layernorm(*SHAPE),
    "attention": attention(1, 32, 2048, 2048, 64, kv_heads=8),
    "attention causal": attention(1, 32, 2048, 2048, 64, kv_heads=8, causal=True),
}


def seconds(work: Callable[[], Any], runs: int) -> list[float]:
    """Wall times of some runs, after two to compile and warm up."""
    for _ in range(2):
        jax.block_until_ready(work())
    samples = []
    for _ in range(runs):
        start = time.perf_counter()
        jax.block_until_ready(work())
        samples.append(time.perf_counter() - start)
    return samples


def on_device(tree: Any) -> Any:
    """Every number as a float64 array of the device."""
    with enable_x64(True):
        return jax.tree.map(lambda x: jax.device_put(np.asarray(x, np.float64)), tree)


def prepared(
    workload: CompoundOp, strategy: str, options: dict[str, str], count: int
) -> tuple[Any, Any, Any]:
    """(one workload, a batch of random mappings, one machine), float64, on the device."""
    machine, rng = load("edge"), np.random.default_rng(1)
    chosen = strategies.get(workload.name, strategy)
    plan = chosen.planned(workload, machine, **options)
    factors: dict[str, object] = {}
    for space in spaces(rewritten(workload, plan.rewrites), machine, plan.tree):
        factors |= space.factors(rng.integers(0, space.size, count))
    return on_device((workload, chosen.build(workload, machine, factors, **options), machine))


def grid() -> tuple[Any, Any, Any]:
    """(one workload, mappings, machines along an axis in front), on the device."""
    workload, mapping, machine = prepared(
        WORKLOADS["gemm-softmax"], "fused-gemm-distsm", {}, MAPPINGS
    )
    scale = np.linspace(1.0, 2.0, MACHINES)[:, None]
    return workload, mapping, on_device(jax.tree.map(lambda x: np.asarray(x) * scale, machine))


def baseline(runs: int) -> list[float]:
    """Wall times of the scalar reference on `BASELINE_ROWS` mappings."""
    numbers, side = (
        comet_program.edge(),
        dict.fromkeys(("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"), 2),
    )
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(BASELINE_ROWS):
        cut = np.sort(rng.integers(0, 11, 3))
        exponents = np.diff(np.concatenate([[0], cut, [10]]))
        m = dict(
            zip(
                ("M_dram_t", "M_gb_t", "M_core_t", "M_comp"),
                (2 ** int(x) for x in exponents),
                strict=True,
            )
        )
        n, k = int(rng.integers(0, 7)), int(rng.integers(0, 9))
        rows.append(
            {
                **side,
                **m,
                "N_core_t": 2**n,
                "N_comp": 2 ** (6 - n),
                "K_core_t": 2**k,
                "K_comp": 2 ** (8 - k),
            }
        )
    return seconds(
        lambda: [comet_program.price(numbers, SHAPE, r).latency_cycles for r in rows], runs
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Exact evaluations a second.")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    parser.add_argument(
        "--runs", type=int, default=15, help="timed runs of each case (at least 15)"
    )
    options = parser.parse_args()
    if options.runs < 15:
        parser.error("--runs: got fewer than 15; a median of so few says little")

    cases: list[tuple[str, tuple[Any, Any, Any], str, int]] = []
    for label, workload in WORKLOADS.items():
        for strategy in strategies.available(workload.name):
            given = prepared(workload, strategy.name, {}, BATCH)
            cases.append((f"{label} {strategy.name} default", given, "default", BATCH))
    for strategy in strategies.available("gemm-softmax"):
        given = prepared(WORKLOADS["gemm-softmax"], strategy.name, {}, BATCH)
        cases.append((f"gemm-softmax {strategy.name} comet-program", given, "comet-program", BATCH))
    tile = prepared(WORKLOADS["gemm-softmax"], "fused-gemm-distsm", {"reduce": "tile"}, BATCH)
    for preset in ("default", "comet-program"):
        cases.append((f"gemm-softmax fused-gemm-distsm tile {preset}", tile, preset, BATCH))
    several = f"gemm-softmax fused-gemm-distsm default, {MACHINES} machines"
    cases.append((several, grid(), "default", MACHINES * MAPPINGS))

    results: list[dict[str, Any]] = []
    per_second = 1.0
    middle = len(cases) // 2
    for index, (label, given, preset, count) in enumerate(cases):
        if index == middle:
            scalar = baseline(options.runs)
            per_second = BASELINE_ROWS / statistics.median(scalar)
            print(f"{'scalar reference, plain Python':56s} {per_second:12,.0f} evaluations/s")
            results.append(
                {"case": "scalar reference", "evaluations": BASELINE_ROWS, "samples_s": scalar}
            )
        rules = conventions(preset)
        public = seconds(lambda: evaluate_totals(*given, conventions=rules), options.runs)  # noqa: B023
        with enable_x64(True):
            jitted = jax.jit(lambda w, m, mach: totals_of(w, m, mach, rules))  # noqa: B023
            assert jitted(*given).latency_cycles.dtype == np.float64
            inner = seconds(lambda: jitted(*given), options.runs)  # noqa: B023
        rates = [count / statistics.median(s) / 1e6 for s in (public, inner)]
        print(f"{label:56s} {rates[0]:8.2f} million/s   {rates[1]:8.2f} million/s inside jit")
        results.append(
            {"case": label, "way": "evaluate_totals", "evaluations": count, "samples_s": public}
        )
        results.append(
            {"case": label, "way": "inside jit", "evaluations": count, "samples_s": inner}
        )

    slowest = min(
        r["evaluations"] / statistics.median(r["samples_s"])
        for r in results
        if r.get("way") == "evaluate_totals"
    )
    print(f"slowest case / scalar reference: {slowest / per_second:,.0f}")
    record = {
        "benchmark": "throughput",
        **provenance(),
        "shape": SHAPE,
        "ratio_slowest_to_scalar_reference": slowest / per_second,
        "results": results,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
