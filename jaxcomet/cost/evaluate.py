"""The entry to the cost model: `evaluate(workload, mapping, machine) -> Cost`."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomet._compat import enable_x64, is_traced
from jaxcomet.arith import Number, maximum, per
from jaxcomet.cost.conventions import DEFAULT, Conventions
from jaxcomet.cost.energy import Traffic, engine_energy, traffic
from jaxcomet.cost.latency import latency
from jaxcomet.cost.legality import check, illegal, refuse
from jaxcomet.cost.occupancy import occupancy, spatial_use
from jaxcomet.cost.placement import Placement
from jaxcomet.cost.result import Cost, SpatialUse, parts_of
from jaxcomet.hardware.machine import Machine, MatrixEngine
from jaxcomet.mapping import Mapping
from jaxcomet.rewrite import rewritten
from jaxcomet.workload import CompoundOp


def cost_of(
    workload: CompoundOp, mapping: Mapping, machine: Machine, conventions: Conventions = DEFAULT
) -> Cost:
    """The cost as a pure function of arrays, to be traced.

    Works in the precision of the surrounding program. `evaluate` is the same in float64.
    """
    workload = rewritten(workload, mapping.rewrites)
    placement = Placement(workload, mapping, machine, conventions)
    time = latency(placement)
    io_bytes = [
        placement.workload.elements(t.name) * (t.bits / 8.0)
        for t in workload.tensors
        if not workload.is_intermediate(t.name)
    ]
    matrix = [s for s in placement.sites if s.operation.kind == "contract"]
    work: Any = sum((workload.needed_points(s.operation) for s in matrix), start=0.0)
    capacity: Any = 1.0
    for s in matrix:
        engine = placement.engine(s.operation)
        assert isinstance(engine, MatrixEngine)
        macs = engine.array_rows * engine.array_columns * engine.grid_rows * engine.grid_columns
        capacity = maximum(capacity, macs * placement.units(s.above) * time.cycles)
    moved = tuple(t for m, mt in time.moves for t in traffic(placement, m, mt))
    memories = sorted(
        machine.memories.values(), key=lambda m: (machine.level_index(m.level), m.name)
    )
    return Cost(
        workload=workload.name,
        strategy=mapping.strategy,
        machine=machine.name,
        conventions=conventions,
        latency_cycles=time.cycles,
        latency_parts=parts_of(time.parts),
        traffic=moved,
        engine_energy=tuple(engine_energy(placement, s) for s in placement.sites),
        collectives=time.collectives,
        occupancy=tuple(occupancy(placement, m.name) for m in memories),
        spatial=tuple(
            SpatialUse(level=n, used_x=v[0], used_y=v[1], mesh_x=v[2], mesh_y=v[3])
            for n, v in spatial_use(placement).items()
        ),
        nodes=time.nodes,
        illegal=illegal(placement),
        root_bound_cycles=_root_bound(machine, moved),
        compulsory_bytes=sum(io_bytes[1:], start=io_bytes[0]),
        matrix_work=work,
        matrix_capacity=capacity,
    )


def _root_bound(machine: Machine, moved: tuple[Traffic, ...]) -> Number:
    """Cycles of the outermost memory's ports: reads and writes one after the other on a bus."""
    root = machine.root
    sums: dict[str, Number] = {"fill": 0.0, "drain": 0.0}
    for t in moved:
        if t.parent == root.name:
            sums[t.direction] = sums[t.direction] + t.parent_bytes
    total = maximum(*sums.values()) if root.duplex else sums["fill"] + sums["drain"]
    return per(total, root.child_bandwidth_bytes_per_cycle)


class Totals(NamedTuple):
    """Totals of a batch.

    Attributes:
      latency_cycles: latency of one run.
      energy_pj: energy of one run.
      pressure: see `Cost.pressure`; a mapping is feasible up to 1.
    """

    latency_cycles: Any
    energy_pj: Any
    pressure: Any


def totals_of(
    workload: CompoundOp, mapping: Mapping, machine: Machine, conventions: Conventions = DEFAULT
) -> Totals:
    """The totals as a pure function of arrays, to be traced; see `cost_of`."""
    cost = cost_of(workload, mapping, machine, conventions)
    return Totals(*jnp.broadcast_arrays(cost.latency_cycles, cost.energy_pj, cost.pressure))


_cost = jax.jit(cost_of, static_argnums=3)
_totals = jax.jit(totals_of, static_argnums=3)


def _check(
    workload: CompoundOp, mapping: Mapping, machine: Machine, conventions: Conventions
) -> None:
    """Refuses what cannot be executed; see `placement.check` and `legality`."""
    form = rewritten(workload, mapping.rewrites)
    placement = Placement(form, mapping, machine, conventions)
    check(placement)
    refuse(placement, illegal(placement))


def _traced(*trees: Any) -> bool:
    return any(is_traced(x) for x in jax.tree.leaves(trees))


def _concrete(
    workload: CompoundOp, mapping: Mapping, machine: Machine
) -> tuple[CompoundOp, Mapping, Machine]:
    """Leaves as float64 arrays and no machine name: a call with other numbers compiles nothing."""

    def leaf(x: Any) -> Any:
        ready = isinstance(x, jax.Array) and x.dtype == np.float64
        return x if ready else np.asarray(x, np.float64)

    nameless = dataclasses.replace(machine, name="")
    return jax.tree.map(leaf, (workload, mapping, nameless))


def evaluate(
    workload: CompoundOp, mapping: Mapping, machine: Machine, *, conventions: Conventions = DEFAULT
) -> Cost:
    """Prices a mapping, or a batch of them, exactly.

    Leaves of the three arguments broadcast: mappings of shape (n,) on machines of shape (b, 1) give
    (b, n). With concrete numbers the work is done in float64, where whole cycles are exact up to
    2**50. Inside `jax.jit`, `jax.vmap` or `jax.grad` the surrounding precision holds: set
    ``jax_enable_x64`` there for exact cycles (float32 is off by about 3e-7, and a single move
    of more than 2 MiB by a cycle).

    Args:
      workload: what is computed.
      mapping: how.
      machine: where.
      conventions: rules of accounting.

    Returns:
      The cost with its breakdowns.

    Example:
      >>> from jaxcomet import gemm_softmax, hardware, strategies
      >>> machine = hardware.load("edge")
      >>> op = gemm_softmax(1, 1024, 128)
      >>> factors = {"N_comp": 1024, "K_comp": 128}  # one core of one cluster does it all
      >>> mapping = strategies.build(op, machine, "fused-gemm-distsm", factors)
      >>> cost = evaluate(op, mapping, machine)
      >>> cost.feasible
      False
      >>> print(cost.reasons()[0].split(";")[0])
      wb: needs 131,072 bytes, has 32,768
    """
    _check(workload, mapping, machine, conventions)
    if _traced(workload, mapping, machine):
        return cost_of(workload, mapping, machine, conventions)
    if all(np.ndim(x) == 0 for x in jax.tree.leaves((workload, mapping, machine))):
        # one mapping: Python floats are float64 already, and there is nothing to compile
        floats = jax.tree.map(float, (workload, mapping, machine))
        return cost_of(floats[0], floats[1], floats[2], conventions)
    with enable_x64(True):
        cost = _cost(*_concrete(workload, mapping, machine), conventions)
    # NumPy keeps float64 outside the context, where jax would not
    return dataclasses.replace(jax.device_get(cost), machine=machine.name)


def evaluate_totals(
    workload: CompoundOp, mapping: Mapping, machine: Machine, *, conventions: Conventions = DEFAULT
) -> Totals:
    """The totals alone, for large batches; broadcasts and computes like `evaluate`.

    Args:
      workload: what is computed.
      mapping: how.
      machine: where.
      conventions: rules of accounting.

    Returns:
      Arrays of one shape.
    """
    _check(workload, mapping, machine, conventions)
    if _traced(workload, mapping, machine):
        return totals_of(workload, mapping, machine, conventions)
    with enable_x64(True):
        totals = _totals(*_concrete(workload, mapping, machine), conventions)
    return jax.device_get(totals)
