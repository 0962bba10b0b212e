"""Times of a single move, engine call and collective: docs/equations.md, 1 to 3, written out again.

One idea: what the walk over the steps (`cycle_walk`) takes as given is a function of a few whole
numbers and of the machine. Default conventions, `Fraction` throughout, nothing of `jaxcomet.cost`.
"""

from fractions import Fraction
from math import ceil, isinf, prod

from jaxcomet.hardware import Machine, MatrixEngine, VectorEngine
from jaxcomet.workload import CompoundOp, Operation


def number(x: object) -> Fraction:
    """A machine's number, exactly."""
    return Fraction(float(x))  # pyright: ignore[reportArgumentType]


def over(amount: Fraction, rate: object) -> Fraction:
    """Amount / rate; nothing where the rate has no limit."""
    value = float(rate)  # pyright: ignore[reportArgumentType]
    return Fraction(0) if isinf(value) else amount / Fraction(value)


def slowest(*rates: object) -> float:
    """The smallest rate."""
    return min(float(r) for r in rates)  # pyright: ignore[reportArgumentType]


def engine_of(machine: Machine, operation: Operation) -> MatrixEngine | VectorEngine:
    """The engine that runs an operation."""
    kind = MatrixEngine if operation.kind == "contract" else VectorEngine
    return next(e for _, e in sorted(machine.engines.items()) if isinstance(e, kind))


# -- moves (1) ---------------------------------------------------------------------------------


def engine_move(
    machine: Machine, memory: str, engine: str, tile_bytes: Fraction
) -> tuple[Fraction, Fraction]:
    """(cycles between a buffer and an engine (1.1e), hop latency of the port)."""
    port = machine.engines[engine].ports[memory]
    from_memory = machine.memories[memory].child_bandwidth_bytes_per_cycle
    rate = slowest(from_memory, port.bandwidth_bytes_per_cycle)
    return Fraction(ceil(over(tile_bytes, rate))), number(port.hop_latency_cycles)


def memory_move(
    machine: Machine,
    parent_name: str,
    child_name: str,
    tile_bytes: Fraction,
    *,
    drain: bool,
    equal: bool,
    distinct: int,
    along_x: int,
    along_y: int,
) -> Fraction:
    """Cycles between a memory and its children, (1.1) to (1.3).

    Args:
      machine: the machine.
      parent_name: memory above.
      child_name: memory below.
      tile_bytes: of the tile of one child.
      drain: upwards.
      equal: an all-reduce has made the children's results equal.
      distinct: different tiles among the children.
      along_x: children along one edge of the mesh.
      along_y: along the other.
    """
    parent, child = machine.memories[parent_name], machine.memories[child_name]
    network = child.network
    assert network is not None
    one_copy = (network.reduction or equal) if drain else network.broadcast
    copies = distinct if one_copy else along_x * along_y
    port_rate = float(network.port_bandwidth_bytes_per_cycle)
    ports = max(1.0, min(float(distinct), float(network.num_ports)))
    at_parent = slowest(parent.child_bandwidth_bytes_per_cycle, ports * port_rate)
    at_child = slowest(child.parent_bandwidth_bytes_per_cycle, port_rate)
    memory = max(ceil(over(copies * tile_bytes, at_parent)), ceil(over(tile_bytes, at_child)))
    hops = (along_x - 1) + (along_y - 1)
    words = over(tile_bytes * 8 * copies, network.channel_width_bits) if hops else Fraction(0)
    wait = number(network.hop_latency_cycles) + number(network.queuing_delay_cycles)
    return Fraction(max(memory, ceil(hops * wait + words)))


# -- engines (2) -------------------------------------------------------------------------------


def call(
    workload: CompoundOp, machine: Machine, operation: Operation, tile: dict[str, int]
) -> Fraction:
    """Cycles of one engine call of so many points along each dimension."""
    engine = engine_of(machine, operation)
    if isinstance(engine, VectorEngine):
        one = number(engine.ops[operation.function].cycles)
        if operation.kind == "reduce" and engine.row_reduction == "tree":
            one *= (int(engine.lanes) - 1).bit_length()
        return one * ceil(over(Fraction(prod(tile.values())), engine.lanes))
    left, right = (set(workload.tensor(t).dims) for t in operation.inputs)
    out = set(workload.tensor(operation.output).dims)
    streamed = prod(tile[d] for d in tile if d in left & out)
    contracted = Fraction(prod(tile[d] for d in tile if d not in out))
    columns = Fraction(prod(tile[d] for d in tile if d in (right - left) & out))
    rows, width = number(engine.array_rows), number(engine.array_columns)
    folds = ceil(contracted / (rows * number(engine.grid_rows)))
    folds *= ceil(columns / (width * number(engine.grid_columns)))
    if engine.array == "broadcast":
        return Fraction(streamed * folds)
    return (rows + streamed + rows + width - 2) * folds


def once_a_run(machine: Machine, operation: Operation, calls: int, results: int) -> Fraction:
    """Filling the vector engine's pipeline, and combining what belongs to the same row, (2.2b)."""
    engine = engine_of(machine, operation)
    if not isinstance(engine, VectorEngine):
        return Fraction(0)
    fill = number(engine.pipeline_stages) - 1
    # where each lane has rows of its own, it goes on with the partial result that it holds
    if operation.kind == "reduce" and engine.row_reduction == "tree":
        return fill + (calls - results) * number(engine.ops[operation.function].cycles)
    return fill


MESH_KINDS = (
    "gather",
    "scatter",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "permute",
)
"""Those that `collective` prices. In all-to-all it counts who sends to whom."""

# -- collectives (3) ---------------------------------------------------------------------------


def collective(
    machine: Machine,
    memory_name: str,
    kind: str,
    function: str | None,
    *,
    x: int,
    y: int,
    elements: int,
    bits: Fraction,
) -> Fraction:
    """Cycles of a collective by the algorithm ``mesh`` between x by y participants, (3.0) to (3.3).

    Args:
      machine: the machine.
      memory_name: where each participant holds its part.
      kind: one of `MESH_KINDS`.
      function: what combines; None where nothing is combined.
      x: participants along one edge of the mesh.
      y: along the other.
      elements: of one part.
      bits: of an element on the way.
    """
    memory = machine.memories[memory_name]
    network = memory.network
    assert network is not None
    p, hops = x * y, (x - 1) + (y - 1)
    volume = elements * bits / 8
    link, port = memory.link_bandwidth_bytes_per_cycle, network.port_bandwidth_bytes_per_cycle
    wait = number(network.hop_latency_cycles) + number(network.queuing_delay_cycles)
    if p == 1:
        return Fraction(0)
    one = slowest(link, port)
    ports = float(network.num_ports) * float(port)
    into = slowest(link, ports, memory.child_bandwidth_bytes_per_cycle)
    q = Fraction(2 * (p - 1), p)
    copied = network.broadcast if kind == "broadcast" else network.reduction
    k = 1 if copied else p - 1
    # parts at the memories, parts through the busiest channel, times across the mesh, combinations
    at_memory, channel, across, combined = {
        "gather": (max(over(volume, one), over((p - 1) * volume, into)), p - 1, 1, 0),
        "scatter": (max(over(volume, one), over((p - 1) * volume, into)), p - 1, 1, 0),
        "broadcast": (max(over(k * volume, into), over(volume, one)), k, 1, 0),
        "reduce": (max(over(volume, one), over(k * volume, into)), k, 1, k),
        "all_gather": (over(2 * (p - 1) * volume, one), p - 1, 2, 0),
        "reduce_scatter": (over(q * volume, one), q / 2, 2, q / 2),
        "all_reduce": (over(2 * q * volume, one), q, 2, q / 2),
        "permute": (over(2 * volume, one), 1, 1, 0),
    }[kind]
    if kind == "permute":
        # a ring of neighbours: in an even mesh, or two; else some hand on over one between
        hops = 1 if p == 2 or (min(x, y) > 1 and p % 2 == 0) else 2
    words = over(channel * volume * 8, network.channel_width_bits)
    time = Fraction(max(ceil(at_memory), ceil(across * hops * wait + words)))
    if combined:
        engine = next(e for _, e in sorted(machine.engines.items()) if isinstance(e, VectorEngine))
        assert function is not None
        cycles = number(engine.ops[function].cycles)
        time += ceil(over(combined * elements * cycles, engine.lanes))
    return time
