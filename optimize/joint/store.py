"""A descent on disk: what is needed to go on from a round as if nothing had happened.

The one idea: a checkpoint holds arrays and the order in which tables of splits were made, since the
arrays refer to rows of them. It carries a digest of its arrays and of the settings of its run; what
does not match is refused, never guessed at. Files are written by Orbax, which renames a checkpoint
into place when it is whole.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxcomet.optimize.joint.gradient import Descent
from jaxcomet.optimize.joint.run import Run
from jaxcomet.optimize.joint.scoring import Points, Scores
from jaxcomet.optimize.result import SearchError


class CheckpointError(SearchError):
    """A checkpoint that cannot be used; the message says why and what to do."""


def state_of(run: Run) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and plain data of a run that descends."""
    descent, found = run.descent, run.incumbents
    assert descent is not None
    arrays: dict[str, np.ndarray] = {}
    leaves = jax.tree.leaves(descent.seeds)
    arrays |= {f"seeds.{n}": np.asarray(leaf) for n, leaf in enumerate(leaves)}
    arrays |= _points("best", descent.best) | _scores("best", descent.scores)
    arrays |= {"best.totals": descent.totals, "best.target": descent.target}
    arrays |= {"found.totals": found.totals, "found.front": found.front}
    if found.points is not None and found.scores is not None:
        arrays |= _points("found", found.points) | _scores("found", found.scores)
    if found.front_points is not None:
        arrays |= _points("front", found.front_points)
    if found.nearest is not None:
        arrays |= _points("nearest", found.nearest[0]) | _scores("nearest", found.nearest[1])
    plain = {
        "round": descent.round,
        "rounds": descent.rounds,
        "lanes": run.joint.lanes,
        "history": [[at, list(values)] for at, values in found.history],
        "tables": [
            [[list(key) for key in axis.tables.keys] for axis in tree.axes]
            for tree in run.joint.suite.trees
        ],
    }
    return arrays, plain


def restore(run: Run, arrays: Mapping[str, np.ndarray], plain: Mapping[str, Any]) -> None:
    """Puts a run where `state_of` left one with the same settings."""
    for tree, axes in zip(run.joint.suite.trees, plain["tables"], strict=True):
        for axis, keys in zip(tree.axes, axes, strict=True):
            axis.tables.remake([tuple(key) for key in keys])
    best = _as_points("best", arrays)
    target = np.asarray(arrays["best.target"])
    structure = jax.tree.structure(run.relaxed().start(best, run.targets.take(target)))
    leaves = [np.asarray(arrays[f"seeds.{n}"]) for n in range(structure.num_leaves)]
    run.descent = Descent(
        seeds=jax.tree.unflatten(structure, leaves),
        round=plain["round"],
        rounds=plain["rounds"],
        best=best,
        scores=_as_scores("best", arrays),
        totals=np.array(arrays["best.totals"]),
        target=target,
    )
    run.joint.lanes = plain["lanes"]
    found = run.incumbents
    found.totals = np.array(arrays["found.totals"])
    found.history = [(at, tuple(values)) for at, values in plain["history"]]
    found.front = np.array(arrays["found.front"]).reshape(-1, 3)
    if "found.grid" in arrays:
        found.points, found.scores = _as_points("found", arrays), _as_scores("found", arrays)
    if "front.grid" in arrays:
        found.front_points = _as_points("front", arrays)
    if "nearest.grid" in arrays:
        found.nearest = (_as_points("nearest", arrays), _as_scores("nearest", arrays))


def _points(name: str, points: Points) -> dict[str, np.ndarray]:
    return {
        f"{name}.grid": points.grid,
        f"{name}.tree": points.tree,
        f"{name}.rows": points.rows,
    }


def _scores(name: str, scores: Scores) -> dict[str, np.ndarray]:
    return {
        f"{name}.latency": scores.latency,
        f"{name}.energy": scores.energy,
        f"{name}.pressure": scores.pressure,
        f"{name}.area": scores.area,
    }


def _as_points(name: str, arrays: Mapping[str, np.ndarray]) -> Points:
    return Points(*(np.array(arrays[f"{name}.{part}"]) for part in ("grid", "tree", "rows")))


def _as_scores(name: str, arrays: Mapping[str, np.ndarray]) -> Scores:
    parts = ("latency", "energy", "pressure", "area")
    return Scores(*(np.array(arrays[f"{name}.{part}"]) for part in parts))


class Store:
    """Checkpoints of one run in a folder."""

    def __init__(self, folder: Path, digest: str) -> None:
        """Opens or makes the folder.

        Args:
          folder: where.
          digest: of the settings of the run; a checkpoint with another one is refused.
        """
        import orbax.checkpoint as ocp  # a second that no other search should wait

        self._ocp = ocp
        self._digest = digest
        self._folder = folder.resolve()
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    def save(self, run: Run) -> None:
        """Puts away where the descent of a run stands."""
        arrays, plain = state_of(run)
        kept = {n: a for n, a in arrays.items() if a.size}  # Orbax takes no empty ones
        plain |= {
            "digest": self._digest,
            "arrays": _digest(kept),
            "empty": {n: [list(a.shape), str(a.dtype)] for n, a in arrays.items() if not a.size},
        }
        args = self._ocp.args.Composite(
            state=self._ocp.args.StandardSave(kept), plain=self._ocp.args.JsonSave(plain)
        )
        self._manager.save(plain["round"], args=args, force=True)

    def load(self, run: Run) -> bool:
        """Puts a run where the newest checkpoint left it; False where there is none.

        Raises:
          CheckpointError: it is of another run, or damaged.
        """
        step = self._manager.latest_step()
        if step is None:
            return False
        where = f"{self._folder / str(step)}"
        advice = "remove the folder to begin this task anew"
        args = self._ocp.args.Composite(
            state=self._ocp.args.StandardRestore(), plain=self._ocp.args.JsonRestore()
        )
        try:
            found: Any = self._manager.restore(step, args=args)
            state, plain = dict(found.state), found.plain
        # Orbax and tensorstore raise whatever they stumble over in a damaged file
        except (ValueError, KeyError, TypeError, OSError, AttributeError, RuntimeError) as error:
            text = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise CheckpointError(f"{where}: cannot be read ({text}); {advice}") from None
        if plain.get("digest") != self._digest:
            raise CheckpointError(
                f"{where}: is of a run with other settings, workloads or versions; resume with the "
                "same ones, or choose another folder"
            )
        if plain.get("arrays") != _digest(state):
            raise CheckpointError(f"{where}: is damaged (its arrays do not match); {advice}")
        empty = {n: np.empty(shape, dtype) for n, (shape, dtype) in plain["empty"].items()}
        restore(run, state | empty, plain)
        return True

    def close(self) -> None:
        """Ends writing."""
        self._manager.close()


def _digest(arrays: Mapping[str, Any]) -> str:
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()
