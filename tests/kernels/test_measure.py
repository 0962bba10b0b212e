"""Measuring in turns, with clocks that the test sets."""

import json

import jax.numpy as jnp
import pytest

from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.measure import (
    Quartiles,
    Sample,
    from_json,
    measure,
    summarize,
    to_json,
)


class Clocks:
    """Wall and CPU time that only pass when a variant says so."""

    def __init__(self):
        self.wall_s = 100.0
        self.cpu_s = 7.0
        self.order = []

    def variant(self, name, *durations):
        """A thunk whose runs take these (wall, cpu) seconds, one after the other."""
        remaining = iter(durations)

        def run():
            wall, cpu = next(remaining)
            self.wall_s += wall
            self.cpu_s += cpu
            self.order.append(name)
            return jnp.zeros(())

        return run

    def measure(self, variants, **options):
        return measure(
            variants,
            wall_clock=lambda: self.wall_s,
            cpu_clock=lambda: self.cpu_s,
            **options,
        )


def test_variants_run_in_turns_and_warmups_are_not_counted():
    clocks = Clocks()
    samples = clocks.measure(
        {
            "a": clocks.variant("a", (64.0, 64.0), (1.0, 2.0), (3.0, 4.0)),
            "b": clocks.variant("b", (64.0, 64.0), (0.5, 0.25), (0.125, 8.0)),
        },
        rounds=2,
        warmups=1,
    )
    assert clocks.order == ["a", "b"] * 3
    assert samples == {
        "a": [Sample(wall_s=1.0, cpu_s=2.0), Sample(wall_s=3.0, cpu_s=4.0)],
        "b": [Sample(wall_s=0.5, cpu_s=0.25), Sample(wall_s=0.125, cpu_s=8.0)],
    }


def test_the_budget_ends_after_whole_rounds():
    clocks = Clocks()
    seen = []
    runs = [(1.0, 1.0)] * 10
    samples = clocks.measure(
        {"a": clocks.variant("a", *runs), "b": clocks.variant("b", *runs)},
        rounds=8,
        warmups=1,
        budget_s=5.0,
        progress=lambda made, asked: seen.append((made, asked)),
    )
    # 2 s of warm-ups, then rounds that end at 4 s and at 6 s.
    assert [len(runs) for runs in samples.values()] == [2, 2]
    assert seen == [(1, 8), (2, 8)]


def test_a_spent_budget_still_makes_one_round():
    clocks = Clocks()
    samples = clocks.measure(
        {"a": clocks.variant("a", *[(9.0, 9.0)] * 3)}, rounds=3, warmups=1, budget_s=1.0
    )
    assert samples == {"a": [Sample(wall_s=9.0, cpu_s=9.0)]}


def test_ratios_compare_runs_of_the_same_round():
    samples = {
        "base": [Sample(wall_s=w, cpu_s=1.0) for w in (1.0, 2.0, 4.0, 8.0, 16.0)],
        "twice": [
            Sample(wall_s=2.0, cpu_s=5.0),
            Sample(wall_s=4.0, cpu_s=1.0),
            Sample(wall_s=8.0, cpu_s=2.0),
            Sample(wall_s=16.0, cpu_s=4.0),
            Sample(wall_s=32.0, cpu_s=3.0),
        ],
    }
    summary = summarize(samples, "base")
    assert summary["base"].wall_ratio == Quartiles(lower=1.0, median=1.0, upper=1.0)
    twice = summary["twice"]
    assert twice.wall_ratio == Quartiles(lower=2.0, median=2.0, upper=2.0)
    assert twice.cpu_ratio == Quartiles(lower=2.0, median=3.0, upper=4.0)
    assert (twice.median_wall_s, twice.min_wall_s, twice.min_wall_ratio) == (8.0, 2.0, 2.0)
    assert (twice.median_cpu_s, twice.min_cpu_s, twice.rounds) == (3.0, 1.0, 5)


def test_samples_survive_json():
    samples = {"a": [Sample(wall_s=0.1, cpu_s=0.2), Sample(wall_s=0.3, cpu_s=0.4)], "b": []}
    saved = json.loads(json.dumps(to_json(samples)))
    assert saved["a"] == {"wall_s": [0.1, 0.3], "cpu_s": [0.2, 0.4]}
    assert from_json(saved) == samples


def test_real_clocks_see_work():
    samples = measure({"work": lambda: sum(range(20_000))}, rounds=2, warmups=0)
    assert all(run.wall_s > 0.0 and run.cpu_s > 0.0 for run in samples["work"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: measure({}), "variants: got none"),
        (lambda: measure({"a": list}, rounds=0), "got rounds=0, warmups=2; expected at least 1"),
        (lambda: measure({"a": list}, warmups=-1), "warmups=-1; expected at least 1 and 0"),
        (lambda: summarize({"a": []}, "b"), "baseline: got 'b'; expected a"),
        (lambda: summarize({"a": []}, "a"), "samples: got {'a': 0}; expected as many of each"),
        (
            lambda: summarize({"a": [Sample(wall_s=1.0, cpu_s=0.0)]}, "a"),
            "'a' has a run of 0 seconds",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(call, message):
    with pytest.raises(KernelError, match=message):
        call()
