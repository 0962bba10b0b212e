"""Local search on the exact joint model, scored by increments.

The one idea: on a given machine mappings of different workloads do not touch, so each tries a move
of its own and keeps it by itself; a *sweep* of one move for each workload is one joint evaluation.
A move of the machine prices all workloads anew with their mappings as they are (split anew where
meshes move). Several chains run side by side in one batch.
"""

from collections.abc import Callable, Iterator

import numpy as np

from jaxcomet.optimize.joint.scoring import Aim, Joint, Points, Scores

_SWEEPS = 4  # sweeps of mappings after a machine that was tried in depth
_DRAWN = 8  # random mappings by another tree
_TREE_SWEEPS = 48  # sweeps from the best of them


class LocalSearch:
    """Chains of moves; each call of `sweep` or `step` is one joint evaluation a chain."""

    def __init__(
        self,
        joint: Joint,
        points: Points,
        scores: Scores,
        aim: Aim,
        rng: np.random.Generator,
        *,
        trees: bool = True,
    ) -> None:
        """Chains at points with known scores; they may change to other trees."""
        self._trees = trees
        self._frozen = np.zeros(len(joint.suite.items), dtype=bool)
        self.joint = joint
        self.points = points
        self.scores = scores
        self.aim = aim
        self._rng = rng
        self.tried = np.zeros(points.tree.shape, dtype=np.int64)
        self._counts: np.ndarray | None = None
        self._near: dict[tuple[int, int], np.ndarray] = {}
        self._position = np.zeros(points.tree.shape, dtype=np.int64)
        self._offset = rng.integers(0, 1 << 30, points.tree.shape)
        self._machine_moves = _machine_moves(len(joint.space.free))
        count = len(points)
        self.machine_tried = np.zeros(count, dtype=np.int64)
        self._machine_order = np.stack(
            [rng.permutation(len(self._machine_moves)) for _ in range(count)]
        )

    # -- mappings --------------------------------------------------------------------------------

    def freeze(self, items: np.ndarray) -> None:
        """Mappings of some workloads stay as they are."""
        self._frozen[items] = True

    def settled(self) -> np.ndarray:
        """Chains in which no single move of a mapping is better, shape (chains,)."""
        return np.all(self.tried >= self._moves_there(), axis=1)

    def _moves_there(self) -> np.ndarray:
        """Moves of each mapping in all; finds the neighbours of each axis where any is new."""
        if self._counts is not None:
            return self._counts.sum(axis=2)
        points, suite = self.points, self.joint.suite
        tables = self.joint.tables(points.grid, points.tree)
        chains, width, axes = points.rows.shape
        counts = np.zeros((chains, width, axes + 1), dtype=np.int64)
        for number, tree in enumerate(suite.trees):
            chain, item = np.nonzero(points.tree == number)
            for axis, joint_axis in enumerate(tree.axes):
                rows = points.rows[chain, item, axis]
                found, some = joint_axis.tables.neighbours(rows, tables[chain, item, axis])
                counts[chain, item, axis] = some
                self._near[number, axis] = found
            self._position[chain, item] = np.arange(len(chain))
        if self._trees:
            counts[:, :, axes] = np.array([len(c) - 1 for c in suite.choices])
        counts[:, self._frozen] = 0
        self._counts = counts
        return counts.sum(axis=2)

    def _renew(self, chain: np.ndarray, item: np.ndarray) -> None:
        """Neighbours of mappings that have moved within their tables."""
        assert self._counts is not None
        for number, tree in enumerate(self.joint.suite.trees):
            own = self.points.tree[chain, item] == number
            rows = self.points.rows[chain[own], item[own]]
            place = self._position[chain[own], item[own]]
            for axis, joint_axis in enumerate(tree.axes):
                found, some = joint_axis.tables.known_neighbours(rows[:, axis])
                self._near[number, axis][place] = found
                self._counts[chain[own], item[own], axis] = some

    def changed(self) -> None:
        """Points were put in from outside: what is known of their neighbours is dropped."""
        self._counts = None

    def sweep(self, chains: np.ndarray) -> np.ndarray:
        """One move of each mapping that has some left; kept where it is better.

        Args:
          chains: which chains.

        Returns:
          Whether a chain has got better.
        """
        joint, suite = self.joint, self.joint.suite
        there = self._moves_there()
        assert self._counts is not None
        open_ = np.zeros(self.points.tree.shape, dtype=bool)
        open_[chains] = self.tried[chains] < there[chains]
        chain, item = np.nonzero(open_)
        if not len(chain):
            return np.zeros(len(chains), dtype=bool)
        tree = self.points.tree[chain, item].copy()
        rows = self.points.rows[chain, item].copy()
        # the moves of a mapping in a fixed order of its own, each once: a stride that is coprime
        total = there[chain, item]
        at = (self._offset[chain, item] + self.tried[chain, item] * _stride(total)) % total
        self.tried[chain, item] += 1
        counts = self._counts[chain, item]
        ends = counts.cumsum(axis=1)
        axis = (at[:, None] >= ends).sum(axis=1)
        inner = at - (ends - counts)[np.arange(len(at)), axis]
        for number, one in enumerate(suite.trees):
            for k in range(len(one.axes)):
                lanes = np.flatnonzero((tree == number) & (axis == k))
                if len(lanes):
                    place = self._position[chain[lanes], item[lanes]]
                    rows[lanes, k] = self._near[number, k][place, inner[lanes]]
        self._change_trees(
            np.flatnonzero(axis == counts.shape[1] - 1), chain, item, inner, tree, rows
        )
        latency, energy, pressure = joint.price(self.points.grid[chain], item, tree, rows)
        tried = self.scores.take(slice(None))
        tried.latency[chain, item], tried.energy[chain, item] = latency, energy
        tried.pressure[chain, item] = pressure
        before = joint.each(self.scores, self.aim)
        after = joint.each(tried, self.aim, self.scores)
        better = after[chain, item] < before[chain, item] - 1e-12
        at_ = (chain[better], item[better])
        if (self.points.tree[at_] == tree[better]).all():
            self.points.rows[at_] = rows[better]
            self._renew(*at_)
        else:
            self.changed()
        self.points.tree[at_], self.points.rows[at_] = tree[better], rows[better]
        self.scores.latency[at_], self.scores.energy[at_] = latency[better], energy[better]
        self.scores.pressure[at_] = pressure[better]
        self.tried[at_] = 0
        self._offset[at_] = self._rng.integers(0, 1 << 30, len(at_[0]))
        improved = np.zeros(len(self.points), dtype=bool)
        improved[chain[better]] = True
        if improved.any():
            seen = np.flatnonzero(improved)
            joint.look(self.points.take(seen), self.scores.take(seen))
        return improved[chains]

    def _change_trees(
        self,
        lanes: np.ndarray,
        chain: np.ndarray,
        item: np.ndarray,
        inner: np.ndarray,
        tree: np.ndarray,
        rows: np.ndarray,
    ) -> None:
        """Other trees for some lanes: the factors that both have stay as near as can be."""
        joint, suite = self.joint, self.joint.suite
        for lane in lanes.tolist():
            others = [t for t in suite.choices[item[lane]] if t != tree[lane]]
            old, new = suite.trees[tree[lane]], suite.trees[others[inner[lane]]]
            logs = {}
            for k, axis in enumerate(old.axes):
                found = axis.tables.logs(rows[lane, k])
                logs |= dict(zip(axis.free, found.tolist(), strict=True))
            place = np.array([new.place[int(item[lane])]])
            machine = joint.space.machine(
                list(joint.space.values(self.points.grid[chain[lane]][None]).T)
            )
            for k, (axis, table) in enumerate(
                zip(new.axes, new.tables(place, machine), strict=True)
            ):
                wanted = np.array([[logs.get(n, 0.0) for n in axis.free]])
                rows[lane, k] = axis.tables.nearest(table, wanted)[0]
            tree[lane] = others[inner[lane]]

    # -- machines --------------------------------------------------------------------------------

    def stuck(self) -> np.ndarray:
        """Chains in which no single move of the machine is better with the mappings as they are."""
        return self.machine_tried >= len(self._machine_moves)

    def _proposed(self, chains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The next machines within bounds and budgets that differ; and chains that have one."""
        grid = self.points.grid[chains].copy()
        limits = self.aim.limits[chains]
        ready = np.zeros(len(chains), dtype=bool)
        most = len(self._machine_moves)
        while True:
            todo = np.flatnonzero(~ready & (self.machine_tried[chains] < most))
            if not len(todo):
                return grid, ready
            own = chains[todo]
            move = self._machine_moves[self._machine_order[own, self.machine_tried[own]]]
            self.machine_tried[own] += 1
            base = self.points.grid[own]
            tried = base + move
            inside = np.all((tried >= 0) & (tried < self.joint.space.sizes), axis=1)
            tried = np.where(inside[:, None], tried, base)
            inside &= self.joint.space.excess(tried, limits[todo]) <= 1.0
            grid[todo[inside]] = tried[inside]
            ready[todo[inside]] = True

    def step(self, chains: np.ndarray, depth: int = 0, wide: int = 1) -> np.ndarray:
        """Moves of the machine of each chain; the best is kept where it is better.

        Args:
          chains: which chains.
          depth: sweeps of mappings on the new machine before it is judged.
          wide: moves of each chain, scored at once.

        Returns:
          Whether a chain has got better.
        """
        proposed = [self._proposed(chains) for _ in range(wide)]
        own = np.concatenate([chains[ready] for _, ready in proposed])
        improved = np.zeros(len(chains), dtype=bool)
        if not len(own):
            return improved
        joint = self.joint
        grid = np.concatenate([grid[ready] for grid, ready in proposed])
        points = joint.moved(self.points.take(own), grid)
        scores = joint.score(points)
        aim = self.aim.take(own)
        if depth:
            inner = LocalSearch(joint, points, scores, aim, self._rng)
            every = np.arange(len(own))
            for _ in range(depth):
                inner.sweep(every)
            points, scores = inner.points, inner.scores
        before = joint.total(self.scores.take(own), aim)
        after = joint.total(scores, aim)
        gain = np.where(after < before - 1e-12, before - after, -np.inf)
        best = [
            int(rows[gain[rows].argmax()]) for c in chains.tolist() if len(rows := _rows(own, c))
        ]
        better = np.array([row for row in best if np.isfinite(gain[row])], dtype=np.int64)
        kept = own[better]
        if len(kept):
            self.put(kept, points.take(better), scores.take(better))
        for chain in kept:
            self._machine_order[chain] = self._rng.permutation(len(self._machine_moves))
        improved[np.isin(chains, kept)] = True
        return improved

    def put(self, chains: np.ndarray, points: Points, scores: Scores) -> None:
        """Chains go on from other points."""
        self.points.put(chains, points)
        self.scores.put(chains, scores)
        self.tried[chains], self.machine_tried[chains] = 0, 0
        self.changed()


def _rows(own: np.ndarray, chain: int) -> np.ndarray:
    return np.flatnonzero(own == chain)


def _machine_moves(count: int) -> np.ndarray:
    """One number up or down, or one up and another down, shape (moves, numbers)."""
    single = np.concatenate([np.eye(count, dtype=np.int64), -np.eye(count, dtype=np.int64)])
    swaps = [
        np.eye(count, dtype=np.int64)[i] - np.eye(count, dtype=np.int64)[j]
        for i in range(count)
        for j in range(count)
        if i != j
    ]
    return np.concatenate([single, np.array(swaps).reshape(-1, count)])


def _stride(total: np.ndarray) -> np.ndarray:
    """A step that visits all of several numbers once."""
    found = np.maximum(1, (total * 0.618).astype(np.int64))
    while True:
        shared = np.gcd(found, np.maximum(total, 1)) > 1
        if not shared.any():
            return found
        found = found + shared


def with_best_trees(
    joint: Joint, points: Points, scores: Scores, aim: Aim, rng: np.random.Generator
) -> tuple[Points, Scores]:
    """One point with another tree for each workload that is better off with it.

    On a given machine workloads do not touch, so all try their next tree at once: the best of a few
    random mappings, then sweeps.
    """
    suite = joint.suite
    width = len(suite.items)
    best, found = points.take([0]), scores.take([0])
    for turn in range(1, max(len(c) for c in suite.choices)):
        trees = np.array(
            [
                c[(c.index(int(t)) + turn) % len(c)]
                for c, t in zip(suite.choices, points.tree[0], strict=True)
            ]
        )
        several = Points(
            np.repeat(points.grid, _DRAWN, axis=0),
            np.tile(trees, (_DRAWN, 1)),
            np.zeros((_DRAWN, width, suite.most_axes), dtype=np.int64),
        )
        several.rows = joint.random_rows(rng, several.grid, several.tree)
        several, results = joint.fitted(several, joint.score(several))
        wide = aim.take(np.zeros(_DRAWN, dtype=np.int64))
        first = joint.each(results, wide).argmin(axis=0)
        one = several.take([0])
        one.rows[0] = several.rows[first, np.arange(width)]
        search = LocalSearch(joint, one, joint.score(one), aim, rng, trees=False)
        search.freeze(np.flatnonzero([len(c) <= turn for c in suite.choices]))
        for _ in range(_TREE_SWEEPS):
            if search.settled().all():
                break
            search.sweep(np.zeros(1, dtype=np.int64))
        better = joint.each(search.scores, aim, found)[0] < joint.each(found, aim)[0] - 1e-12
        best.tree[0, better] = search.points.tree[0, better]
        best.rows[0, better] = search.points.rows[0, better]
        found.latency[0, better] = search.scores.latency[0, better]
        found.energy[0, better] = search.scores.energy[0, better]
        found.pressure[0, better] = search.scores.pressure[0, better]
    joint.look(best, found)
    return best, found


Renew = Callable[[np.ndarray, LocalSearch], tuple[np.ndarray, Points | None]]
"""From chains that are stuck to those of them that go on, and their new points."""


def local_search(
    search: LocalSearch, joint: Joint, renew: Renew, *, wide: int = 1
) -> Iterator[None]:
    """Moves mappings and machines until nothing is better; yields after each joint evaluation.

    Args:
      search: the chains.
      joint: what is searched.
      renew: where chains that are stuck go on; the search ends when none does.
      wide: moves of a machine that are scored at once.
    """
    count = len(search.points)
    every = np.arange(count)
    deep = np.zeros(count, dtype=bool)
    ended = np.zeros(count, dtype=bool)
    turn = 0
    while not ended.all():
        turn += 1
        settled, stuck = search.settled(), search.stuck()
        # machines and mappings by turns; mappings first where they are far from settled
        machines = every[~ended & ~stuck & (settled | (turn % 3 == 0))]
        mappings = every[~ended & ~settled & ~np.isin(every, machines)]
        if len(mappings):
            search.sweep(mappings)
        shallow, deeper = machines[~deep[machines]], machines[deep[machines]]
        if len(shallow):
            search.step(shallow, wide=wide)
        if len(deeper):
            improved = search.step(deeper, _SWEEPS, wide)
            deep[deeper[improved]] = False
        done = every[~ended & settled & search.stuck()]
        again, over = done[~deep[done]], done[deep[done]]
        deep[again] = True  # the same moves once more, each with its mappings improved
        search.machine_tried[again] = 0
        if len(over):
            going, fresh = renew(over, search)
            ended[np.setdiff1d(over, going)] = True
            if fresh is not None:
                fresh, scores = joint.fitted(fresh, joint.score(fresh))
                search.put(going, fresh, scores)
                deep[going] = False
        yield
