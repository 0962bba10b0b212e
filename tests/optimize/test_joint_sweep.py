"""Sweeps: one table however they were cut off; what does not belong to them is refused."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxcomet import gemm_softmax, optimize
from jaxcomet.optimize.joint.sweep import Progress

SPACE = """
name = "tiny"
description = "Twelve machines"
machine = "edge"

[numbers.dram_bandwidth]
keys = ["memory.dram.child_bandwidth"]
unit = "byte/cycle"
values = [12.5, 25, 50]
reason = "channels"

[numbers.lanes]
keys = ["engine.simd.lanes"]
unit = "count"
low = 8
high = 64
grid = "powers of two"
reason = "widths"

[budgets.area]
limit = 530
unit = "mm2"
reason = "what the start takes"
"""

KILLED = """
import os, signal, sys
from tests.optimize.test_joint_sweep import descent

def kill(at):
    if at.run.descent is not None and at.run.descent.round == 2:
        os.kill(os.getpid(), signal.SIGKILL)

descent(sys.argv[1], sys.argv[2], progress=kill)
"""


def descent(space: str, out: str | Path, **more: Any) -> optimize.Sweep:
    """A sweep of one task with two targets, which is put away at every round."""
    return optimize.sweep(
        {"pair": {"a": gemm_softmax(64.0, 256.0, 64.0), "b": gemm_softmax(128.0, 64.0, 32.0)}},
        [space],
        objectives=["edp", "latency"],
        seeds=16,
        steps=16,
        chains=1,
        strategies={"gemm-softmax": ["fused-gemm-distsm"]},
        out=out,
        checkpoint_s=0.0,
        **more,
    )


def counted(space: str, out: str | Path, **more: Any) -> optimize.Sweep:
    """A sweep of two tasks by a method that compiles little."""
    given: dict[str, Any] = {"key": 0} | more
    return optimize.sweep(
        {"one": [gemm_softmax(64.0, 64.0, 32.0)], "two": [gemm_softmax(32.0, 128.0, 32.0)]},
        [space],
        method="local",
        evaluations=60,
        strategies={"gemm-softmax": ["fused-gemm-distsm"]},
        out=out,
        **given,
    )


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("spaces") / "tiny.toml"
    path.write_text(SPACE, encoding="utf-8")
    return str(path)


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_table_has_each_target_once_and_both_files_agree(space: str, tmp_path: Path):
    found = counted(space, tmp_path / "out")
    assert found.stopped == "complete"
    lines = (tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows == list(found.table)
    assert [row["task"] for row in rows] == ["one on tiny", "two on tiny"]
    with (tmp_path / "out" / "results.csv").open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    for row, cell in zip(rows, cells, strict=True):
        assert cell["task"] == row["task"]
        assert float(cell["improvement"]) == row["improvement"] >= 1.0
        assert float(cell["area_mm2"]) == row["area_mm2"] <= 530.0
        assert cell["method"] == "local"
        assert cell["key"] == "0"
        assert cell["jaxcomet"]
    for name, record in found.records.items():
        (point,) = record["points"]
        start = record["start"]
        gain = start["latency_cycles"] * start["energy_pj"]
        gain /= point["latency_cycles"] * point["energy_pj"]
        assert point["improvement"] == pytest.approx(gain, rel=1e-12), name
        assert all(workload["fits"] for workload in point["workloads"].values())


def test_an_interrupted_sweep_keeps_what_is_finished_and_goes_on(space: str, tmp_path: Path):
    def interrupt(at: Progress) -> None:
        if at.number == 2:
            raise KeyboardInterrupt

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    counted(space, whole)
    found = counted(space, cut, progress=interrupt)
    assert found.stopped == "interrupted"
    assert [row["task"] for row in found.table] == ["one on tiny"]
    assert counted(space, cut, resume=True).stopped == "complete"
    assert _files(cut) == _files(whole)


def test_a_folder_of_something_else_is_refused(space: str, tmp_path: Path):
    counted(space, tmp_path / "out")
    before = _files(tmp_path / "out")
    with pytest.raises(optimize.DesignError, match="holds a sweep; resume it"):
        counted(space, tmp_path / "out")
    with pytest.raises(optimize.CheckpointError, match=r"'one on tiny': key was 0, is 1"):
        counted(space, tmp_path / "out", resume=True, key=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(optimize.DesignError, match="holds other things"):
        counted(space, tmp_path / "other", resume=True)
    with pytest.raises(optimize.DesignError, match="is a file"):
        counted(space, tmp_path / "other" / "letter.txt")
    assert _files(tmp_path / "out") == before
    design = next((tmp_path / "out" / "designs").glob("*.json"))
    design.write_text(design.read_text(encoding="utf-8")[:100], encoding="utf-8")
    with pytest.raises(optimize.CheckpointError, match=f"{design.name}: is no record"):
        counted(space, tmp_path / "out", resume=True)


def test_budgets_that_cannot_be_kept_leave_no_folder(space: str, tmp_path: Path):
    with pytest.raises(optimize.InfeasibleError, match=r"budgets\.area: the smallest machine"):
        counted(space, tmp_path / "out", budgets={"area": 200.0})
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def killed(space: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that was killed in its second round."""
    folder = tmp_path_factory.mktemp("killed") / "out"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, space, str(folder)],
        cwd=root,
        env=os.environ | {"JAXCOMET_CHECK_ANNOTATIONS": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not list((folder / "designs").iterdir())
    return folder


@pytest.mark.slow
def test_a_killed_sweep_ends_as_one_that_was_not(space: str, killed: Path, tmp_path: Path):
    resumed = tmp_path / "resumed"
    shutil.copytree(killed, resumed)
    rounds: list[int] = []

    def watch(at: Progress) -> None:
        if at.run.descent is not None:
            rounds.append(at.run.descent.round)

    again = descent(space, resumed, resume=True, progress=watch)
    assert min(rounds) == 2  # round 1 was put away and is not made again
    whole = descent(space, tmp_path / "whole")
    assert again.table == whole.table
    assert len(whole.table) == 2 + 2 * 16  # a row for each target, one for each seed
    assert _files(resumed) == _files(tmp_path / "whole")


# Orbax gives up at the first damaged array; the others end on a loop that it has closed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_a_damaged_or_foreign_checkpoint_is_refused(space: str, killed: Path, tmp_path: Path):
    damaged = tmp_path / "damaged"
    shutil.copytree(killed, damaged)
    (task,) = (damaged / "checkpoints").iterdir()
    newest = max(task.iterdir(), key=lambda step: int(step.name))
    for path in newest.rglob("*"):
        if path.parent.name == "d":  # where the arrays are
            content = bytearray(path.read_bytes())
            middle = len(content) // 2
            content[middle : middle + 64] = bytes(64)
            path.write_bytes(bytes(content))
    with pytest.raises(optimize.CheckpointError, match="remove the folder to begin this task anew"):
        descent(space, damaged, resume=True)
    foreign = tmp_path / "foreign"
    shutil.copytree(killed, foreign)
    settings = foreign / "settings.json"
    text = settings.read_text(encoding="utf-8")
    assert text.count('"key": 0') == 1
    settings.write_text(text.replace('"key": 0', '"key": 1'), encoding="utf-8")
    with pytest.raises(optimize.CheckpointError, match="other settings, workloads or versions"):
        descent(space, foreign, resume=True, key=1)
