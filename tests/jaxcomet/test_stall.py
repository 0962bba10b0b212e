"""Stalls in closed form against a walk over every step."""

import numpy as np
import pytest

from jaxcomet._compat import enable_x64
from jaxcomet.cost.stall import Demand, stall_cycles


def _step_by_step(
    demands: list[Demand], steps: int, first_window: float, later_window: float
) -> float:
    """The sum over steps of the longest stall of any port, from the words of the docstrings."""
    total = 0.0
    for step in range(steps):
        window = first_window if step == 0 else later_window
        longest = 0.0
        for port in {d.port for d in demands}:
            need, taken = 0.0, 0.0
            for d in demands:
                if d.port != port:
                    continue
                if d.fill:
                    active = step < steps - d.reuse and (step == 0 or not d.first_only)
                else:
                    active = step >= d.reuse
                if active:
                    need += float(d.cycles_per_step)
                    taken = max(taken, float(d.taken))
            longest = max(longest, float(need - max(window - taken, 0.0)))
        total += longest
    return total


def _draw(rng: np.random.Generator, steps: int, *, reuse: bool) -> list[Demand]:
    divisors = [d for d in range(1, steps + 1) if steps % d == 0]
    return [
        Demand(
            port=str(rng.choice(["read", "write", "other"])),
            cycles_per_step=float(rng.integers(0, 40)),
            fill=bool(rng.integers(2)),
            reuse=float(rng.choice(divisors)) if reuse else 1.0,
            taken=float(rng.choice([0, 0, 5, 50])),
            first_only=bool(rng.integers(4) == 0),
        )
        for _ in range(int(rng.integers(1, 5)))
    ]


@pytest.mark.parametrize("reuse", [False, True], ids=["every-step", "reused"])
@pytest.mark.parametrize("arrays", [False, True], ids=["floats", "arrays"])
def test_closed_form_equals_the_sum_over_steps(reuse: bool, arrays: bool):
    rng = np.random.default_rng(7)
    stalled = 0
    for _ in range(60 if arrays else 600):
        steps = int(rng.choice([1, 2, 3, 4, 6, 12, 24]))
        demands = _draw(rng, steps, reuse=reuse)
        # the later window is at most as long as the first: a resident tile only saves time
        first = float(rng.integers(0, 60))
        later = first if rng.integers(2) else float(rng.integers(0, int(first) + 1))
        expected = _step_by_step(demands, steps, first, later)
        count = np.full(2, float(steps)) if arrays else float(steps)
        with enable_x64(True):
            found = np.asarray(stall_cycles(demands, count, first, later))
        assert np.all(found == expected)  # sums and products of whole numbers
        stalled += expected > 0
    assert stalled > 20  # the sample does stall
