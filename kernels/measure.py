"""Times of several variants of a computation, measured in turns.

The one idea: on a shared machine the load changes from second to second, so variants are compared
within one round, each run once in it, and a ratio is that of two neighbours in time. Process CPU
time (of all threads) hardly feels other processes; the smallest wall time does least.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from jaxcomet.kernels.errors import KernelError, one_of

Thunk = Callable[[], object]
"""A call of one variant, already compiled; its arrays are waited for."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One run.

    Attributes:
      wall_s: seconds on the clock until the result was there.
      cpu_s: seconds of the processor, in all threads of this process.
    """

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Quartiles:
    """Median, and the values that a quarter of the samples lie below and above."""

    lower: float
    median: float
    upper: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The samples of one variant in numbers.

    Attributes:
      rounds: the number of samples.
      median_wall_s: median of the wall times.
      min_wall_s: the smallest wall time.
      median_cpu_s: median of the CPU times.
      min_cpu_s: the smallest CPU time.
      wall_ratio: quartiles over the rounds of its wall time over the baseline's in the same round.
      cpu_ratio: the same of the CPU times.
      min_wall_ratio: its smallest wall time over the baseline's smallest.
    """

    rounds: int
    median_wall_s: float
    min_wall_s: float
    median_cpu_s: float
    min_cpu_s: float
    wall_ratio: Quartiles
    cpu_ratio: Quartiles
    min_wall_ratio: float


def measure(
    variants: Mapping[str, Thunk],
    *,
    rounds: int = 10,
    warmups: int = 2,
    budget_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    wall_clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
) -> dict[str, list[Sample]]:
    """Runs all variants in turns and takes the time of each run.

    Args:
      variants: what to call by name; the order is that of the runs within a round.
      rounds: how often each is run and measured, at least 1.
      warmups: how often each is run before, such as for compilation.
      budget_s: no further round begins after so many seconds, warm-ups included; one round is
        always made, and a round is always finished. None is no limit.
      progress: called after each round with the rounds made and those asked for.
      wall_clock: seconds on the clock.
      cpu_clock: seconds of the processor.

    Returns:
      The samples of each variant, all of the same number, in the order of the rounds.

    Raises:
      KernelError: no variants, fewer than 1 round or 0 warm-ups.

    Example:
      >>> samples = measure({"sum": lambda: sum(range(100))}, rounds=3, warmups=0)
      >>> len(samples["sum"])
      3
    """
    if not variants:
        raise KernelError("measure: variants: got none; expected at least one, as {name: thunk}")
    if rounds < 1 or warmups < 0:
        raise KernelError(
            f"measure: got rounds={rounds}, warmups={warmups}; expected at least 1 and 0"
        )
    begun = wall_clock()
    for _ in range(warmups):
        for thunk in variants.values():
            jax.block_until_ready(thunk())
    samples: dict[str, list[Sample]] = {name: [] for name in variants}
    for made in range(rounds):
        if made and budget_s is not None and wall_clock() - begun >= budget_s:
            break
        for name, thunk in variants.items():
            wall, cpu = wall_clock(), cpu_clock()
            jax.block_until_ready(thunk())
            samples[name].append(Sample(wall_s=wall_clock() - wall, cpu_s=cpu_clock() - cpu))
        if progress is not None:
            progress(made + 1, rounds)
    return samples


def summarize(samples: Mapping[str, Sequence[Sample]], baseline: str) -> dict[str, Summary]:
    """Medians, minima and ratios against one of the variants.

    Args:
      samples: as from `measure`.
      baseline: the name of the variant that the others are divided by.

    Returns:
      The summary of each variant; the baseline's ratios are 1.

    Raises:
      KernelError: an unknown baseline, or one that is too short for the clock; no samples, or not
        as many of each variant.
    """
    one_of("summarize", "baseline", baseline, samples)
    counts = {name: len(runs) for name, runs in samples.items()}
    if 0 in counts.values() or len(set(counts.values())) > 1:
        raise KernelError(
            f"summarize: samples: got {counts}; expected as many of each, at least 1, as measure "
            "takes them"
        )
    base_wall, base_cpu = _times(samples[baseline])
    if min(*base_wall, *base_cpu) <= 0.0:
        raise KernelError(
            f"summarize: baseline: {baseline!r} has a run of 0 seconds; expected more than the "
            "clock resolves; let it do its work several times in one call"
        )
    summaries = {}
    for name, runs in samples.items():
        wall, cpu = _times(runs)
        summaries[name] = Summary(
            rounds=len(runs),
            median_wall_s=float(np.median(wall)),
            min_wall_s=float(np.min(wall)),
            median_cpu_s=float(np.median(cpu)),
            min_cpu_s=float(np.min(cpu)),
            wall_ratio=_quartiles(wall / base_wall),
            cpu_ratio=_quartiles(cpu / base_cpu),
            min_wall_ratio=float(np.min(wall) / np.min(base_wall)),
        )
    return summaries


def to_json(samples: Mapping[str, Sequence[Sample]]) -> dict[str, dict[str, list[float]]]:
    """The raw samples as lists by variant and clock, for `json.dump`; `from_json` reads them."""
    return {
        name: {"wall_s": [run.wall_s for run in runs], "cpu_s": [run.cpu_s for run in runs]}
        for name, runs in samples.items()
    }


def from_json(saved: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, list[Sample]]:
    """The samples that `to_json` made into lists."""
    return {
        name: [
            Sample(wall_s=wall, cpu_s=cpu)
            for wall, cpu in zip(clocks["wall_s"], clocks["cpu_s"], strict=True)
        ]
        for name, clocks in saved.items()
    }


def _times(runs: Sequence[Sample]) -> tuple[np.ndarray, np.ndarray]:
    """The wall and CPU times of samples, shape (rounds,) each."""
    return np.array([run.wall_s for run in runs]), np.array([run.cpu_s for run in runs])


def _quartiles(values: np.ndarray) -> Quartiles:
    lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75])
    return Quartiles(lower=float(lower), median=float(median), upper=float(upper))
