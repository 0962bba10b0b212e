"""The entry to the cost model: `evaluate(workload, mapping, machine) -> Cost`."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomet._compat import enable_x64, is_traced
from jaxcomet.arith import Number, maximum, on_host, per, relaxed
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

_Result = TypeVar("_Result")

HOST_BATCH = 1 << 17
"""Mappings up to which a batch runs on NumPy: about as many as it prices while one program would be
compiled. More go through one jitted program."""


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
    totals = (cost.latency_cycles, cost.energy_pj, cost.pressure)
    xp = np if on_host(*totals) else jnp
    return Totals(*xp.broadcast_arrays(*totals))


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


def _on_host(leaves: Sequence[Any]) -> bool:
    """Whether a batch is small enough for NumPy to finish before a program would be compiled."""
    size = math.prod(np.broadcast_shapes(*(np.shape(x) for x in leaves)))
    return size <= HOST_BATCH and not any(isinstance(x, jax.Array) for x in leaves)


def _as_host(x: Any) -> float | np.ndarray:
    return float(x) if np.ndim(x) == 0 else np.asarray(x, np.float64)


def _run_on_host(
    function: Callable[[CompoundOp, Mapping, Machine, Conventions], _Result],
    workload: CompoundOp,
    mapping: Mapping,
    machine: Machine,
    conventions: Conventions,
) -> _Result:
    host = jax.tree.map(_as_host, (workload, mapping, machine))
    with np.errstate(all="ignore"):  # `select` drops what was divided by zero
        return function(host[0], host[1], host[2], conventions)


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
    if _on_host(jax.tree.leaves((workload, mapping, machine))):
        # floats and NumPy arrays are float64 already, and there is nothing to compile
        return _run_on_host(cost_of, workload, mapping, machine, conventions)
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
    if _on_host(jax.tree.leaves((workload, mapping, machine))):
        return _run_on_host(totals_of, workload, mapping, machine, conventions)
    with enable_x64(True):
        totals = _totals(*_concrete(workload, mapping, machine), conventions)
    return jax.device_get(totals)


def evaluate_relaxed(
    workload: CompoundOp,
    mapping: Mapping,
    machine: Machine,
    *,
    temperature: Number = math.inf,
    conventions: Conventions = DEFAULT,
) -> Cost:
    """Prices a mapping whose factors need not be whole: the same equations, relaxed.

    The cost is continuous in every factor and machine number, and its derivatives say where to go
    between whole numbers, which is what a search by gradients needs. To be used inside `jax.jit`
    and `jax.grad`, in the precision that holds there. Legality is part of the pressure; nothing is
    refused.

    Args:
      workload: what is computed.
      mapping: how; factors >= 1 (``dataclasses.replace(mapping, factors=...)``).
      machine: where.
      temperature: width of the steps of rounding up and down (`jaxcomet.arith`). Without end: a
        quotient counts as itself, and as 1 where it is less. 0: exact on whole numbers, with steps
        between them and the same derivatives. In between: steps of that width; below 1e-6 equal to
        the exact cost on whole numbers to 1e-6 (docs/search.md), but steep.
      conventions: rules of accounting.

    Returns:
      The relaxed cost. It is no bound of the exact one in either direction.

    Example:
      >>> import dataclasses, jax
      >>> from jaxcomet import gemm_softmax, hardware, strategies
      >>> machine, op = hardware.load("edge"), gemm_softmax(1024, 1024, 256)
      >>> units = dict.fromkeys(("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"), 2)
      >>> factors = {"M_dram_t": 16, "M_comp": 64, "N_comp": 64, "K_comp": 256, **units}
      >>> mapping = strategies.build(op, machine, "fused-gemm-distsm", factors)
      >>> def latency(steps):
      ...     rows = {"M_dram_t": steps, "M_comp": 1024 / steps}
      ...     other = dataclasses.replace(mapping, factors={**mapping.factors, **rows})
      ...     return evaluate_relaxed(op, other, machine).latency_cycles
      >>> slope = jax.grad(latency)(15.5)  # fewer, larger steps over the rows are faster
      >>> bool(slope > 0)
      True
    """
    with relaxed(temperature):
        return cost_of(workload, mapping, machine, conventions)
