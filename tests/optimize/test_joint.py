"""Co-design: proven on four machines by a brute force of other code; the same on any devices."""

import itertools
import math
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxcomet import evaluate, gemm_softmax, optimize, strategies
from jaxcomet.cost.conventions import DEFAULT
from jaxcomet.hardware import numbers
from jaxcomet.optimize.joint.objectives import aim_of, make_targets
from jaxcomet.optimize.joint.run import Effort, Run, drive, prepare
from jaxcomet.optimize.joint.suite import make_suite

FUSED = {"gemm-softmax": ["fused-gemm-distsm"]}
DEFAULTS = {
    name: values[0]
    for name, values in strategies.get("gemm-softmax", "fused-gemm-distsm").options.items()
}
WORKLOADS = {"a": gemm_softmax(64.0, 256.0, 64.0), "b": gemm_softmax(128.0, 64.0, 32.0)}

FOUR = """
name = "four"
description = "Four machines"
machine = "edge"

[numbers.dram_bandwidth]
keys = ["memory.dram.child_bandwidth"]
unit = "byte/cycle"
values = [25, 50]
reason = "two channels"

[numbers.lanes]
keys = ["engine.simd.lanes"]
unit = "count"
values = [8, 16]
reason = "two widths"

[budgets.area]
limit = 5000
unit = "mm2"
reason = "more than anything here takes"

[budgets.bandwidth]
limit = 100
unit = "byte/cycle"
reason = "more than anything here takes"
"""


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spaces") / "four.toml"
    path.write_text(FOUR, encoding="utf-8")
    return path


def _edp(machine_index: tuple[int, int], space: optimize.DesignSpace) -> float:
    """Log of the geometric mean of the least EDP of each workload, by `optimize.map`."""
    machine = space.single(np.array(machine_index))
    logs = []
    for op in WORKLOADS.values():
        found = optimize.map(
            op,
            machine,
            objective="edp",
            strategies=FUSED["gemm-softmax"],
            options=DEFAULTS,
            method="enumerate",
        )
        logs.append(math.log(found.value))
    return sum(logs) / len(logs)


@pytest.mark.slow
def test_enumeration_finds_what_a_search_of_each_machine_finds(four: Path):
    space = optimize.load_space(four)
    found = optimize.codesign(WORKLOADS, space, strategies=FUSED)
    assert found.method == "enumerate"
    assert found.proven
    values = {index: _edp(index, space) for index in itertools.product(range(2), range(2))}
    best = min(values, key=lambda index: values[index])
    machine = found.best.machine
    assert numbers.read(machine, "memory.dram.child_bandwidth") == (25.0, 50.0)[best[0]]
    assert numbers.read(machine, "engine.simd.lanes") == (8.0, 16.0)[best[1]]
    again = 0.5 * (math.log(found.best.latency) + math.log(found.best.energy)) * 2
    assert again == pytest.approx(values[best], rel=1e-12)
    assert math.log(found.best.improvement) == pytest.approx(values[0, 1] - values[best], rel=1e-9)
    # each mapping, priced where it is said to run
    for op, mapping, cost in zip(
        WORKLOADS.values(), found.best.mappings, found.best.costs, strict=True
    ):
        alone = evaluate(op, mapping, machine, conventions=DEFAULT)
        assert alone.latency_cycles == cost.latency_cycles
        assert alone.energy_pj == cost.energy_pj
        assert alone.feasible


def test_a_budget_that_binds_is_kept_and_named(four: Path):
    free = optimize.codesign(WORKLOADS, four, strategies=FUSED)
    assert free.best.texts["dram_bandwidth"] == "50 byte/cycle"
    assert [use.binds for use in free.best.uses] == [False, False]
    tight = optimize.codesign(WORKLOADS, four, strategies=FUSED, budgets={"bandwidth": 49.0})
    assert tight.best.texts["dram_bandwidth"] == "25 byte/cycle"
    area, bandwidth = tight.best.uses
    assert (bandwidth.used, bandwidth.limit) == (25.0, 49.0)
    assert bandwidth.binds  # 50 is better, as above
    assert not area.binds


def test_a_budget_below_the_smallest_machine_is_refused(four: Path):
    with pytest.raises(optimize.InfeasibleError) as error:
        optimize.codesign(WORKLOADS, four, strategies=FUSED, budgets={"area": 100.0})
    # the start's 528.722 mm2 without 8 of the 16 lanes of 11,884 um2 in each of 16 cores
    assert "budgets.area: the smallest machine takes 527.201 mm2, allowed 100" in str(error.value)
    assert "(427.2% too little)" in str(error.value)


@pytest.mark.slow
def test_what_fits_nowhere_is_refused_with_the_memory_and_by_how_much():
    """Rows of four million columns, gathered in one buffer of 128 KiB or less."""
    wide = {"wide": gemm_softmax(16.0, 4194304.0, 64.0)}
    with pytest.raises(optimize.InfeasibleError, match="workload wide: nothing that was") as error:
        optimize.codesign(
            wide,
            "edge-small",
            method="local",
            evaluations=60,
            strategies={"gemm-softmax": ["fused-gemm-sm"]},
        )
    found = re.search(
        r"memory (\w+) holds ([\d,]+) byte, ([\d,]+) byte are needed \(([\d.e+]+) times",
        str(error.value),
    )
    assert found is not None
    there, needed = (float(found[k].replace(",", "")) for k in (2, 3))
    held = {"ib": {32768}, "wb": {32768}, "ob": {131072}}
    held["gb"] = {2**19, 2**20, 2**21, 2**22}  # the grid of the space
    assert there in held[found[1]]
    assert needed / there == pytest.approx(float(found[4]), rel=5e-3)
    assert needed > there


@pytest.fixture(scope="module")
def small() -> Run:
    """A run on the shipped small space; others share its programs."""
    space = optimize.load_space("edge-small")
    suite = make_suite(WORKLOADS, space.start, strategies=FUSED)
    targets = aim_of(make_targets(space, "edp", None), "geomean")
    effort = Effort(method="gradient", seeds=32, steps=24, chains=2)
    return prepare(space, suite, targets, effort, DEFAULT, [0])


def _again(run: Run, method: str, key: int, evaluations: int | None = None) -> Run:
    effort = Effort(method=method, seeds=32, steps=24, chains=2, evaluations=evaluations)  # pyright: ignore[reportArgumentType]
    one = run.again(effort, [key])
    drive(one)
    return one


@pytest.mark.slow
def test_descents_find_the_proven_optimum_from_ten_keys(small: Run):
    proven = _again(small, "enumerate", 0).incumbents.totals[0]
    found = []
    for key in range(10):
        found.append(_again(small, "gradient", key).incumbents.totals[0])
    np.testing.assert_allclose(found, proven, rtol=0, atol=1e-12)


def test_rivals_stay_above_the_proven_optimum_and_never_get_worse(small: Run):
    proven = _again(small, "enumerate", 0).incumbents.totals[0]
    for method, budget in (("random", 200), ("local", 400), ("cma", 200), ("nested", 20)):
        one = _again(small, method, 1, budget)
        totals = [values[0] for _, values in one.incumbents.history]
        assert totals == sorted(totals, reverse=True)
        assert totals[-1] >= proven - 1e-12
        assert one.evaluated >= budget
        at = [when for when, _ in one.incumbents.history]
        assert at == sorted(at)


@pytest.mark.slow
@pytest.mark.multi_device
def test_the_result_does_not_depend_on_the_devices(four: Path):
    several = []
    for count in (1, 2, 4, 8):
        found = optimize.codesign(
            WORKLOADS,
            four,
            strategies=FUSED,
            method="gradient",
            seeds=32,
            steps=8,
            chains=2,
            devices=jax.devices()[:count],
        )
        several.append((found.best.numbers, found.best.latency, found.history, found.seeds))
    assert several[0] == several[1] == several[2] == several[3]
