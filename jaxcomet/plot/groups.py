"""The groups that figures and tables sum a latency into: what computes, what waits, what exchanges.

The groups sum to the latency, since each part of a `Cost` falls into exactly one.
"""

from jaxcomet.cost import Cost
from jaxcomet.cost.result import LatencyPart
from jaxcomet.hardware.machine import Machine, MatrixEngine

GROUPS = ("matrix compute", "vector compute", "CS", "OS", "CF", "collectives")
"""Names of the groups; CS, OS and CF are compulsory stalls, optional stalls and conflicts."""

MEANING = {
    "CS": "CS, compulsory stalls",
    "OS": "OS, optional stalls",
    "CF": "CF, conflicts",
}
"""Groups whose name needs a word."""


def _group(part: LatencyPart, machine: Machine) -> str:
    if part.kind == "compute":
        is_matrix = isinstance(machine.engines[part.where], MatrixEngine)
        return "matrix compute" if is_matrix else "vector compute"
    return "collectives" if part.kind == "collective" else part.kind


def _where(part: LatencyPart) -> str:
    match part.kind:
        case "compute":
            return part.what
        case "collective":
            return f"{part.where} {part.what}"
        case _:
            return part.where


def latency_groups(cost: Cost, machine: Machine) -> dict[str, float]:
    """Cycles per group of `GROUPS`, of a single mapping; they sum to its latency."""
    found: dict[str, float] = dict.fromkeys(GROUPS, 0.0)
    for part in cost.latency_parts:
        group = _group(part, machine)
        found[group] = found.get(group, 0.0) + float(part.cycles)  # pyright: ignore[reportArgumentType]
    return found


def latency_details(cost: Cost, machine: Machine) -> dict[tuple[str, str], float]:
    """Cycles per group and place: operation, level, or collective with its tensor."""
    found: dict[tuple[str, str], float] = {}
    for part in cost.latency_parts:
        key = (_group(part, machine), _where(part))
        found[key] = found.get(key, 0.0) + float(part.cycles)  # pyright: ignore[reportArgumentType]
    return found
