"""Tables of splits for machines that change: one table per extent and numbers of units.

The one idea: a mapping is a row number per axis. Where meshes move, the units that a dimension is
spread over move with them, and the rest of its extent is split anew; each such table is made once,
all stand in one array, and a row number is its place in that array. What is looked up for thousands
of mappings at once is then one indexing.
"""

from collections.abc import Sequence

import numpy as np

from jaxcomet.optimize.moves import Lines
from jaxcomet.optimize.space import Axis, Tiles, reaches
from jaxcomet.optimize.splits import covers

_CHUNK = 4_000_000  # distances at once
_NEIGHBOURS = 32  # moves kept of a row; the nearest come first


class AxisTables:
    """All splits of one axis of a tree, for any extent and any units.

    Attributes:
      names: factors, outermost first.
      over_units: which of them are spatial.
    """

    def __init__(self, names: tuple[str, ...], over_units: tuple[bool, ...], tiles: Tiles) -> None:
        """No table yet."""
        self.names = names
        self.over_units = over_units
        self._tiles: Tiles = tiles
        self._units = [c for c, over in enumerate(over_units) if over]
        self._free = [c for c, over in enumerate(over_units) if not over]
        self._ids: dict[tuple[float, ...], int] = {}
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._extents: list[float] = []
        self._rows = np.empty((0, len(names)))
        self._logs = np.empty((0, len(self._free)))
        self._neighbours = np.empty((0, _NEIGHBOURS), dtype=np.int64)
        self._counts = np.empty(0, dtype=np.int64)
        self._known: set[int] = set()

    @property
    def keys(self) -> tuple[tuple[float, ...], ...]:
        """Extent and units of each table, in the order in which they were made."""
        return tuple(self._ids)

    def remake(self, keys: Sequence[tuple[float, ...]]) -> None:
        """Makes tables in a given order, so that row numbers are those of a run before.

        Raises:
          ValueError: tables have been made in another order.
        """
        if list(self._ids) != list(keys)[: len(self._ids)]:
            raise ValueError("tables were made in another order than in the run before")
        for key in keys:
            self._table(key)

    @property
    def columns(self) -> int:
        """Number of factors that are not spatial."""
        return len(self._free)

    def table(self, bounds: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Numbers of the tables.

        Args:
          bounds: extents, shape (n,).
          units: units of each spatial factor, shape (n, spatial factors).
        """
        keys = np.column_stack([bounds, units])
        unique, inverse = np.unique(keys, axis=0, return_inverse=True)
        found = np.array([self._table(tuple(key)) for key in unique.tolist()], dtype=np.int64)
        return found[inverse.ravel()]

    def _table(self, key: tuple[float, ...]) -> int:
        if key not in self._ids:
            bound, units = int(key[0]), key[1:]
            spread = int(np.prod([*units, 1.0]))
            free = covers(-(-bound // spread), len(self._free), self._tiles)
            rows = np.ones((len(free), len(self.names)))
            rows[:, self._free] = free
            rows[:, self._units] = units
            good = reaches(rows, bound)
            rows = np.unique(rows[good], axis=0)
            self._ids[key] = len(self._starts)
            self._starts.append(len(self._rows))
            self._rows = np.concatenate([self._rows, rows])
            self._logs = np.concatenate([self._logs, np.log(rows[:, self._free])])
            self._stops.append(len(self._rows))
            self._extents.append(float(np.log(-(-bound // spread))))
        return self._ids[key]

    def sizes(self, tables: np.ndarray) -> np.ndarray:
        """Number of rows of tables."""
        return np.array(self._stops)[tables] - np.array(self._starts)[tables]

    def span(self, table: int) -> tuple[int, int]:
        """First row of a table, and the one after its last."""
        return self._starts[table], self._stops[table]

    def within(self, rows: np.ndarray, tables: np.ndarray) -> np.ndarray:
        """Whether rows belong to tables."""
        return (rows >= np.array(self._starts)[tables]) & (rows < np.array(self._stops)[tables])

    def extent(self, tables: np.ndarray) -> np.ndarray:
        """Log of what the factors that are not spatial cover in the rows of tables."""
        return np.array(self._extents)[tables]

    def factors(self, rows: np.ndarray) -> np.ndarray:
        """Values of all factors, shape (..., factors)."""
        return self._rows[rows]

    def logs(self, rows: np.ndarray) -> np.ndarray:
        """Logs of the factors that are not spatial, shape (..., columns)."""
        return self._logs[rows]

    def random(self, rng: np.random.Generator, tables: np.ndarray) -> np.ndarray:
        """A row of each table, drawn uniformly."""
        starts, sizes = np.array(self._starts)[tables], self.sizes(tables)
        return starts + np.minimum((rng.random(len(tables)) * sizes).astype(np.int64), sizes - 1)

    def nearest(self, tables: np.ndarray, logs: np.ndarray) -> np.ndarray:
        """The row of each table that is nearest to given logs.

        Args:
          tables: their numbers, shape (n,).
          logs: logs of the factors that are not spatial, shape (n, columns).
        """
        found = np.empty(len(tables), dtype=np.int64)
        for table in np.unique(tables):
            start, stop = self.span(int(table))
            asked = np.flatnonzero(tables == table)
            several = self._logs[start:stop]
            norms = np.square(several).sum(axis=1)
            step = max(1, _CHUNK // len(several))
            for first in range(0, len(asked), step):
                part = asked[first : first + step]
                found[part] = start + (norms - 2.0 * logs[part] @ several.T).argmin(axis=1)
        return found

    def neighbours(self, rows: np.ndarray, tables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows a single move away, shape (n, most), and how many there are, shape (n,)."""
        for table in np.unique(tables).tolist():
            if table not in self._known:
                self._find_neighbours(table)
        return self._neighbours[rows], self._counts[rows]

    def known_neighbours(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `neighbours`, in tables for which it has been called."""
        return self._neighbours[rows], self._counts[rows]

    def _find_neighbours(self, table: int) -> None:
        more = len(self._rows) - len(self._counts)
        if more:
            self._neighbours = np.pad(self._neighbours, ((0, more), (0, 0)))
            self._counts = np.pad(self._counts, (0, more))
        start, stop = self.span(int(table))
        rows = self._rows[start:stop]
        lines = Lines(Axis(dim="", names=self.names, splits=rows))
        logs = self._logs[start:stop]
        for row in range(stop - start):
            near = lines.neighbours(row)
            if len(near) > _NEIGHBOURS:
                distance = np.square(logs[near] - logs[row]).sum(axis=1)
                near = near[np.argsort(distance, kind="stable")[:_NEIGHBOURS]]
            self._neighbours[start + row, : len(near)] = start + near
            self._counts[start + row] = len(near)
        self._known.add(table)
