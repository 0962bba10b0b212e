"""Results as plain data: what a table, a file or a figure is made of.

The one idea: a result is written once, as one dictionary of numbers with their units in the names;
rows of tables and figures are made from it, so that they can be made again from a file.
"""

from typing import Any

from jaxcomet.optimize.joint.outcome import CodesignResult, DesignPoint

_METRICS = ("latency_cycles", "energy_pj", "latency_ratio", "energy_ratio")


def as_dict(result: CodesignResult) -> dict[str, Any]:
    """A result as plain data (numbers, texts, lists and dictionaries)."""
    return {
        "workloads": list(result.workloads),
        "points": [_point(result, p) for p in result.points],
        "start": _point(result, result.start) | {"proven": result.start_proven},
        "front": [
            _metrics(result, p.latency, p.energy) | {"area_mm2": p.area_mm2, "numbers": p.texts}
            for p in result.front
        ],
        "hypervolume": result.hypervolume,
        "method": result.method,
        "proven": result.proven,
        "stopped": result.stopped,
        "evaluated": result.evaluated,
        "mappings_priced": result.lanes,
        "mappings_priced_for_start": result.start_lanes,
        "history": [[at, list(values)] for at, values in result.history],
        "seeds": [{"target": t, "improvement": g} for t, g in result.seeds],
        "settings": result.settings,
    }


def _metrics(result: CodesignResult, latency: float, energy: float) -> dict[str, float]:
    """Latency and energy over workloads; with ``worst`` they are ratios to the start's."""
    if result.settings["across"] == "worst":
        return {"latency_ratio": latency, "energy_ratio": energy}
    return {"latency_cycles": latency, "energy_pj": energy}


def latency_and_energy(point: dict[str, Any]) -> tuple[float, float]:
    """Latency and energy of a point of a record: cycles and pJ, or ratios to the start's."""
    if "latency_ratio" in point:
        return point["latency_ratio"], point["energy_ratio"]
    return point["latency_cycles"], point["energy_pj"]


def _point(result: CodesignResult, point: DesignPoint) -> dict[str, Any]:
    return {
        "target": point.target,
        "improvement": point.improvement,
        **_metrics(result, point.latency, point.energy),
        "area_mm2": point.area_mm2,
        "numbers": point.texts,
        "numbers_base": point.numbers,
        "budgets": {
            u.budget: {"used": u.used, "limit": u.limit, "unit": u.unit, "binds": u.binds}
            for u in point.uses
        },
        "at_bounds": list(point.at_bounds),
        "remarks": list(point.remarks),
        "workloads": {
            name: {
                "strategy": mapping.strategy,
                "factors": {f: float(v) for f, v in mapping.factors.items()},  # pyright: ignore[reportArgumentType]
                "latency_cycles": float(cost.latency_cycles),  # pyright: ignore[reportArgumentType]
                "energy_pj": float(cost.energy_pj),  # pyright: ignore[reportArgumentType]
                "fits": bool(cost.pressure <= 1.0),
            }
            for name, mapping, cost in zip(
                result.workloads, point.mappings, point.costs, strict=True
            )
        },
    }


def rows(task: str, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table of a sweep: one for each target, then one for each seed.

    A task without a machine that fits has one row, which says what is missing.

    Args:
      task: its name.
      record: of `as_dict`.
    """
    settings = record["settings"]
    if "infeasible" in record:
        return [
            {
                "task": task,
                "kind": "infeasible",
                "space": settings["space"],
                "workloads": len(settings["workloads"]),
                "message": record["infeasible"],
            }
        ]
    common = {
        "task": task,
        "space": settings["space"],
        "workloads": len(record["workloads"]),
        "across": settings["across"],
        "method": record["method"],
        "key": settings["key"],
        "seeds": settings["seeds"],
        "steps": settings["steps"],
        "chains": settings["chains"],
        "space_digest": settings["space_digest"],
        "jaxcomet": settings["versions"]["jaxcomet"],
        "jax": settings["versions"]["jax"],
    }
    found = []
    for point in record["points"]:
        binding = [b for b, use in point["budgets"].items() if use["binds"]]
        found.append(
            common
            | {
                "kind": "best",
                "target": point["target"],
                "seed": None,
                "improvement": point["improvement"],
                **{name: point[name] for name in _METRICS if name in point},
                "area_mm2": point["area_mm2"],
                "binding": " ".join(binding),
                "stopped": record["stopped"],
                "proven": record["proven"],
                "evaluated": record["evaluated"],
                "hypervolume": record["hypervolume"],
                "numbers": point["numbers"],
            }
        )
    for number, seed in enumerate(record["seeds"]):
        found.append(
            common
            | {
                "kind": "seed",
                "target": seed["target"],
                "seed": number,
                "improvement": seed["improvement"],
            }
        )
    return found


COLUMNS = (
    "task",
    "kind",
    "target",
    "seed",
    "improvement",
    *_METRICS,
    "area_mm2",
    "binding",
    "stopped",
    "proven",
    "evaluated",
    "hypervolume",
    "numbers",
    "message",
    "space",
    "workloads",
    "across",
    "method",
    "key",
    "seeds",
    "steps",
    "chains",
    "space_digest",
    "jaxcomet",
    "jax",
)
"""Columns of the table, in order."""
