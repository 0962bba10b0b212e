"""The best mapping of each workload on given machines: the inside of a nested search.

The one idea: given the machine, mappings of different workloads have nothing to do with one
another, so each is enumerated alone. The mappings of all workloads with one tree are one long row
of numbers that goes through the tree's program in chunks of one size, whatever the machine.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxcomet.hardware.machine import Machine
from jaxcomet.optimize.joint.scoring import MISFIT, Aim, Joint, Points, Scores
from jaxcomet.optimize.joint.suite import Tree

CHUNK = 16384
"""Mappings at once."""

_ROUNDS = 4  # tangents of a sum over workloads


class Enumerator:
    """Prices all mappings of workloads on machines."""

    def __init__(self, joint: Joint) -> None:
        """For the suite of a joint model."""
        self.joint = joint

    def size(self, grid: np.ndarray) -> int:
        """Mappings that there are for one machine, over all workloads and their trees."""
        return sum(int(self.sizes(tree, grid).sum()) for tree in self.joint.suite.trees)

    def sizes(self, tree: Tree, grid: np.ndarray) -> np.ndarray:
        """Mappings of each workload of a tree on one machine."""
        values = np.repeat(self.joint.space.values(grid)[None], len(tree.items), axis=0)
        tables = tree.tables(np.arange(len(tree.items)), self.joint.space.machine(list(values.T)))
        several = [a.tables.sizes(t) for a, t in zip(tree.axes, tables, strict=True)]
        return np.prod(several, axis=0)

    def best_by(
        self, number: int, grid: np.ndarray, items: np.ndarray, aim: Aim
    ) -> tuple[Points, Scores]:
        """The best mappings by one tree on one machine; of workloads not asked for, no prices."""
        joint, suite = self.joint, self.joint.suite
        tree, width = suite.trees[number], len(suite.items)
        place = np.array([tree.place[i] for i in items])
        machine = joint.space.machine([float(v) for v in joint.space.values(grid)])
        pull = np.zeros((4, len(items)))
        pull[:2] = aim.exponents[0, :2, None]
        found = self._tree(tree, place, machine, pull)
        points = Points(
            grid[None].copy(),
            np.full((1, width), number),
            np.zeros((1, width, suite.most_axes), dtype=np.int64),
        )
        points.rows[0, items, : len(tree.axes)] = found.rows
        several = np.ones((3, 1, width))
        several[:, 0, items] = found.prices
        return points, Scores(several[0], several[1], several[2], joint.areas(grid[None]))

    def best(self, grid: np.ndarray, aim: Aim) -> tuple[Points, Scores]:
        """The best mapping of each workload on machines.

        Args:
          grid: shape (machines, numbers).
          aim: what is minimised, one per machine.

        Returns:
          Points and their exact scores.
        """
        self.joint.machines += len(grid)
        pull = np.zeros((4, len(grid), len(self.joint.suite.items)))
        pull[:2] = aim.exponents.T[:2, :, None]
        points, scores = self._minimal(grid, pull)
        sums = aim.across == "total" and bool((aim.exponents[:, :2] > 0).all(axis=1).any())
        for _ in range(_ROUNDS if sums else 0):
            weights = self.joint.suite.weights
            pull = np.zeros_like(pull)
            for k, metric in enumerate((scores.latency, scores.energy)):
                pull[2 + k] = (aim.exponents[:, k] / (metric @ weights))[:, None]
            again, found = self._minimal(grid, pull)
            same = (again.rows == points.rows).all() and (again.tree == points.tree).all()
            points, scores = again, found
            if same:
                break
        self.joint.look(points, scores)
        return points, scores

    def _minimal(self, grid: np.ndarray, pull: np.ndarray) -> tuple[Points, Scores]:
        """The mappings of least pull; of each machine and workload, shape (4, machines, width)."""
        suite, count = self.joint.suite, len(grid)
        width = len(suite.items)
        least = np.full((count, width), np.inf)
        trees = np.zeros((count, width), dtype=np.int64)
        rows = np.zeros((count, width, suite.most_axes), dtype=np.int64)
        prices = np.full((3, count, width), np.inf)
        for point, values in enumerate(self.joint.space.values(grid).tolist()):
            one = self.joint.space.machine(values)
            for number, tree in enumerate(suite.trees):
                items = np.array(tree.items)
                found = self._tree(tree, np.arange(len(items)), one, pull[:, point, items])
                better = np.flatnonzero(found.scores < least[point, items])
                kept = items[better]
                least[point, kept] = found.scores[better]
                trees[point, kept] = number
                rows[point, kept, : len(tree.axes)] = found.rows[better]
                prices[:, point, kept] = found.prices[:, better]
        scores = Scores(prices[0], prices[1], prices[2], self.joint.areas(grid))
        return Points(grid.copy(), trees, rows), scores

    def _tree(self, tree: Tree, place: np.ndarray, machine: Machine, pull: np.ndarray) -> "_Found":
        """The best mapping of some workloads by a tree, on one machine whose leaves are floats.

        Args:
          tree: the tree.
          place: positions of the workloads among those of the tree.
          machine: the machine.
          pull: of the logs of latency and energy and of both themselves, shape (4, workloads).
        """
        tables = tree.tables(place, machine)
        spans = [
            [axis.tables.span(int(table)) for table in several]
            for axis, several in zip(tree.axes, tables, strict=True)
        ]
        first = np.array([[a for a, _ in axis] for axis in spans]).reshape(-1, len(place))
        sizes = np.array([[b - a for a, b in axis] for axis in spans]).reshape(-1, len(place))
        ends = np.cumsum([math.prod(column) for column in sizes.T.tolist()])
        starts = np.concatenate([[0], ends[:-1]])
        self.joint.lanes += int(ends[-1])
        found = _Found(
            scores=np.full(len(place), np.inf),
            rows=np.zeros((len(place), len(tree.axes)), dtype=np.int64),
            prices=np.full((3, len(place)), np.inf),
        )

        def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for at in range(0, int(ends[-1]), CHUNK):
                index = np.arange(at, min(at + CHUNK, int(ends[-1])))
                lane = np.searchsorted(ends, index, side="right")
                left = index - starts[lane]
                rows = np.empty((len(index), len(tree.axes)), dtype=np.int64)
                for axis in range(len(tree.axes) - 1, -1, -1):
                    left, digit = np.divmod(left, sizes[axis, lane])
                    rows[:, axis] = first[axis, lane] + digit
                yield lane, rows

        waiting = None
        for lane, rows in chunks():
            started = self.joint.started(tree, machine, place[lane], rows, CHUNK)
            if waiting is not None:
                found.keep(*waiting, pull)
            waiting = (lane, rows, started)
        if waiting is not None:
            found.keep(*waiting, pull)
        return found


@dataclass
class _Found:
    """The best mapping of each workload so far.

    Attributes:
      scores: what is minimised, shape (workloads,).
      rows: shape (workloads, axes).
      prices: latency, energy and pressure, shape (3, workloads).
    """

    scores: np.ndarray
    rows: np.ndarray
    prices: np.ndarray

    def keep(self, lane: np.ndarray, rows: np.ndarray, started: Any, pull: np.ndarray) -> None:
        """Takes in a chunk, whose lanes ascend."""
        prices = np.stack([np.broadcast_to(x, CHUNK)[: len(lane)] for x in jax.device_get(started)])
        latency, energy, pressure = prices
        own = pull[:, lane]
        score = own[0] * np.log(latency) + own[1] * np.log(energy)
        score += own[2] * latency + own[3] * energy
        over = pressure > 1.0
        score[over] = MISFIT + np.log(pressure[over])
        begins = np.flatnonzero(np.concatenate([[True], lane[1:] != lane[:-1]]))
        for begin, end in zip(begins, [*begins[1:], len(lane)], strict=True):
            at, number = begin + int(score[begin:end].argmin()), lane[begin]
            if score[at] < self.scores[number]:
                self.scores[number] = score[at]
                self.rows[number] = rows[at]
                self.prices[:, number] = prices[:, at]
