"""Stalls of one temporal node: what of its moves the computing below does not hide.

The one idea: in step i of T, the moves that serve the next step (fills) or the last one (drains)
have a window as long as the step's child takes. A port that needs longer stalls the node by the
difference; ports of different memories, and the read and the write side of a duplex memory, work at
the same time, so the longest stall of a step counts. A tile used for r steps spreads its time over
them. Since demands change only where a tensor's first or last move lies, the sum over steps is a
sum over a few pieces, in closed form (docs/equations.md, 4.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxcomet.arith import Number, at_least_two, maximum, minimum, product, relu, select


@dataclass(frozen=True)
class Demand:
    """One move's use of a port.

    Attributes:
      port: key of the port.
      cycles_per_step: time of one move divided by the steps that reuse the tile.
      fill: serves the next step (else it serves the last one).
      reuse: steps per move.
      taken: cycles of the window in which the port is used by others.
      first_only: stalls in the first step only (convention ``read_stalls``).
    """

    port: str
    cycles_per_step: Number
    fill: bool
    reuse: Number
    taken: Number
    first_only: bool


def _is_one(x: Number) -> bool:
    return isinstance(x, float) and x == 1.0


def step_stall(demands: Sequence[tuple[Demand, Number]], window: Number) -> Number:
    """Stall of one step: the longest over ports of relu(demand - window).

    Weights switch demands on and off.
    """
    ports: dict[str, tuple[Number, Number]] = {}
    for demand, weight in demands:
        cycles = product([demand.cycles_per_step, weight])
        total, taken = ports.get(demand.port, (0.0, 0.0))
        total = cycles if isinstance(total, float) and total == 0.0 else total + cycles
        if not (isinstance(demand.taken, float) and demand.taken == 0.0):
            taken = maximum(taken, product([demand.taken, weight]))
        ports[demand.port] = (total, taken)
    stalls = [
        relu(
            total - (window if isinstance(taken, float) and taken == 0.0 else relu(window - taken))
        )
        for total, taken in ports.values()
    ]
    return maximum(*stalls) if stalls else 0.0


def stall_cycles(
    demands: Sequence[Demand], steps: Number, first_window: Number, later_window: Number
) -> Number:
    """Stalls over all steps.

    Args:
      demands: the moves that may hide.
      steps: T, whole, >= 1.
      first_window: cycles of the child in step 0.
      later_window: cycles of the child in each later step.

    Returns:
      Cycles; 0 where T = 1.
    """
    demands = [d for d in demands if d.reuse is not steps]
    if not demands or _is_one(steps):
        return 0.0
    if all(_is_one(d.reuse) for d in demands):
        fills = [(d, 1.0) for d in demands if d.fill]
        drains = [(d, 1.0) for d in demands if not d.fill]
        steady = [x for x in fills if not x[0].first_only] + drains
        two = at_least_two(steps)
        ends = step_stall(fills, first_window) + step_stall(drains, later_window)
        return two * ends + relu(steps - 2.0) * step_stall(steady, later_window)
    return _stall_by_pieces(demands, steps, first_window, later_window)


def _stall_by_pieces(
    demands: Sequence[Demand], steps: Number, first_window: Number, later_window: Number
) -> Number:
    starts: list[Number] = []
    stops: list[Number] = []
    points: list[Number] = []
    for d in demands:
        if d.fill:
            stop = steps - d.reuse
            stop = minimum(stop, 1.0) if d.first_only else stop
            starts.append(0.0)
            stops.append(stop)
            points.append(stop)
        else:
            starts.append(d.reuse)
            stops.append(steps)
            points.append(d.reuse)
    if first_window is not later_window:
        points.append(1.0)
    ordered = _sorted(_distinct(points))
    total: Number = 0.0
    begin: Number = 0.0
    for index, end in enumerate([*ordered, steps]):
        active = [
            (d, select((begin >= start) & (begin < stop), 1.0, 0.0))
            for d, start, stop in zip(demands, starts, stops, strict=True)
        ]
        window = first_window if index == 0 or first_window is later_window else later_window
        if index > 0 and first_window is not later_window:
            window = select(begin < 1.0, first_window, later_window)
        total = total + (end - begin) * step_stall(active, window)
        begin = end
    return total


def _distinct(points: Sequence[Number]) -> list[Number]:
    kept: list[Number] = []
    for p in points:
        if not any(
            p is q or (isinstance(p, float) and isinstance(q, float) and p == q) for q in kept
        ):
            kept.append(p)
    return kept


def _sorted(points: Sequence[Number]) -> list[Number]:
    """Ascending, by a network of min and max (few points, no sort in the compiled program)."""
    ordered = list(points)
    for end in range(len(ordered) - 1, 0, -1):
        for i in range(end):
            low, high = minimum(ordered[i], ordered[i + 1]), maximum(ordered[i], ordered[i + 1])
            ordered[i], ordered[i + 1] = low, high
    return ordered
