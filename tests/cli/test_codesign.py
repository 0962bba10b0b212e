"""`jaxcomet codesign`: a run, what its folder shows later, and what is refused."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from jaxcomet import gemm_softmax, hardware, optimize, strategies
from jaxcomet.cli import codesign
from jaxcomet.cli.main import app
from jaxcomet.optimize.joint import sweep as sweep_module
from jaxcomet.optimize.joint.run import METHODS
from jaxcomet.optimize.space import TILES

SUITE = """
name = "pair"
description = "two shapes of one structure"

[[workload]]
name = "large"
operation = "gemm-softmax"
M = 512
N = 1024
K = 128

[[workload]]
name = "little"
operation = "gemm-softmax"
M = 128
N = 256
K = 64
weight = 3
"""
TASK = "pair on edge-small"
WAY = ("--strategy", "gemm-softmax=fused-gemm-distsm")
QUICK = ("--seeds", "8", "--steps", "8", "--chains", "1")
TARGETS = ("--objective", "edp", "--objective", "latency")


def _words(folder: Path) -> tuple[str, ...]:
    suite = folder / "suite.toml"
    suite.write_text(SUITE, encoding="utf-8")
    out = str(folder / "out")
    return ("codesign", "edge-small", "--workloads", str(suite), *WAY, "--out", out)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """One run, and what it printed."""
    folder = tmp_path_factory.mktemp("codesign")
    words = (*_words(folder), *QUICK, *TARGETS)
    result = CliRunner(env={"COLUMNS": "140"}).invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return SimpleNamespace(words=words, out=folder / "out", text=result.stdout)


def _json(result: Any) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# -- help and lists --------------------------------------------------------------------------------


def test_help_is_that_of_the_run_and_names_the_other_commands(cli):
    for words in (("--help",), ("run", "--help"), ()):
        result = cli("codesign", *words, columns=100)
        assert result.exit_code == 0
        for part in ("--workloads", "--ladder", "--resume", "jaxcomet codesign show DIR"):
            assert part in result.stdout
        assert "    jaxcomet codesign spaces\n" in result.stdout
    assert "--figure" in cli("codesign", "show", "--help").stdout
    assert "codesign" in cli("--help").stdout


def test_the_words_known_are_those_of_the_library():
    assert ("auto", *METHODS) == codesign._METHODS
    assert codesign._TILES == TILES


def test_spaces_and_suites_are_listed_with_what_they_hold(cli):
    listed = _json(cli("codesign", "spaces", "--json"))
    by_name = {space["name"]: space for space in listed["spaces"]}
    assert tuple(by_name) == optimize.space_names()
    # 2 bandwidths, 2 edges, 4 capacities and 3 counts of lanes, from the bounds in the file
    assert by_name["edge-small"]["machines"] == 2 * 2 * 4 * 3
    assert by_name["edge-small"]["budgets"] == {"area": {"limit": 800.0, "unit": "mm2"}}
    assert [suite["name"] for suite in listed["suites"]] == ["gpt-3-175b", "llama-3-8b", "three"]
    shown = cli("codesign", "spaces").stdout
    for part in ("edge-small", "area 800 mm2", "llama-3-8b", "prefill attention"):
        assert part in shown


# -- a run -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_improvements_are_those_of_the_exact_costs(cli, done):
    record = _json(cli("codesign", "show", done.out, "--json"))["records"][TASK]

    def mean(point: dict[str, Any], name: str) -> float:
        """Geometric mean with weights 1 and 3."""
        large, little = (point["workloads"][w][name] for w in ("large", "little"))
        return (large * little**3) ** 0.25

    start = record["start"]
    for point in record["points"]:
        latency = mean(start, "latency_cycles") / mean(point, "latency_cycles")
        energy = mean(start, "energy_pj") / mean(point, "energy_pj")
        expected = {"edp": latency * energy, "latency": latency}[point["target"]]
        assert point["improvement"] == pytest.approx(expected, rel=1e-9)
        assert point["latency_cycles"] == pytest.approx(mean(point, "latency_cycles"), rel=1e-9)
        assert point["improvement"] > 1.05
        assert point["area_mm2"] <= 800.0
    assert [p["target"] for p in record["points"]] == ["edp", "latency"]
    assert start["improvement"] == 1.0
    assert record["history"][-1][1] == [p["improvement"] for p in record["points"]]


@pytest.mark.slow
def test_the_start_is_the_machine_as_it_stands_with_its_best_mappings(cli, done):
    start = _json(cli("codesign", "show", done.out, "--json"))["records"][TASK]["start"]
    for name, shape in {"large": (512, 1024, 128), "little": (128, 256, 64)}.items():
        got = start["workloads"][name]
        found = optimize.map(
            gemm_softmax(*shape),
            hardware.load("edge"),
            strategies=("fused-gemm-distsm",),
            options=strategies.get("gemm-softmax", "fused-gemm-distsm").chosen({}),
            objective="edp",
        )
        assert found.proven
        assert got["latency_cycles"] * got["energy_pj"] == pytest.approx(found.value, rel=1e-9)


@pytest.mark.slow
def test_the_text_says_what_was_found_and_where_it_is(cli, done):
    record = _json(cli("codesign", "show", done.out, "--json"))["records"][TASK]
    edp, start = record["points"][0], record["start"]
    text = done.text
    assert f"{edp['improvement']:.3f}x" in text
    assert f"{edp['latency_cycles']:,.0f}" in text
    assert f"{start['area_mm2']:.1f}" in text
    for name, before in start["numbers"].items():
        changed = any(p["numbers"][name] != before for p in record["points"])
        lines = [line for line in text.splitlines() if line.startswith(f"  {name} ")]
        assert len(lines) == changed
        assert not changed or before in lines[0]
    for bound in edp["at_bounds"]:
        name, _, rest = bound.partition(": ")
        mark = rest.split(" is its ")[1].split()[0]
        value = edp["numbers"][name]
        same = "same" if value == start["numbers"][name] else value
        assert f"{same} ({mark})" in text or f"{name} ({mark})" in text
    assert f"{len(record['front'])} machines" in text
    assert f"{record['hypervolume']:.4f}" in text
    (file,) = (done.out / "designs").glob("*.json")
    assert str(file) in text
    with (done.out / "results.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert [row["kind"] for row in rows] == ["best"] * 2 + ["seed"] * 16
    assert cli("codesign", "show", done.out).stdout == text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_figure_is_written_whole(cli, done, tmp_path, kind: str):
    file = tmp_path / f"found.{kind}"
    result = cli("codesign", "show", done.out, "--figure", file, "--task", TASK)
    assert result.exit_code == 0
    assert f"figure: {file}" in result.stdout
    content = file.read_bytes()
    assert content.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind])
    if kind == "svg":
        for part in ("area [mm²]", "joint evaluations", "improvement over the start", "25 → 50"):
            assert part.encode() in content
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.slow
def test_a_finished_folder_is_taken_up_as_it_is(cli, done, monkeypatch):
    def begun(*_: Any, **__: Any) -> None:
        raise AssertionError("a task that is finished was begun again")

    monkeypatch.setattr(sweep_module, "prepare", begun)
    before = {path: path.read_bytes() for path in done.out.rglob("*") if path.is_file()}
    result = cli(*done.words, "--resume")
    assert (result.exit_code, result.stdout) == (0, done.text)
    assert {p: p.read_bytes() for p in done.out.rglob("*") if p.is_file()} == before


@pytest.mark.slow
def test_a_folder_is_not_overwritten_nor_mixed(refused, done):
    message = refused(*done.words)
    assert "holds a sweep; resume it (--resume)" in message
    message = refused(*done.words, "--resume", "--key", "1")
    assert f"task '{TASK}': key was 0, is 1" in message
    message = refused(*done.words, "--resume", "--across", "total")
    assert "across was" in message


# -- folders that are half done --------------------------------------------------------------------


def _point(target: str, improvement: float, lanes: str, at_bounds: list[str]) -> dict[str, Any]:
    return {
        "target": target,
        "improvement": improvement,
        "latency_cycles": 2000.0 / improvement,
        "energy_pj": 3e6,
        "area_mm2": 100.0,
        "numbers": {"lanes": lanes, "cores": "2 count"},
        "numbers_base": {"lanes": float(lanes.split()[0]), "cores": 2.0},
        "budgets": {"area": {"used": 100.0, "limit": 120.0, "unit": "mm2", "binds": True}},
        "at_bounds": at_bounds,
        "remarks": [],
        "workloads": {},
    }


def _record(targets: int = 1) -> dict[str, Any]:
    points = [
        _point(f"t{n}", 2.0, "64 count", ["lanes: 64 count is its upper bound"])
        for n in range(targets)
    ]
    return {
        "workloads": ["one"],
        "points": points,
        "start": _point("start", 1.0, "16 count", []),
        "front": [{"latency_cycles": 1000.0, "energy_pj": 3e6, "area_mm2": 100.0, "numbers": {}}],
        "hypervolume": 0.25,
        "method": "gradient",
        "proven": False,
        "stopped": "budget",
        "evaluated": 640.0,
        "history": [[0.0, [1.0] * targets], [320.0, [2.0] * targets]],
        "seeds": [{"target": "t0", "improvement": math.inf}],
        "settings": {"across": "geomean", "key": 0, "seeds": 8, "steps": 5, "space": "edge"},
    }


@pytest.fixture
def half(tmp_path) -> Path:
    """Three tasks: one finished, one without a machine, one missing."""
    out = tmp_path / "half"
    (out / "designs").mkdir(parents=True)
    tasks = ("a on edge", "b on edge", "c on edge")
    (out / "settings.json").write_text(json.dumps({name: {} for name in tasks}))
    none = {"infeasible": "gb holds too little", "settings": {}}
    for name, record in zip(tasks, (_record(), none), strict=False):
        text = json.dumps({"task": name, "record": record})
        (out / "designs" / f"{name[0]}.json").write_text(text)
    return out


def test_a_folder_that_is_half_done_is_shown(cli, half):
    shown = cli("codesign", "show", half)
    assert shown.exit_code == 0
    for part in (
        "2 of 3 tasks finished",
        "NO MACHINE FOUND: gb holds too little",
        "2.000x",
        "64 count (upper)",
        "as in the start: cores",
        "area (100 of 120 mm2)",
        "the budget is spent",
        "hypervolume 0.2500",
    ):
        assert part in shown.stdout
    data = _json(cli("codesign", "show", half, "--json"))
    assert (data["finished"], len(data["tasks"])) == (2, 3)
    assert data["records"]["a on edge"]["seeds"][0]["improvement"] is None  # JSON has no infinity
    one = _json(cli("codesign", "show", half, "--task", "a on edge", "--json"))
    assert list(one["records"]) == ["a on edge"]


def test_many_targets_are_drawn_and_counted(cli, half, tmp_path):
    text = json.dumps({"task": "a on edge", "record": _record(20)})
    (half / "designs" / "a.json").write_text(text)
    file = tmp_path / "many.svg"
    result = cli("codesign", "show", half, "--task", "a on edge", "--figure", file)
    assert "and 8 more targets" in result.stdout
    content = file.read_text(encoding="utf-8")
    assert "14 other targets" in content
    assert "t5: 2.00×" in content
    assert "t6: 2.00×" not in content


def test_folders_and_tasks_that_cannot_be_shown_are_refused(refused, half, tmp_path):
    assert "no settings.json" in refused("codesign", "show", tmp_path)
    assert "no settings.json" in refused("codesign", "show", tmp_path / "nowhere")
    assert "did you mean a on edge" in refused("codesign", "show", half, "--task", "a on edg")
    figure = ("--figure", tmp_path / "f.png")
    assert "choose one with --task" in refused("codesign", "show", half, *figure)
    assert "no finished task" in refused("codesign", "show", half, "--task", "c on edge", *figure)
    assert "gb holds too" in refused("codesign", "show", half, "--task", "b on edge", *figure)
    assert ".png, .svg, .pdf" in refused("codesign", "show", half, "--figure", "f.jpg")
    (half / "designs" / "a.json").write_text("{")
    assert "is no record of a co-design" in refused("codesign", "show", half)
    (half / "settings.json").write_text("{")
    assert "settings.json cannot be read" in refused("codesign", "show", half)
    assert not list(tmp_path.glob("f.*"))


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ("edge-smal",),
            ("search space name: got the unknown name edge-smal", "did you mean edge-small"),
        ),
        (("--workloads", "thre"), ("suite name: got the unknown name thre", "did you mean three")),
        (("--workloads", "three", "--workloads", "three"), ("a suite named three before",)),
        (("--objective", "time"), ("--objective: got 'time'", "latency, energy, edp, edap")),
        (("--objective", "edp", "--objective", "edp"), ("--objective edp: got it twice",)),
        (("--pareto", "0"), ("--pareto: got '0'", "whole number")),
        (("--pareto", "5000"), ("--pareto: got 5000", "at most 1024")),
        (("--budget", "area"), ("--budget: got 'area'", "NAME=VALUE")),
        (("--budget", "area=little"), ("--budget area: got 'little'", "above 0")),
        (("--budget", "arae=400"), ("--budget arae: edge-small has no", "did you mean area")),
        (("--ladder", "area=300,,400"), ("--ladder area: got ''", "above 0")),
        (("--ladder", "area=300,300"), ("--ladder area", "each value once")),
        (("--ladder", "area=300", "--budget", "area=200"), ("leave one out",)),
        (("--across", "mean"), ("--across: got 'mean'", "geomean, total, worst")),
        (("--method", "magic"), ("--method: got 'magic'", "nested")),
        (("--tiles", "odd"), ("--tiles: got 'odd'", "padded, divisors, any")),
        (("--seeds", "0"), ("--seeds: got '0'", "whole number")),
        (("--steps", "1.5"), ("--steps: got '1.5'", "whole number")),
        (("--chains", "none"), ("--chains: got 'none'", "whole number")),
        (("--evaluations", "-1"), ("--evaluations: got '-1'", "whole number")),
        (("--time-limit", "soon"), ("--time-limit: got 'soon'", "seconds above 0")),
        (("--key", "-1"), ("--key: got '-1'", "whole number")),
        (("--strategy", "softmax=x"), ("--strategy softmax", "gemm-softmax")),
        (("--strategy", "attention=unfuse"), ("got 'unfuse'", "did you mean unfused")),
    ],
)
def test_bad_words_are_one_message_and_write_nothing(refused, tmp_path, words, parts):
    out = tmp_path / "out"
    message = refused("codesign", "edge-small", "--out", out, *words)
    assert message.count("\n") == 1
    for part in parts:
        assert part in message
    assert not out.exists()


def test_the_folder_must_be_named(refused):
    assert "--out: missing" in refused("codesign", "edge-small")


def test_budgets_that_no_machine_keeps_end_with_1(cli, tmp_path):
    out = tmp_path / "out"
    result = cli("codesign", "edge-small", "--out", out, "--budget", "area=1")
    assert result.exit_code == 1
    assert "infeasible: " in result.stderr
    assert "budgets.area: the smallest machine takes" in result.stderr
    assert not out.exists()


def test_a_task_without_a_machine_ends_with_1(cli, half, tmp_path, monkeypatch):
    stopped = SimpleNamespace(stopped="complete")
    monkeypatch.setattr(optimize, "sweep", lambda *_, **__: stopped)
    result = cli("codesign", "edge-small", "--out", half)
    assert result.exit_code == 1
    assert "infeasible: b on edge: gb holds too little" in result.stderr
    assert "2.000x" in result.stdout


def test_the_words_reach_the_sweep(cli, half, monkeypatch):
    got: dict[str, Any] = {}

    def sweep(workloads: Any, spaces: Any, **asked: Any) -> SimpleNamespace:
        got.update(asked, workloads=workloads, spaces=[space.name for space in spaces])
        return SimpleNamespace(stopped="interrupted")

    monkeypatch.setattr(optimize, "sweep", sweep)
    words = ("--objective", "edap", "--pareto", 2, "--budget", "cores=32", "--time-limit", 9)
    more = ("--ladder", "area=300,400", "--key", 3, "--derive-buffers", "--method", "local")
    ways = (*WAY, "--strategy", "gemm-softmax=unfused")
    result = cli("codesign", "edge", "edge-9", "--out", half, *words, *more, *ways)
    assert result.exit_code == 130
    assert "interrupted; resume with --resume" in result.stderr
    assert got["spaces"] == ["edge", "edge-9"]
    assert list(got["workloads"]) == ["three"]
    assert got["objectives"] == ["edap", {"latency": 1.0}, {"energy": 1.0}]
    assert got["budgets"] == [{"cores": 32.0, "area": 300.0}, {"cores": 32.0, "area": 400.0}]
    assert got["strategies"] == {"gemm-softmax": ["fused-gemm-distsm", "unfused"]}
    assert got["weights"] == {"three": (1.0, 1.0, 1.0)}
    chosen = {"key": 3, "derive_buffers": True, "method": "local", "time_limit_s": 9.0}
    rest = {"seeds": 256, "steps": 60, "chains": 8, "evaluations": None, "resume": False}
    assert (chosen | rest).items() <= got.items()


# -- Ctrl-C ----------------------------------------------------------------------------------------


@pytest.fixture
def process(tmp_path) -> Iterator[subprocess.Popen[str]]:
    """A long run in a process of its own."""
    program = "from jaxcomet.cli.main import main; main()"
    words = (*_words(tmp_path), "--seeds", "64", "--steps", "100000")
    started = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAXCOMET_CHECK_ANNOTATIONS": "0"},
    )
    yield started
    if started.poll() is None:
        started.kill()
        started.communicate()


def test_a_ctrl_c_that_is_lost_is_sent_again():
    class Loud:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def wait() -> None:
        with codesign._no_interrupt_lost():
            loud = Loud()
            del loud  # Python drops what is raised here
            time.sleep(10.0)

    with pytest.raises(KeyboardInterrupt):  # it would else end by itself
        wait()


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(cli, process, tmp_path):
    settings = tmp_path / "out" / "settings.json"
    until = time.monotonic() + 60.0
    while not settings.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert settings.exists()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130, message
    assert message.strip().endswith("interrupted; resume with --resume")
    assert "Traceback" not in message
    assert "0 of 1 tasks finished" in cli("codesign", "show", tmp_path / "out").stdout
