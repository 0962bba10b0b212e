"""accelforge's mapper and ours: the same workloads, machine and rules, in one run.

    python3.12 -m venv ../accelforge && ../accelforge/bin/python -m pip install accelforge==1.0.467
    python benchmarks/accelforge.py --python ../accelforge/bin/python --out accelforge.json

A dependency of accelforge has no wheel for Python 3.11, so it needs an environment of its own.

The machines are R2 and R2V (docs/machines.md); what accelforge reads is generated from our
description of machine and workload. Both minimise energy. Every case runs in a fresh process on
either side, one after the other, accelforge without helper processes: seconds to import, of the
first call (which compiles) and of a second one. An unrecorded run before fills caches on disk.

accelforge stores a tensor that is reduced and read again as one tile, though all of a row must
stay until its reduction ends; its best mapping may therefore be one that cannot run. So it gets a
second chance: of its partial mappings those are dropped in which such a tensor, or the result of
a reduction, lies below a loop over what is reduced, and the rest is joined again. That optimum is
called legal, and the exit code is 1 if ours is worse.

What differs, and what is done about it:

* It has the row values of a softmax touched for every element, ours once a row. The difference
  depends on the workload alone (`row_accesses_more`) and is added to ours.
* A map may overwrite its operand in ours (``in_place="elementwise"``), not in accelforge.
* Latency only breaks ties in ours and is left to chance in accelforge. Its energies are float32.
* It maps the operations as they are written, so ours leaves out the strategies with the online
  softmax; what they reach is noted beside it in the JSON.
* Its counts of tiles that do not divide are averages over partial and whole ones: where columns
  fill 5.3 passes of the array, it has rows read 5.7 times, ours 6 times. Of a GEMM with such tiles,
  its loops are therefore priced by our model too, and ours may not be worse than that.

Figures of tests/jaxcomet/test_peers.py that were derived by hand are compared with both. Samples,
mappings, versions, commit and date go to the JSON; the table is computed from it.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

STARTED = time.perf_counter(), time.process_time()

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # for tests.jaxcomet

from jaxcomet import attention, evaluate, hardware, optimize, strategies  # noqa: E402
from jaxcomet.hardware import Machine  # noqa: E402
from jaxcomet.optimize import MapResult  # noqa: E402
from jaxcomet.workload import CompoundOp, Operation  # noqa: E402

IMPORTED = time.perf_counter(), time.process_time()

from accelforge_inputs import architecture, cascade, held  # noqa: E402
from provenance import provenance  # noqa: E402

from tests.jaxcomet import test_peers as peers  # noqa: E402

VERSION = "1.0.467"
WORKER = Path(__file__).with_name("accelforge_worker.py")
FLOAT32 = 2e-6  # accelforge's rounding, over a sum of some dozen terms
AVERAGED = 0.005  # most that averages over partial tiles make of an energy
ONLINE = ("flash", "ring")  # strategies of attention that rewrite the softmax
KIB = 1024

Orders = Literal["fixed", "all"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload on a machine.

    Attributes:
      machine: ``r2`` or ``r2v``.
      capacity: bytes of the global buffer.
      workload: what is mapped.
      tiles: ``divisors`` or ``any``.
      dram_bytes: least traffic of main memory as derived by hand, where it was.
      energy_pj: least energy as derived by hand, where it was.
    """

    machine: str
    capacity: int
    workload: CompoundOp
    tiles: Literal["divisors", "any"] = "divisors"
    dram_bytes: float | None = None
    energy_pj: float | None = None

    def hardware(self) -> Machine:
        """The machine with this buffer."""
        return hardware.load(self.machine, [("memory.glb.capacity", f"{self.capacity} B")])


def gemm_cases() -> dict[str, Case]:
    """The 512^3 GEMM by buffer size; at 40 KiB one operand comes in slices beside the other."""
    found = {}
    for size in (32_768, 40_960, 65_536, 98_304, 131_072, 262_144, 263_168):
        least = peers.least_bytes(size)
        energy = peers.gemm_energy(least, peers.S**3)
        case = Case(machine="r2", capacity=size, workload=peers.GEMM)
        found[f"gemm {size:,} B"] = replace(case, dram_bytes=least, energy_pj=energy)
        found[f"gemm {size:,} B, any tiles"] = replace(case, tiles="any")
    return found


def compound_cases() -> dict[str, Case]:
    """GEMM-softmax, GEMM-LayerNorm (three passes) and attention."""
    s, sides = peers.S, 4 * peers.S * peers.D
    rows = partial(peers.fused_bytes, only_divisors=True, live=1)
    norm = replace(peers.LAYERNORM, name="gemm-layernorm")
    heads = attention(1, 8, 2048, 2048, peers.D, vector_bits=8, fused_exp=True)
    energy = peers.compound_energy(
        rows(512 * KIB), peers.gemm_softmax_accesses(), s**3, elementary=4 * s * s
    )

    def case(kib: int, workload: CompoundOp, **by_hand: float) -> Case:
        return Case(machine="r2v", capacity=kib * KIB, workload=workload, **by_hand)

    return {
        "gemm-softmax 64 KiB": case(64, peers.GEMM_SOFTMAX),
        "gemm-softmax 128 KiB": case(128, peers.GEMM_SOFTMAX),
        "gemm-softmax 512 KiB": case(
            512, peers.GEMM_SOFTMAX, dram_bytes=rows(512 * KIB), energy_pj=energy
        ),
        "gemm-layernorm 128 KiB": case(128, norm, dram_bytes=rows(128 * KIB)),
        "attention 128 KiB": case(128, peers.ATTENTION, dram_bytes=sides),
        "attention 512 KiB": case(512, peers.ATTENTION, dram_bytes=sides),
        "attention 8 x 2048, 128 KiB": case(128, heads),
    }


CASES = {**gemm_cases(), **compound_cases()}


# -- accelforge ------------------------------------------------------------------------------------


def run_accelforge(python: Path, case: Case) -> dict[str, Any]:
    """What accelforge finds, in a process of its own."""
    text = "\n".join([*architecture(case.hardware()), *cascade(case.workload), ""])
    given = {"yaml": text, "any_tiles": case.tiles == "any", "held": held(case.workload)}
    # -I: without our folder on the path, where this file would be taken for the package
    found = _json([str(python), "-I", str(WORKER)], json.dumps(given))
    if found["versions"]["accelforge"] != VERSION:
        sys.exit(f"accelforge: got {found['versions']['accelforge']}; expected {VERSION}")
    return found


# -- ours ------------------------------------------------------------------------------------------


def search(case: Case, orders: Orders, without: tuple[str, ...]) -> MapResult:
    """Our best mapping."""
    return optimize.map(
        case.workload,
        case.hardware(),
        objective="energy",
        strategies="all",
        without=[n for n in without if case.workload.name == "attention"],
        conventions=peers.STEADY,
        loop_orders=orders,
        tiles=case.tiles,
    )


def row_accesses_more(workload: CompoundOp) -> float:
    """Bytes that touching row values for every element adds to touching them once a row.

    A reduction writes its result for every element and reads it back for all but the first.
    """

    def points(dims: tuple[str, ...]) -> float:
        total = 1.0
        for d in dims:
            total *= float(workload.sizes[d])  # pyright: ignore[reportArgumentType]
        return total

    def more(operation: Operation) -> float:
        steps = points(workload.iteration_dims(operation))
        read = sum(steps - points(workload.tensor(t).dims) for t in operation.inputs)
        return read + 2 * (steps - points(workload.tensor(operation.output).dims))

    return sum(more(o) for o in workload.operations if o.kind != "contract")


def run_ours(name: str, orders: Orders) -> dict[str, Any]:
    """What ours finds, in a process of its own."""
    return _json([sys.executable, __file__, "--case", name, "--orders", orders], "")


def ours(case: Case, orders: Orders) -> dict[str, Any]:
    """What ours finds, in this process, which should be a fresh one."""

    def timed(without: tuple[str, ...]) -> tuple[MapResult, dict[str, float]]:
        wall, cpu = time.perf_counter(), time.process_time()
        found = search(case, orders, without)
        spent = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        return found, spent

    def described(found: MapResult, more_pj: float) -> dict[str, Any]:
        cost = found.cost
        return {
            "energy_pj": float(cost.energy_pj) + more_pj,  # pyright: ignore[reportArgumentType]
            "latency_cycles": float(cost.latency_cycles),  # pyright: ignore[reportArgumentType]
            "dram_bytes": float(cost.root_traffic_bytes),  # pyright: ignore[reportArgumentType]
            "mapping": {"strategy": found.label, **_whole(found.mapping.factors)},
            "fits": found.feasible,
            "proven": found.proven,
            "evaluated": found.evaluated,
        }

    more_pj = row_accesses_more(case.workload) * peers.GLB
    first, cold = timed(ONLINE)
    second, warm = timed(ONLINE)
    assert first.cost.energy_pj == second.cost.energy_pj
    begun = {"wall_s": IMPORTED[0] - STARTED[0], "cpu_s": IMPORTED[1] - STARTED[1]}
    result = {"import": begun, "first": cold, "second": warm, "best": described(second, more_pj)}
    if case.workload.name == "attention":
        found, spent = timed(())
        # the online softmax has other row values, so nothing is added
        result |= {"every_strategy": described(found, 0.0), "every_strategy_run": spent}
    return result


def repriced(case: Case, lines: list[str]) -> float:
    """Energy in our model of a GEMM by the loops that accelforge found; 0 where ours has no such.

    A loop around the last tensor that the buffer holds belongs to main memory; the second one over
    a dimension makes slices.
    """
    machine, last = case.hardware(), max(i for i, x in enumerate(lines) if "in GLB" in x)
    steps: dict[str, list[int]] = {d: [] for d in "MNK"}
    for text in lines[:last]:
        loop = re.match(r"T-(\w) in \[0\.\.(\d+)\)", text)
        if loop:
            steps[loop[1].upper()].append(int(loop[2]))
    found = math.inf
    for order in strategies.get("gemm", "tiled").options["order"]:
        factors = {f"{d}_dram_t": several[0] for d, several in steps.items() if several}
        slices = {d: several[1] for d, several in steps.items() if len(several) > 1}
        if set(slices) != set(order[3:]):
            continue
        factors |= {f"{d}_dram_slices": n for d, n in slices.items()}
        for dim, several in steps.items():
            factors[f"{dim}_comp"] = math.ceil(case.workload.sizes[dim] / math.prod(several))  # pyright: ignore[reportArgumentType, reportOperatorIssue]
        mapping = strategies.build(case.workload, machine, "tiled", factors, order=order)
        cost = evaluate(case.workload, mapping, machine, conventions=peers.STEADY)
        if cost.feasible:
            found = min(found, float(cost.energy_pj))  # pyright: ignore[reportArgumentType]
    return found if found < math.inf else 0.0


def _whole(factors: Mapping[str, Any]) -> dict[str, int]:
    return {n: int(v) for n, v in factors.items() if int(v) != 1}


def _json(command: list[str], given: str) -> dict[str, Any]:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)


# -- the comparison --------------------------------------------------------------------------------


def problems(case: Case, theirs: dict[str, Any], our: dict[str, Any]) -> list[str]:
    """What is wrong with a case: ours worse, or figures that differ from those by hand."""
    legal, best, found = theirs["legal"], our["best"], []
    if not best["fits"]:
        found.append("nothing of ours fits")
    most, ours_of_theirs = legal["energy_pj"], our.get("repriced_pj", 0.0)
    if most < ours_of_theirs < most * (1 + AVERAGED):  # else their loops are none of ours
        most = ours_of_theirs
    if not legal["rejected"] and best["energy_pj"] > most * (1 + FLOAT32):
        found.append(f"ours is worse by {best['energy_pj'] / most - 1:.2%}")
    for quantity in ("dram_bytes", "energy_pj"):
        hand = getattr(case, quantity)
        for who, answer in (("accelforge", legal), ("ours", best)) if hand else ():
            got = answer.get(quantity)
            if got is not None and abs(got / hand - 1) > FLOAT32:
                found.append(f"{who}, {quantity}: got {got:,.0f}; by hand {hand:,.0f}")
    return found


HEADINGS = (
    f"{'':28s}{'energy, uJ':>33s}{'':9s}{'main memory, KiB':>18s}{'1000 cycles':>18s}"
    f"{'CPU s of the first and second call':>36s}\n"
    f"{'':28s}{'accelforge':>11s}{'legal':>12s}{'ours':>11s}{'ratio':>8s}"
    f"{'legal':>9s}{'ours':>9s}{'legal':>9s}{'ours':>9s}{'accelforge':>18s}{'ours':>18s}"
)


def line(name: str, theirs: dict[str, Any], our: dict[str, Any], wrong: list[str]) -> str:
    """A row of the table."""
    best, legal, mine = theirs["best"], theirs["legal"], our["best"]
    mark = " " if best["energy_pj"] > legal["energy_pj"] * (1 - FLOAT32) else "*"
    energies = [f"{x['energy_pj'] / 1e6:11.3f}" for x in (best, legal, mine)]
    ratio = f"{mine['energy_pj'] / legal['energy_pj']:8.4f}"
    moved = [f"{(x['dram_bytes'] or math.nan) / KIB:9.0f}" for x in (legal, mine)]
    cycles = [f"{(x['latency_cycles'] or math.nan) / 1e3:9.1f}" for x in (legal, mine)]
    times = [f"{run[call]['cpu_s']:9.2f}" for run in (theirs, our) for call in ("first", "second")]
    cells = (energies[0], mark, *energies[1:], ratio, *moved, *cycles, *times)
    return f"{name:28s}{''.join(cells)}  {'; '.join(wrong)}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description="accelforge's mapper and ours.")
    parser.add_argument("--python", type=Path, help="an interpreter that has accelforge")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument(
        "--orders", choices=get_args(Orders), default="all", help="loop orders that ours tries"
    )
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(ours(CASES[options.case], options.orders)))
        return
    chosen = {n: c for n, c in CASES.items() if options.only in n}
    if options.python is None or options.out is None or not chosen:
        parser.error(f"needs --python and --out, and of --only one of: {', '.join(CASES)}")

    name, case = next(iter(CASES.items()))
    run_accelforge(options.python, case)
    run_ours(name, options.orders)
    print(f"{HEADINGS}\n*: a mapping that cannot run")
    results: list[dict[str, Any]] = []
    record = {
        "benchmark": "accelforge",
        **provenance(),
        "conventions": "roofline, row_partials=free, in_place=elementwise",
        "loop_orders": options.orders,
        "results": results,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name, case in chosen.items():
        theirs, our = run_accelforge(options.python, case), run_ours(name, options.orders)
        if case.tiles == "any":
            our["repriced_pj"] = repriced(case, theirs["legal"]["mapping"])
        wrong = problems(case, theirs, our)
        print(line(name, theirs, our, wrong), flush=True)
        results.append({"case": name, "accelforge": theirs, "ours": our, "problems": wrong})
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(r["problems"] for r in results))


if __name__ == "__main__":
    main()
