"""Ways to read the comparison with the published speedups, and the speedup under each.

The one idea: what "unfused" means, what is exchanged, which rules count and which mapping is taken
are values of one dataclass, so that one of them can be changed and the rest kept.
"""

from dataclasses import dataclass, replace

import numpy as np
from published_search import (
    CASES,
    DEFAULT,
    PROGRAM,
    THREE_STAGES,
    Case,
    Rules,
    Searcher,
    geometric_mean,
    strategy_of,
    ways,
)

from jaxcomet import strategies
from jaxcomet.cost.conventions import PRESETS

PUBLISHED = {"gemm-softmax": 1.42, "gemm-layernorm": 3.46, "attention": 1.82}
"""Workload to the largest speedup over unfused (arXiv:2509.00599, abstract)."""

DRAWS, TRIES, SEED = 200, 5, 0
"""Repetitions and mappings drawn of the mapper that prices a few; the authors' scripts price 5."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One way to read the comparison.

    Attributes:
      workload: name of the compound operation.
      baseline: the strategy that is called unfused.
      fused: the strategies whose fastest is compared with it.
      exchange: ``rows`` or ``tile``: what a softmax exchanges, for all that have the choice.
      rules: conventions.
      bits: width of the intermediates.
      spread: what attention lays over the units; empty: each of the three.
      mapper: ``best`` of all mappings, or the best of a ``few`` that are drawn at random.
      whole: the GEMM's second operand is not tiled at DRAM, as in the released space.
      shapes: ``all``, ``M>1`` or ``M=1`` (of attention: more than one query, or one), or those of
        one machine, ``edge`` or ``cloud``.
    """

    workload: str
    baseline: str = "unfused"
    fused: tuple[str, ...]
    exchange: str = "rows"
    rules: Rules = DEFAULT
    bits: int = 16
    spread: str = ""
    mapper: str = "best"
    whole: bool = False
    shapes: str = "all"

    def cases(self) -> list[Case]:
        """The shapes that count."""
        found = []
        for case in CASES[self.workload]:
            sizes = dict(case.sizes)
            rows = "M=1" if sizes.get("M", sizes.get("q")) == 1 else "M>1"
            if self.shapes in ("all", rows, case.machine):
                changed = {} if self.bits == 16 else {"vector_bits": self.bits}
                found.append(case.with_sizes(case.label, **changed))
        return found

    @property
    def base(self) -> str:
        """The baseline as a strategy of `strategy_of`."""
        if not self.whole:
            return self.baseline
        return "fused-dist-whole" if "dist" in self.baseline else f"{self.baseline}-whole"

    @property
    def fixed(self) -> dict[str, tuple[str, ...]]:
        """Options that are not free."""
        fixed = {"reduce": (self.exchange,)}
        if self.whole:
            fixed["weights"] = ("resident",)
        return {**fixed, "spread": (self.spread,)} if self.spread else fixed


FUSED: dict[str, tuple[str, ...]] = {
    w: tuple(s.name for s in strategies.available(w) if s.name != "unfused") for w in CASES
}
START = {w: Reading(workload=w, fused=FUSED[w]) for w in CASES}
"""How this package reads the comparison."""


@dataclass(frozen=True, kw_only=True)
class Speedups:
    """Speedups of a reading: by shape, the largest and the geometric mean."""

    by_shape: dict[str, float]
    largest: float
    at: str
    mean: float
    low: float | None = None
    high: float | None = None


def speedups(search: Searcher, reading: Reading) -> Speedups:
    """The speedup of the fastest fused strategy over the baseline, shape by shape."""
    if reading.mapper == "few":
        return _drawn(search, reading)
    found: dict[str, float] = {}
    for case in reading.cases():
        base = search.fastest(case, (reading.base,), reading.rules, **reading.fixed)
        best = search.fastest(case, reading.fused, reading.rules, **reading.fixed)
        if base.feasible and best.feasible:
            found[case.label] = base.latency / best.latency
    at = max(found, key=lambda label: found[label])
    return Speedups(
        by_shape=found, largest=found[at], at=at, mean=geometric_mean([*found.values()])
    )


def _drawn(search: Searcher, reading: Reading) -> Speedups:
    ratios: dict[str, np.ndarray] = {}
    for number, case in enumerate(reading.cases()):

        def cycles(name: str, number: int = number, case: Case = case) -> np.ndarray:
            fixed = {"weights": ("resident",), "spread": ("keys",), **reading.fixed}
            (options, *_) = ways(strategy_of(case.workload, name), **fixed)
            return search.drawn(
                case, name, options, reading.rules, tries=TRIES, repeats=DRAWS, seed=SEED + number
            )

        base = cycles(reading.base)
        best = np.min([cycles(name) for name in reading.fused], axis=0)
        fits = np.isfinite(base) & np.isfinite(best)
        ratios[case.label] = np.where(fits, base / np.where(fits, best, 1.0), np.nan)
    table = np.array([*ratios.values()])
    largest = np.nanmax(table, axis=0)
    medians = {label: float(np.nanmedian(r)) for label, r in ratios.items() if np.isfinite(r).any()}
    low, middle, high = (float(q) for q in np.quantile(largest, (0.1, 0.5, 0.9)))
    return Speedups(
        by_shape=medians,
        largest=middle,
        at="various",
        mean=geometric_mean([*medians.values()]),
        low=low,
        high=high,
    )


# -- which assumptions are changed --------------------------------------------------------------


def dist(workload: str) -> str:
    """How the strategies of a workload abbreviate its normalization."""
    return "ln" if workload == "gemm-layernorm" else "sm"


def changes(start: Reading) -> dict[str, Reading]:
    """Readings that differ from `start` in one assumption, by what is assumed."""
    w = start.workload
    found: dict[str, Reading] = {}
    if w == "attention":
        found["unfused: three stages, the softmax fused"] = replace(
            start, baseline=THREE_STAGES.name
        )
        found["unfused: scores and softmax fused, values apart (`partial`)"] = replace(
            start, baseline="partial"
        )
        found["keys over the units, heads and rows in time"] = replace(start, spread="keys")
        found["fused: `partial` only"] = replace(start, fused=("partial",))
        found["fused: `row-fused` only"] = replace(start, fused=("row-fused",))
        found["fused: `flash` only"] = replace(start, fused=("flash",))
    else:
        kind = dist(w)
        found[f"unfused: the vector steps are one stage (`fused-dist{kind}`)"] = replace(
            start, baseline=f"fused-dist{kind}", fused=(f"fused-gemm-dist{kind}",)
        )
        found[f"fused: `fused-dist{kind}` only"] = replace(start, fused=(f"fused-dist{kind}",))
    if w == "gemm-softmax":
        found["exchange of the tile, in the fused ones only"] = replace(start, exchange="tile")
        found["exchange of the tile, in `unfused`, too"] = replace(
            start, exchange="tile", baseline="unfused-tile"
        )
    if w != "attention":
        found["intermediates of 8 bits"] = replace(start, bits=8)
        found["B not tiled at DRAM, as in the released space"] = replace(
            start, whole=True, fused=(f"fused-gemm-dist{dist(w)}",)
        )
    found["best of five mappings drawn at random"] = replace(
        start,
        mapper="few",
        spread="keys" if w == "attention" else "",
        fused=("flash",) if w == "attention" else (f"fused-gemm-dist{dist(w)}",),
    )
    many, one = ("more than one query", "one query") if w == "attention" else ("M > 1", "M = 1")
    found[f"shapes with {many} only"] = replace(start, shapes="M>1")
    found[f"shapes with {one} only"] = replace(start, shapes="M=1")
    return found


def with_rules(*names: str, preset: str = "default") -> Rules:
    """A preset in which some rules have the value of the other preset."""
    other = PRESETS["comet-program" if preset == "default" else "default"]
    return (("preset", preset), *((n, str(getattr(other, n))) for n in names))


def combinations(workload: str) -> list[Reading]:
    """All combinations of the assumptions."""
    start = START[workload]
    bases: list[Reading]
    if workload == "attention":
        bases = [
            replace(start, baseline=b, fused=f, spread=s)
            for b in ("unfused", THREE_STAGES.name, "partial")
            for f in (start.fused, ("flash",), ("row-fused",), ("partial",))
            for s in ("", "keys")
            if f != (b,)
        ]
    else:
        part, whole = f"fused-dist{dist(workload)}", f"fused-gemm-dist{dist(workload)}"
        bases = [
            replace(start, baseline=b, fused=(whole,), exchange=e)
            for e in (("rows", "tile") if workload == "gemm-softmax" else ("rows",))
            for b in ("unfused", *(("unfused-tile",) if e == "tile" else ()), part)
        ]
    return [
        replace(base, rules=rules, bits=bits, shapes=shapes, whole=whole)
        for base in bases
        for rules in (DEFAULT, PROGRAM)
        for whole in ((False,) if workload == "attention" else (False, True))
        for bits in ((16,) if workload == "attention" else (16, 8))
        for shapes in ("all", "M>1", "M=1", "edge", "cloud")
    ]
