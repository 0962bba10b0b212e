"""Prices the branches of a part that may hold its best mapping, those of the least bounds first.

The one idea: once no branch is left whose bounds are below the best mapping so far, that one is
proven, however few have been priced. Where bounds say too little, everything is priced instead
(`jaxcomet.optimize.enumeration`), which is quicker for each mapping; what is tried before that is
known takes a small share of the time of that. The choice rests on what pricing takes in general,
not on what it took here: what is priced does not depend on the machine.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxcomet.mapping import Collective, walk
from jaxcomet.optimize.branches import Branches, branches
from jaxcomet.optimize.pricing import Objective, Part, Prices, best_of, objective_keys

_APART = 1 << 11  # branches of so many mappings are priced each by itself
_PROGRAM = 1 << 17  # mappings that a program prices at once
_WORTH_S = 0.05  # what is priced whole sooner is
_TRIED = 0.2  # share of the time of pricing everything that is given to find out
_CHUNK_S = 0.1  # time between two looks at what is left


class TooManyError(Exception):
    """More mappings would have to be priced than may be."""


class BeatenError(Exception):
    """No mapping of a way is better than a known one of another way.

    Attributes:
      evaluated: mappings priced to know that.
    """

    def __init__(self, evaluated: int) -> None:
        """See the attributes."""
        super().__init__(f"none of {evaluated:,} mappings is better")
        self.evaluated = evaluated


@dataclass(frozen=True)
class Found:
    """Of one part: the best mapping, or the front where one is wanted.

    Attributes:
      part: the part.
      latency: latency of each mapping of the front, or of the best one; none where nothing fits.
      energy: its energy.
      index: its number in the part.
      nearest: number of the mapping nearest to fitting.
      evaluated: mappings priced.
      feasible: those of them that fit.
      history: (mappings priced, and two numbers of the best so far) each time it got better.
      complete: whether nothing else can be better.
    """

    part: Part
    latency: np.ndarray
    energy: np.ndarray
    index: np.ndarray
    nearest: int
    evaluated: int
    feasible: int
    history: tuple[tuple[int, float, float], ...]
    complete: bool


@dataclass(frozen=True)
class _Rates:
    """Seconds that pricing takes about.

    Attributes:
      call: of each call.
      single: of a mapping by itself.
      branch: of a mapping in a branch.
      slab: of a mapping in a slab.
      compiling: of a program.
      program: of a mapping of some branches, in a program.
      whole: of a mapping of a slab, in a program.
    """

    call: float
    single: float
    branch: float
    slab: float
    compiling: float
    program: float = 2e-7
    whole: float = 1e-7

    def branches(self, sizes: np.ndarray) -> np.ndarray:
        """Of pricing each of some branches on NumPy."""
        return np.where(sizes < _APART, sizes * self.single, self.call + sizes * self.branch)

    def everything(self, part: Part) -> float:
        """Of pricing a whole part in slabs."""
        if part.is_large:
            return self.compiling + part.size * self.whole
        return part.size * self.slab


# as measured on two cores: GEMM on r2 and edge; GEMM-softmax and attention with all algorithms
_PLAIN = _Rates(call=4e-3, single=2e-6, branch=1.2e-6, slab=5e-7, compiling=1.0)
_EXCHANGING = _Rates(call=3e-2, single=4e-5, branch=4e-6, slab=4e-6, compiling=2.5)


@dataclass
class _Visit:
    """What has been priced of the branches of a part."""

    branches: Branches
    objective: Objective
    best: tuple[float, float, int] = (np.inf, np.inf, -1)
    evaluated: int = 0
    feasible: int = 0
    history: list[tuple[int, float, float]] = dataclasses.field(default_factory=list)

    def price(self, numbers: np.ndarray) -> None:
        """Prices all mappings of some branches on NumPy."""
        sizes = self.branches.sizes.ravel()[numbers]
        small = numbers[sizes < _APART]
        if len(small):
            choices = self.branches.choices(small.tolist())
            self._note(self.branches.part.price(choices), choices)
        for number in numbers[sizes >= _APART].tolist():
            one, rows = self.branches.only(number), self.branches.rows(number)
            for start in one.slab_starts():
                prices = one.slab(start)
                inner = one.choices(np.arange(start, start + len(prices.latency_cycles)))
                choices = np.stack([r[c] for r, c in zip(rows, inner.T, strict=True)], axis=1)
                self._note(prices, choices)

    def price_compiled(self, numbers: np.ndarray) -> None:
        """Prices all mappings of some branches by a program."""
        choices = self.branches.choices(numbers.tolist())
        for start in range(0, len(choices), _PROGRAM):
            some = choices[start : start + _PROGRAM]
            # the last one again and again, so that all calls have one size
            padded = some[np.minimum(np.arange(_PROGRAM), len(some) - 1)]
            found = self.branches.part.price(padded, compiled=True)
            self._note(Prices(*(x[: len(some)] for x in found)), some)

    def _note(self, prices: Prices, choices: np.ndarray) -> None:
        found = best_of(prices, self.objective)
        self.evaluated += len(choices)
        self.feasible += int(found.feasible)
        if not found.feasible:
            return
        first, second = objective_keys(self.objective, prices.latency_cycles, prices.energy_pj)
        ties = (prices.pressure <= 1.0) & (first == found.first) & (second == found.second)
        indices = np.ravel_multi_index(tuple(choices[ties].T), self.branches.part.sizes)
        key = (found.first, found.second, int(indices.min()))
        if key < self.best:
            if key[:2] < self.best[:2]:
                self.history.append((self.evaluated, *key[:2]))
            self.best = key


def search_branches(
    part: Part,
    objective: Objective,
    progress: Callable[[int], None],
    stop: Callable[[], bool],
    above: tuple[float, float],
    most: float | int,
) -> Found | None:
    """The best mapping of a part, by branches.

    Args:
      part: what is searched.
      objective: what is minimised.
      progress: called with the number of mappings done with since the last call.
      stop: asked before each call; where it says so, the best so far is returned.
      above: key of a known mapping: what is no better need not be found.
      most: mappings that may be priced.

    Returns:
      The best mapping; None where it is quicker to price everything, or where nothing that fits was
      found before it had to stop.

    Raises:
      BeatenError: none is better than `above`.
      TooManyError: more than `most` mappings would have to be priced.
    """
    exchanges = any(isinstance(n, Collective) for n, _ in walk(part.space.tree))
    rates = _EXCHANGING if exchanges else _PLAIN
    everything = rates.everything(part)
    found = branches(part, objective) if everything > _WORTH_S else None
    if found is None:
        return None
    sizes, waiting = found.sizes.ravel(), found.fitting
    seconds = rates.branches(sizes)
    visit, spent, told, compiled = _Visit(found, objective), 0.0, False, False
    chunk = min(_CHUNK_S, 0.25 * _TRIED * everything)
    while True:
        known = min(visit.best[:2], above)
        waiting = waiting[found.may_beat(waiting, known)]
        if not len(waiting) or stop():
            break
        if visit.evaluated > most:
            raise TooManyError
        left = float(seconds[waiting].sum())
        program = rates.compiling + rates.program * float(sizes[waiting].sum())
        if not told:
            if known[0] < np.inf and min(left, program) < everything:
                told = True
                progress(visit.evaluated)
            elif spent > _TRIED * everything:
                return None
        compiled = compiled or (told and left > program)
        cost = rates.program * sizes[waiting] if compiled else seconds[waiting]
        count = max(1, int(np.searchsorted(np.cumsum(cost), chunk, side="right")))
        before = visit.evaluated
        (visit.price_compiled if compiled else visit.price)(waiting[:count])
        if told:
            progress(visit.evaluated - before)
        spent += float(cost[:count].sum())
        waiting, chunk = waiting[count:], min(2.0 * chunk, _CHUNK_S)
    if visit.best[2] < 0 and (above[0] == np.inf or len(waiting)):
        return None
    done = part.size if not len(waiting) else visit.evaluated
    progress(done - (visit.evaluated if told else 0))
    if not len(waiting) and visit.best[:2] >= above:
        raise BeatenError(visit.evaluated)
    index = np.array([visit.best[2]])
    prices = part.price(part.choices(index))
    return Found(
        part,
        prices.latency_cycles,
        prices.energy_pj,
        index,
        int(index[0]),
        visit.evaluated,
        visit.feasible,
        tuple(visit.history),
        complete=not len(waiting),
    )
