"""Sweeps: workloads x spaces, each with all objectives and seeds in one batch; killed and resumed.

The one idea: a task is finished when its file stands in the folder, whole; what is not finished is
done again from its last checkpoint. The table is made from these files, so that it has every task
once, however often the sweep was killed.
"""

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from jaxcomet.cost.conventions import DEFAULT, Conventions
from jaxcomet.hardware.errors import show
from jaxcomet.optimize.joint.design import DesignError, DesignSpace, InfeasibleError
from jaxcomet.optimize.joint.entry import (
    STEPS,
    Workloads,
    check_choice,
    make_effort,
    settings_of,
)
from jaxcomet.optimize.joint.files import load_space
from jaxcomet.optimize.joint.objectives import Target, Weighted, aim_of, make_targets
from jaxcomet.optimize.joint.outcome import result_of
from jaxcomet.optimize.joint.record import COLUMNS, as_dict, rows
from jaxcomet.optimize.joint.run import METHODS, Effort, Method, Run, drive, prepare
from jaxcomet.optimize.joint.scoring import Across
from jaxcomet.optimize.joint.store import CheckpointError, Store
from jaxcomet.optimize.joint.suite import Suite, make_suite
from jaxcomet.optimize.space import TILES, Tiles

SEEDS = 256
"""Seeds for each objective of a sweep."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a sweep found.

    Attributes:
      records: of each finished task by name, as `record.as_dict`; with ``infeasible`` and a message
        where no machine could be found.
      table: rows of all finished tasks.
      stopped: ``complete`` or ``interrupted``.
    """

    records: dict[str, dict[str, Any]]
    table: tuple[dict[str, Any], ...]
    stopped: str


@dataclass(frozen=True)
class Progress:
    """Where a sweep stands.

    Attributes:
      task: name of the task under way.
      number: its number, from 1.
      tasks: how many there are.
      run: the task's run.
    """

    task: str
    number: int
    tasks: int
    run: Run


def sweep(
    workloads: Mapping[str, Workloads],
    spaces: Sequence[DesignSpace | str | PathLike[str]] = ("edge",),
    *,
    objectives: str | Weighted | Sequence[str | Weighted] = "edp",
    budgets: Mapping[str, float] | Sequence[Mapping[str, float]] | None = None,
    across: Across = "geomean",
    seeds: int = SEEDS,
    steps: int = STEPS,
    chains: int = 8,
    method: Method | Literal["auto"] = "gradient",
    derive_buffers: bool = False,
    evaluations: int | None = None,
    time_limit_s: float | None = None,
    strategies: Mapping[str, Sequence[str]] | None = None,
    options: Mapping[str, str] | None = None,
    tiles: Tiles = "padded",
    weights: Mapping[str, Sequence[float]] | None = None,
    conventions: Conventions = DEFAULT,
    key: int = 0,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_s: float = 10.0,
    progress: Callable[[Progress], None] | None = None,
) -> Sweep:
    """Co-designs of several sets of workloads on several spaces.

    Args:
      workloads: sets of workloads by name; each set shares one machine.
      spaces: search spaces, as for `codesign`.
      objectives: as for `codesign`; all are one batch of one program.
      budgets: as for `codesign`.
      across: as for `codesign`.
      seeds: seeds of the descent for each objective with each set of budgets.
      steps: steps of each.
      chains: chains of local moves for each of them.
      method: as for `codesign`.
      derive_buffers: as for `codesign`.
      evaluations: as for `codesign`, of each task.
      time_limit_s: as for `codesign`, of each task.
      strategies: as for `codesign`.
      options: as for `codesign`.
      tiles: as for `codesign`.
      weights: of the workloads of a set, by its name.
      conventions: rules of accounting.
      key: seed of all randomness.
      out: folder for results and checkpoints; nothing is written if left out.
      resume: go on with what stands in the folder.
      checkpoint_s: seconds between two checkpoints of a descent.
      progress: called after each batch.

    Returns:
      Records and table. The folder has them as ``results.jsonl``, ``results.csv`` and
      ``designs/*.json``.

    Raises:
      SearchError: an argument that cannot be, or a folder that does not belong to this sweep.
    """
    if not workloads:
        raise DesignError("workloads: got none; expected at least one set, by name")
    if not spaces:
        raise DesignError("spaces: got none; expected at least one")
    check_choice("across", across, get_args(Across))
    check_choice("method", method, ("auto", *METHODS))
    check_choice("tiles", tiles, TILES)
    loaded = [s if isinstance(s, DesignSpace) else load_space(s) for s in spaces]
    names = [s.name for s in loaded]
    if len(set(names)) != len(names):
        raise DesignError(f"spaces: got names {', '.join(names)}; expected each once; rename one")
    tasks: list[_Task] = []
    for label, several in workloads.items():
        for space in loaded:
            targets = make_targets(space, objectives, budgets)
            space.check_budgets(np.array([t.limits for t in targets]).reshape(len(targets), -1))
            suite = make_suite(
                several,
                space.start,
                weights=(weights or {}).get(label),
                strategies=strategies,
                options=options,
                tiles=tiles,
            )
            effort = make_effort(
                space,
                suite,
                len(targets),
                method=method,
                derive_buffers=derive_buffers,
                seeds=seeds * len(targets),
                steps=steps,
                chains=chains,
                evaluations=evaluations,
                time_limit_s=time_limit_s,
            )

            tasks.append(
                _Task(
                    name=f"{label} on {space.name}",
                    space=space,
                    suite=suite,
                    targets=targets,
                    effort=effort,
                    across=across,
                    conventions=conventions,
                    key=key,
                )
            )
    folder = None if out is None else _Folder(Path(out), resume, tasks)
    return _run(tasks, folder, checkpoint_s, progress)


@dataclass(frozen=True, kw_only=True)
class _Task:
    """A co-design of a sweep."""

    name: str
    space: DesignSpace
    suite: Suite
    targets: tuple[Target, ...]
    effort: Effort
    across: Across
    conventions: Conventions
    key: int

    @cached_property
    def settings(self) -> dict[str, Any]:
        return settings_of(
            self.space,
            self.suite,
            self.targets,
            self.effort,
            across=self.across,
            conventions=self.conventions,
            key=self.key,
        )

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()

    @property
    def file(self) -> str:
        """Its name as that of a file."""
        plain = re.sub(r"[^A-Za-z0-9.-]+", "-", self.name).strip("-.")
        return f"{plain}-{hashlib.sha256(self.name.encode()).hexdigest()[:6]}"

    def run(self) -> Run:
        return prepare(
            self.space,
            self.suite,
            aim_of(self.targets, self.across),
            self.effort,
            self.conventions,
            [self.key],
        )


def _run(
    tasks: Sequence[_Task],
    folder: "_Folder | None",
    checkpoint_s: float,
    progress: Callable[[Progress], None] | None,
) -> Sweep:
    records: dict[str, dict[str, Any]] = {} if folder is None else folder.finished()
    stopped = "complete"
    for number, task in enumerate(tasks, start=1):
        if task.name in records:
            continue

        def shown(run: Run, task: _Task = task, number: int = number) -> None:
            if progress is not None:
                progress(Progress(task.name, number, len(tasks), run))

        record = _one(task, folder, checkpoint_s, shown)
        if record is None:
            stopped = "interrupted"
            break
        records[task.name] = record
        if folder is not None:
            folder.finish(task, record)
    ordered = {task.name: records[task.name] for task in tasks if task.name in records}
    table = tuple(row for name, record in ordered.items() for row in rows(name, record))
    if folder is not None:
        folder.write_table(table)
    return Sweep(records=ordered, table=table, stopped=stopped)


def _one(
    task: _Task,
    folder: "_Folder | None",
    checkpoint_s: float,
    shown: Callable[[Run], None],
) -> dict[str, Any] | None:
    """The record of a task, begun or taken up again; None where it was interrupted."""
    try:
        run = task.run()
    except KeyboardInterrupt:
        return None
    store = None
    if folder is not None and task.effort.method == "gradient":
        store = Store(folder.checkpoints(task), task.digest)
    saved, last = time.monotonic(), -1

    def on_step(run: Run) -> None:
        nonlocal saved, last
        shown(run)
        descent = run.descent
        if store is None or descent is None or descent.round == last:
            return
        if descent.round == descent.rounds or time.monotonic() - saved >= checkpoint_s:
            store.save(run)
            saved, last = time.monotonic(), descent.round

    with contextlib.closing(store) if store is not None else contextlib.nullcontext():
        if store is not None and store.load(run):
            assert run.descent is not None
            last = run.descent.round
        stopped = drive(run, on_step=on_step)
    if stopped == "interrupted":
        return None
    try:
        return as_dict(result_of(run, task.targets, stopped, task.settings))
    except InfeasibleError as error:
        return {"infeasible": str(error), "settings": task.settings}


class _Folder:
    """The folder of a sweep: settings, finished tasks, checkpoints and the table."""

    def __init__(self, path: Path, resume: bool, tasks: Sequence[_Task]) -> None:
        """Makes the folder, or takes it up where it belongs to the same sweep."""
        self._path = path
        self._tasks = {task.name: task for task in tasks}
        self._designs = path / "designs"
        about = {task.name: task.settings for task in tasks}
        if path.exists() and not path.is_dir():
            raise DesignError(f"out: {path} is a file; expected a folder, or a name for a new one")
        settings = path / "settings.json"
        if path.is_dir() and any(path.iterdir()):
            if not settings.is_file():
                raise DesignError(f"out: {path} holds other things; choose another folder")
            if not resume:
                raise DesignError(
                    f"out: {path} holds a sweep; resume it (--resume), or choose another folder"
                )
            _check_same(settings, about)
        try:
            self._designs.mkdir(parents=True, exist_ok=True)
            _write(settings, json.dumps(about, indent=1))
        except OSError as error:
            raise DesignError(
                f"out: {path} cannot be written ({error.strerror}); choose another folder"
            ) from None

    def checkpoints(self, task: _Task) -> Path:
        return self._path / "checkpoints" / task.file

    def finished(self) -> dict[str, dict[str, Any]]:
        """Records of tasks that are finished."""
        found = {}
        for name, task in self._tasks.items():
            file = self._designs / f"{task.file}.json"
            if file.is_file():
                found[name] = read_record(file)["record"]
        return found

    def finish(self, task: _Task, record: dict[str, Any]) -> None:
        """Writes a record, and drops the task's checkpoints."""
        text = json.dumps({"task": task.name, "record": record}, indent=1)
        _write(self._designs / f"{task.file}.json", text)
        shutil.rmtree(self.checkpoints(task), ignore_errors=True)

    def write_table(self, table: Sequence[dict[str, Any]]) -> None:
        """Writes the rows of all finished tasks."""
        lines = "".join(f"{json.dumps(row)}\n" for row in table)
        _write(self._path / "results.jsonl", lines)
        text = io.StringIO(newline="")
        writer: csv.DictWriter[str] = csv.DictWriter(text, COLUMNS, lineterminator="\n", restval="")
        writer.writeheader()
        for row in table:
            numbers = row.get("numbers") or {}
            flat = "; ".join(f"{name} {value}" for name, value in numbers.items())
            writer.writerow({**row, "numbers": flat})
        _write(self._path / "results.csv", text.getvalue())


def read_record(file: Path) -> dict[str, Any]:
    """The name and the record of a finished task.

    Raises:
      CheckpointError: the file is damaged.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        task, settings = found["task"], found["record"]["settings"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file}: is no record of a co-design ({type(error).__name__}); remove the file to run "
            "this task anew"
        ) from None
    if not isinstance(task, str) or not isinstance(settings, dict):
        raise CheckpointError(f"{file}: is no record of a co-design; remove the file")
    return found


def _check_same(file: Path, about: dict[str, Any]) -> None:
    """Refuses a folder whose sweep has other settings; names the first one that differs."""
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CheckpointError(
            f"{file}: cannot be read; choose another folder, or remove this one"
        ) from None
    now = json.loads(json.dumps(about))
    if before == now:
        return
    for name in {**now, **(before if isinstance(before, dict) else {})}:
        old = before.get(name) if isinstance(before, dict) else None
        if old is None or name not in now:
            raise CheckpointError(
                f"{file}: task {name!r} is {'new' if old is None else 'missing'}; resume with the "
                "same workloads and spaces, or choose another folder"
            )
        for key, value in now[name].items():
            if old.get(key) != value:
                raise CheckpointError(
                    f"{file}: task {name!r}: {key} was {show(old.get(key))}, is {show(value)}; "
                    "resume with the same settings and versions, or choose another folder"
                )
    raise CheckpointError(f"{file}: has other settings; choose another folder")


def _write(file: Path, text: str) -> None:
    """A file whole or not at all, also where the machine goes down."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)
