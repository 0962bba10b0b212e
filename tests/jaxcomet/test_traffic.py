"""Traffic and latency by hand, and traffic against a walk of the loop nest step by step."""

from collections import defaultdict

import numpy as np
import pytest

from jaxcomet import gemm_softmax, strategies
from jaxcomet.cost import Cost, evaluate
from jaxcomet.hardware import load
from tests.reference import step_walk
from tests.reference.sampling import DIMS, STRATEGIES, Row, arguments, priced, random_rows

WALKED = (*STRATEGIES, ("fused-gemm-distsm", (("weights", "streamed"),)))
LONGEST = 300  # engine calls that are walked one by one


def _bytes(cost: Cost) -> dict[step_walk.Key, tuple[np.ndarray, np.ndarray]]:
    parent: dict[step_walk.Key, np.ndarray] = defaultdict(lambda: np.zeros(()))
    child: dict[step_walk.Key, np.ndarray] = defaultdict(lambda: np.zeros(()))
    for t in cost.traffic:
        key = (t.tensor, t.direction, t.parent, t.child)
        parent[key] = parent[key] + np.asarray(t.parent_bytes)
        child[key] = child[key] + np.asarray(t.child_bytes)
    return {k: (parent[k], child[k]) for k in parent}


def _padded(row: Row) -> bool:
    """Whether some dimension is covered by more than its size: its last tile is partial."""
    covered = {d: 1 for d in DIMS}
    for name, factor in row.factors.items():
        if "." not in name:
            covered[name[0]] *= factor
    return tuple(covered.values()) != row.sizes


def _small_rows(strategy: tuple[str, tuple[tuple[str, str], ...]]) -> list[Row]:
    rows = random_rows(strategy, 400, seed=5, machines=[load("edge")], largest=(9, 24, 9))
    _, mapping, _ = arguments(strategy, rows)
    workload = gemm_softmax(*np.array([r.sizes for r in rows], dtype=float).T)
    short = [
        i
        for i in range(len(rows))
        if step_walk.calls(*step_walk.single(workload, mapping, i), rows[i].machine) <= LONGEST
    ]
    partial = [i for i in short if _padded(rows[i])][:25]
    return [rows[i] for i in (partial + [i for i in short if i not in partial])[:50]]


LONG = ("unfused", "fused-distsm")


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(s, marks=pytest.mark.slow) if s[0] in LONG else s for s in WALKED],
    ids=["-".join([s[0], *(v for _, v in s[1])]) for s in WALKED],
)
def test_bytes_equal_those_of_a_walk_step_by_step(strategy: tuple):
    rows = _small_rows(strategy)
    assert len(rows) == 50
    assert sum(_padded(r) for r in rows) >= 25
    (cost,) = priced(strategy, rows)
    found = _bytes(cost)
    workload, mapping, _ = arguments(strategy, rows)
    for i, row in enumerate(rows):
        walked = step_walk.count(*step_walk.single(workload, mapping, i), row.machine)
        assert set(walked) <= set(found)
        for key, (parent, child) in found.items():
            moved = walked.get(key, step_walk.Moved())
            got = (np.broadcast_to(parent, (50,))[i], np.broadcast_to(child, (50,))[i])
            want = (moved.parent_bytes, moved.child_bytes)
            # bytes are whole, but a share of them is divided out and multiplied back
            assert got == pytest.approx(want, rel=1e-12), (key, row.sizes, row.factors)


# -- by hand -----------------------------------------------------------------------------------


def _one(strategy: str, shape: tuple[int, int, int], **factors: int) -> Cost:
    machine, workload = load("edge"), gemm_softmax(*shape)
    return evaluate(workload, strategies.build(workload, machine, strategy, factors), machine)


def _of(cost: Cost, tensor: str, direction: str, parent: str) -> tuple[float, float]:
    found = [
        t for t in cost.traffic if (t.tensor, t.direction, t.parent) == (tensor, direction, parent)
    ]
    return sum(float(t.parent_bytes) for t in found), sum(float(t.child_bytes) for t in found)


def test_partial_sums_of_a_split_contraction_are_read_back():
    # M = N = 4, K = 6 in 3 steps of 2 at DRAM. K is innermost there, so a tile of C is finished
    # before the next begins: it leaves the engine, OB and the cluster once, 16 bytes, none come
    # back.
    cost = _one(
        "unfused",
        (4, 4, 6),
        **{"K_dram_t": 3, "K_comp": 2, "M_dram_t": 2, "M_comp": 2, "N_comp": 4},
        **{"softmax.M_comp": 4, "softmax.N_comp": 4},
    )
    assert _of(cost, "C", "drain", "dram") == (16, 16)
    # rowmax, and sub, read C from DRAM: 16 bytes each
    assert _of(cost, "C", "fill", "dram") == (32, 32)
    # C of 2 x 4 elements stays in OB over the 3 steps of K (the GB loop has one step)
    assert _of(cost, "C", "drain", "gb") == (16, 16)
    # and in the engine, which has no other tile to make room for in between
    assert _of(cost, "C", "drain", "ob") == (16, 0)
    gemm = [t for t in cost.traffic if (t.tensor, t.direction, t.child) == ("C", "fill", "gemm")]
    assert sum(float(t.parent_bytes) for t in gemm) == 0

    # With two steps of M in the cluster, the two tiles of C replace each other in OB at each step
    # of K: 3 x 16 bytes go up, and 2 x 16 come back; DRAM still sees C once.
    cost = _one(
        "unfused",
        (4, 4, 6),
        **{"K_dram_t": 3, "K_comp": 2, "M_gb_t": 2, "M_comp": 2, "N_comp": 4},
        **{"softmax.M_comp": 4, "softmax.N_comp": 4},
    )
    assert _of(cost, "C", "drain", "dram") == (16, 16)
    assert _of(cost, "C", "drain", "gb") == (48, 48)
    assert _of(cost, "C", "drain", "ob") == (48, 0)
    gemm = [t for t in cost.traffic if (t.tensor, t.direction, t.child) == ("C", "fill", "gemm")]
    assert sum(float(t.parent_bytes) for t in gemm) == pytest.approx(32)
    back = [
        t
        for t in cost.traffic
        if (t.tensor, t.direction, t.parent, t.child) == ("C", "fill", "gb", "ob")
    ]
    # and rowmax and sub fetch C at 2 bytes an element: 2 x 32
    assert sum(float(t.parent_bytes) for t in back) == pytest.approx(32 + 64)


def test_a_broadcast_is_read_once_and_written_by_all():
    # 16 cores, 4 in each of 4 clusters, one column each; 3 rows, K = 5: A is 15 bytes.
    spread = dict.fromkeys(("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"), 2)
    cost = _one("fused-gemm-distsm", (3, 16, 5), M_comp=3, K_comp=5, **spread)
    assert _of(cost, "A", "fill", "dram") == (15, 4 * 15)
    assert _of(cost, "A", "fill", "gb") == (4 * 15, 16 * 15)
    # B is 80 bytes, each of them for one core
    assert _of(cost, "B", "fill", "dram") == (80, 80)
    assert _of(cost, "B", "fill", "gb") == (80, 80)
    assert _of(cost, "H", "drain", "dram") == (48, 48)
    # The row maxima, 3 x 2 bytes: equal in the 4 cores after their exchange, so one of them writes
    # them up; coming down each core gets its own copy, as the network of OB has no broadcast.
    assert _of(cost, "D", "drain", "gb") == (4 * 6, 4 * 6)
    assert _of(cost, "D", "fill", "gb") == (16 * 6, 16 * 6)
    assert cost.compulsory_bytes == 15 + 80 + 48
    assert cost.root_traffic_bytes == 15 + 80 + 48


def test_sizes_that_do_not_divide_move_no_padding():
    # N = 7 in 2 steps of 4: 4 and 3 columns. K = 5 in 2 steps of 3. M = 3 in 2 steps of 2.
    cost = _one(
        "fused-gemm-distsm",
        (3, 7, 5),
        M_gb_t=2,
        M_comp=2,
        N_core_t=2,
        N_comp=4,
        K_core_t=2,
        K_comp=3,
    )
    assert _of(cost, "A", "fill", "dram") == (15, 15)
    assert _of(cost, "B", "fill", "dram") == (35, 35)
    assert _of(cost, "H", "drain", "dram") == (21, 21)
    work = {e.operation: e.work for e in cost.engine_energy}
    assert work["gemm"] == 3 * 7 * 5
    assert work["exp"] == 3 * 7
    gemm = next(e for e in cost.engine_energy if e.operation == "gemm")
    assert gemm.energy_pj == pytest.approx(105 * 0.2296)
