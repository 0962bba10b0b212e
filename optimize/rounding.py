"""Between relaxed factors and whole ones: logs of factors to the nearest row of each table."""

import numpy as np

from jaxcomet.optimize.problem import Problem

_CHUNK = 4_000_000  # distances at once


class Rounding:
    """Rounds logs of factors to points of a problem.

    Attributes:
      columns: per axis, the columns that vary.
      logs: per axis, logs of these columns, shape (rows, columns).
      totals: per axis, the log of what the varying factors must cover.
      dims: numbers that a point of the box has: one per varying factor, and one for the variant
        where there are several.
    """

    def __init__(self, problem: Problem) -> None:
        """Prepares the tables of the problem's axes."""
        part = problem.parts[0]
        self._variants = len(problem.parts)
        self.columns: list[list[int]] = []
        self.logs: list[np.ndarray] = []
        self.totals: list[float] = []
        for axis in part.space.axes:
            logs = np.log(axis.splits)
            varying = [c for c in range(logs.shape[1]) if np.ptp(logs[:, c]) > 0]
            self.columns.append(varying)
            self.logs.append(logs[:, varying])
            # splits of slightly larger extents are there too; the least one is the extent's own
            self.totals.append(float(self.logs[-1].sum(axis=1).min()) if varying else 0.0)
        self.dims = sum(len(c) for c in self.columns) + int(self._variants > 1)

    def rows(self, axis: int, logs: np.ndarray) -> np.ndarray:
        """Nearest row of an axis for each of several logs, shape (points, columns)."""
        table = self.logs[axis]
        if len(table) == 1 or not self.columns[axis]:
            return np.zeros(len(logs), dtype=np.int64)
        step = max(1, _CHUNK // len(table))
        norms = np.square(table).sum(axis=1)
        found = []
        for start in range(0, len(logs), step):
            part = logs[start : start + step]
            found.append((norms - 2.0 * part @ table.T).argmin(axis=1))
        return np.concatenate(found)

    def from_box(self, numbers: np.ndarray) -> np.ndarray:
        """Points of a box [0, 1], shape (points, dims), as points of the problem."""
        points = np.zeros((len(numbers), 1 + len(self.logs)), dtype=np.int64)
        if self._variants > 1:
            chosen = np.floor(numbers[:, -1] * self._variants).astype(np.int64)
            points[:, 0] = np.clip(chosen, 0, self._variants - 1)
        at = 0
        for axis, columns in enumerate(self.columns):
            logs = numbers[:, at : at + len(columns)] * self.totals[axis]
            points[:, 1 + axis] = self.rows(axis, logs)
            at += len(columns)
        return points
