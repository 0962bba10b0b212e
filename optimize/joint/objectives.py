"""What a co-design minimises: weighted products of latency, energy and area, within budgets.

The one idea: every objective is three exponents, so that a front (many weightings) or a ladder
(many budgets) is one batch of one program, and what one target finds serves the others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxcomet.optimize.joint.design import DesignError, DesignSpace
from jaxcomet.optimize.joint.scoring import Across, Aim

METRICS = ("latency", "energy", "area")

NAMED: Mapping[str, Mapping[str, float]] = {
    "latency": {"latency": 1.0},
    "energy": {"energy": 1.0},
    "edp": {"latency": 1.0, "energy": 1.0},
    "edap": {"latency": 1.0, "energy": 1.0, "area": 1.0},
}
"""Objectives by name; ``edp`` and ``edap`` are products of energy, delay and area."""

Weighted = Mapping[str, float]
"""Exponents of latency, energy and area; those left out are 0."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """An objective with budgets.

    Attributes:
      name: as in tables.
      exponents: of latency, energy and area.
      limits: of the budgets of the space, in their units.
    """

    name: str
    exponents: tuple[float, float, float]
    limits: tuple[float, ...]


def pareto(count: int) -> tuple[Weighted, ...]:
    """Weightings of latency, energy and area that spread over all of them.

    The three alone, all alike, then points of a low-discrepancy sequence (R2, after the plastic
    number) folded into the triangle; every weight but the first three's is at least 1/50.

    Args:
      count: how many, > 0.

    Example:
      >>> [sorted(w.items()) for w in pareto(2)]
      [[('latency', 1.0)], [('energy', 1.0)]]
    """
    found: list[Weighted] = [{"latency": 1.0}, {"energy": 1.0}, {"area": 1.0}]
    found.append({m: 1 / 3 for m in METRICS})
    plastic = 1.324717957244746
    for k in range(1, max(0, count - 4) + 1):
        x, y = (0.5 + k / plastic) % 1.0, (0.5 + k / plastic**2) % 1.0
        if x + y > 1.0:
            x, y = 1.0 - x, 1.0 - y
        shares = (x, y, 1.0 - x - y)
        found.append({m: 0.02 + 0.94 * share for m, share in zip(METRICS, shares, strict=True)})
    return tuple(found[:count])


def make_targets(
    space: DesignSpace,
    objective: str | Weighted | Sequence[str | Weighted],
    budgets: Mapping[str, float] | Sequence[Mapping[str, float]] | None,
) -> tuple[Target, ...]:
    """Every objective with every set of budgets.

    Args:
      space: has the budgets and their limits.
      objective: names of `NAMED`, or exponents.
      budgets: other limits of budgets of the space; those left out stay as they are.

    Raises:
      DesignError: an unknown objective, metric or budget, or a number that cannot be.
    """
    several = [objective] if isinstance(objective, str | Mapping) else list(objective)
    ladder = [budgets] if isinstance(budgets, Mapping) else list(budgets or [{}])
    if not several or not ladder:
        raise DesignError("objective, budgets: got none; expected at least one of each")
    found = []
    for one in several:
        name, exponents = _exponents(one)
        for limits in ladder:
            found.append(
                Target(
                    name=", ".join([name, *(f"{b} {v:g}" for b, v in limits.items())]),
                    exponents=exponents,
                    limits=_limits(space, limits),
                )
            )
    return tuple(found)


def _exponents(one: str | Weighted) -> tuple[str, tuple[float, float, float]]:
    if isinstance(one, str):
        if one not in NAMED:
            raise DesignError(
                f"objective: got {one!r}; expected one of {', '.join(NAMED)}, or exponents of "
                f"{', '.join(METRICS)}"
            )
        name, given = one, NAMED[one]
    else:
        name, given = " ".join(m if v == 1.0 else f"{m}^{v:.3g}" for m, v in one.items()), one
    wrong = [m for m in given if m not in METRICS]
    if wrong:
        raise DesignError(f"objective: got {wrong[0]!r}; expected {', '.join(METRICS)}")
    values = tuple(float(given.get(m, 0.0)) for m in METRICS)
    if not all(math.isfinite(v) and v >= 0 for v in values) or sum(values) == 0:
        raise DesignError(
            f"objective: got exponents {dict(given)}; expected numbers >= 0, one of them above 0"
        )
    return name, (values[0], values[1], values[2])


def _limits(space: DesignSpace, given: Mapping[str, float]) -> tuple[float, ...]:
    known = [b.name for b in space.budgets]
    for name, value in given.items():
        if name not in known:
            raise DesignError(
                f"budgets: got {name!r}; space {space.name} has {', '.join(known) or 'none'}; add "
                "it to the space"
            )
        if not (math.isfinite(value) and value > 0):
            raise DesignError(f"budgets: got {name} {value:g}; expected a number > 0")
    return tuple(float(given.get(b.name, b.limit)) for b in space.budgets)


def aim_of(targets: Sequence[Target], across: Across) -> Aim:
    """Targets as arrays, one row for each."""
    return Aim(
        exponents=np.array([t.exponents for t in targets]),
        limits=np.array([t.limits for t in targets]).reshape(len(targets), -1),
        across=across,
    )
