"""What every method of a search is given, and what it answers."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from jaxcomet.cost.conventions import Conventions
from jaxcomet.hardware.machine import Machine
from jaxcomet.optimize.enumeration import Best
from jaxcomet.optimize.pricing import Objective
from jaxcomet.optimize.result import Stopped, WayResult
from jaxcomet.optimize.space import Scope
from jaxcomet.optimize.ways import Way
from jaxcomet.workload import CompoundOp


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is searched.

    Attributes:
      workload: a single shape.
      machine: a single machine.
      ways: those that the machine and the scope allow, by their bounds.
      bounds: no mapping of a way has an objective below its bound.
      objective: what is minimised.
      conventions: rules of accounting.
      scope: what the spaces range over.
    """

    workload: CompoundOp
    machine: Machine
    ways: tuple[Way, ...]
    bounds: tuple[float, ...]
    objective: Objective
    conventions: Conventions
    scope: Scope

    @property
    def size(self) -> int:
        """Mappings that there are to price."""
        return sum(w.size for w in self.ways)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a method found.

    Attributes:
      way: the best way.
      best: its best mapping.
      ways: what became of each way, best first.
      history: (evaluations, objective) each time a better mapping was found.
      stopped: why the search ended.
    """

    way: Way
    best: Best
    ways: tuple[WayResult, ...]
    history: tuple[tuple[int, float], ...]
    stopped: Stopped


@dataclass
class Clock:
    """When a search must end: after a time, or when it is told to."""

    limit_s: float | None = None
    told: threading.Event = field(default_factory=threading.Event)
    started: float = field(default_factory=time.monotonic)

    def over(self) -> bool:
        """Whether it must end now."""
        return self.told.is_set() or self._late

    def why(self) -> Stopped:
        """Why it had to end."""
        return "interrupted" if self.told.is_set() else "time"

    @contextlib.contextmanager
    def heeding_ctrl_c(self) -> Iterator[None]:
        """Lets Ctrl-C tell the search to end, wherever it is; a second one interrupts at once.

        Only the main thread gets signals; elsewhere, and where a handler is not Python's own, this
        does nothing.
        """
        default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if threading.current_thread() is not threading.main_thread() or not default:
            yield
            return

        def tell(number: int, frame: object) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.told.set()

        signal.signal(signal.SIGINT, tell)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @property
    def _late(self) -> bool:
        return self.limit_s is not None and time.monotonic() - self.started >= self.limit_s


@dataclass
class Counter:
    """Counts evaluations, from several threads, and shows them."""

    show: Callable[[int, int], None] | None
    most: int
    done: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        """Counts more."""
        with self._lock:
            self.done += count
            if self.show is not None:
                self.show(self.done, self.most)


def outcome(
    way: Way,
    bound: float,
    best: Best | None = None,
    *,
    skipped: int | None = None,
    refusal: str = "",
) -> WayResult:
    """What became of a way; `skipped`: mappings priced before the rest could be skipped."""
    found = best is not None and bool(np.isfinite(best.key[0]))
    return WayResult(
        strategy=way.strategy.name,
        label=way.label,
        size=way.size,
        evaluated=(skipped or 0) if best is None else best.evaluated,
        bound=bound,
        value=best.key[0] if best is not None and found else None,
        skipped=skipped is not None,
        refusal=refusal,
    )


def answer(
    results: list[tuple[Way, float, Best | None]],
    skipped: dict[int, int],
    history: list[tuple[int, float]],
    stopped: Stopped,
) -> Answer:
    """The best of what was found, with what became of each way.

    Args:
      results: ways with their bounds and best mappings; None where nothing was priced.
      skipped: mappings priced, by position, of the ways that cannot hold the best.
      history: see `Answer`.
      stopped: why the search ended.
    """

    def rank(one: tuple[Way, float, Best | None]) -> tuple[bool, tuple[float, float], float]:
        best = one[2]
        if best is None:
            return True, (np.inf, np.inf), np.inf
        return False, best.key, best.pressure

    outcomes = [
        outcome(way, bound, best, skipped=skipped.get(i))
        for i, (way, bound, best) in enumerate(results)
    ]
    order = sorted(range(len(results)), key=lambda i: rank(results[i]))
    way, _, best = results[order[0]]
    assert best is not None
    return Answer(
        way=way,
        best=best,
        ways=tuple(outcomes[i] for i in order),
        history=tuple(history),
        stopped=stopped,
    )
