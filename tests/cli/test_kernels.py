"""`jaxcomet kernels`, in this process with its 8 emulated devices, and in one of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcomet
from jaxcomet.kernels.catalog import KERNELS
from tests.tolerance import tolerance

PACKAGE = Path(jaxcomet.__file__).parents[1]  # the tree, or where it is installed
SMALL = ("--m", 8, "--n", 16, "--k", 4)


def _json(cli, *words: object) -> dict:
    result = cli("kernels", *words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("words", [(), ("list",), ("run",), ("bench",)], ids=" ".join)
def test_examples_stand_in_lines_of_their_own(cli, words: tuple[str, ...]):
    result = cli("kernels", *words, "--help")
    assert result.exit_code == 0
    shown = [x for x in result.stdout.splitlines() if x.startswith("    jaxcomet kernels")]
    assert shown, result.stdout


def test_the_list_has_every_kernel_with_strategies_and_dimensions(cli):
    shown = cli("kernels", "list").stdout
    for name, kernel in KERNELS.items():
        assert name in shown
        assert all(strategy in shown for strategy in kernel.strategies)
    assert "batch heads* queries keys sequence" in shown
    listed = {one["name"]: one for one in _json(cli, "list")}
    assert set(listed) == set(KERNELS)
    ring = listed["attention"]["strategies"]["ring"]
    assert ring == {"dimensions": ["batch", "heads", "sequence"], "default_dimension": "sequence"}
    assert listed["attention"]["default_sizes"]["kv_heads"] == 8


def test_a_run_reports_error_time_collectives_and_memory(cli):
    found = _json(cli, "run", "gemm-softmax", *SMALL, "--grad", "--rounds", 2)
    assert found["strategy"] == "fused-gemm-distsm"
    assert (found["devices"], found["mesh"], found["split"]) == (8, {"x": 8}, {"n": ["x"]})
    assert set(found["error"]["arrays"]) == {"result", "a", "b"}
    assert found["error"]["rows"] == found["error"]["rows_total"] == 8
    for one in found["error"]["arrays"].values():
        assert one["relative_error"] <= tolerance("float32", 16)
        units = one["relative_error_unit_roundoffs"]
        assert units == pytest.approx(one["relative_error"] * 2**24)
    assert len(found["time"]["wall_s"]) == len(found["time"]["cpu_s"]) == 2
    assert found["time"]["min_wall_s"] == min(found["time"]["wall_s"])
    # Maximum and sum of 8 rows from each of 8 devices, 4 bytes each.
    gathers = [one for one in found["collectives"] if one["kind"] == "all-gather"]
    assert [(one["count"], one["bytes"], one["dtype"]) for one in gathers] == [(1, 512, "f32")]
    # a whole, an eighth of b, and the cotangent of an eighth of the result
    assert found["memory"]["argument_bytes"] == 4 * (8 * 4 + 4 * 16 // 8 + 8 * 16 // 8)


def test_a_run_shows_what_it_found(cli):
    words = ("--mesh", "2x4", "--axis", "m=y,n=x", "--m", 7, "--n", 8, "--dtype", "bfloat16")
    shown = cli("kernels", "run", "distributed-softmax", *words, "--rounds", 1).stdout
    for words in (
        "8 cpu devices, mesh 2x4 (x, y), m over y, n over x",
        "x axis 0 of 7 over 4 devices does not divide",
        "float64 reference, all rows",
        "unit roundoff of bfloat16: 0.00391",
        "Time in ms, 1 runs",
        "all-gather",
        "temporary",
    ):
        assert words in shown


def test_float64_is_computed_in_float64(cli):
    found = _json(
        cli, "run", "distributed-layernorm", "--m", 2, "--n", 8, "--dtype", "float64", "--rounds", 1
    )
    assert found["error"]["arrays"]["result"]["relative_error"] <= tolerance("float64", 8)


def test_rows_without_a_reference_are_stated(cli, monkeypatch):
    monkeypatch.setattr("jaxcomet.kernels.trials.REFERENCE_ELEMENTS", 3 * 8)
    shown = cli("kernels", "run", "distributed-rmsnorm", "--m", 5, "--n", 8, "--rounds", 1).stdout
    assert "3 of 5 rows, evenly spread" in shown


def test_a_comparison_has_ratios_to_its_baseline_and_says_what_cannot_run(cli):
    words = ("--heads", 1, "--q", 16, "--head-dim", 4, "--causal", "--axis", "keys=x")
    variants = ("--against", "flash,ring,auto,dot-product-attention", "--rounds", 2)
    found = _json(cli, "bench", "attention", *words, *variants)
    assert found["baseline"] == "auto"
    assert list(found["variants"]) == ["auto", "flash", "dot-product-attention"]
    assert "got 'keys'; expected batch or heads or sequence" in found["not_run"]["ring"]
    times = {name: one["time"] for name, one in found["variants"].items()}
    assert times["auto"]["wall_ratio"] == {"lower": 1.0, "median": 1.0, "upper": 1.0}
    ratios = [times["flash"]["cpu_s"][i] / times["auto"]["cpu_s"][i] for i in range(2)]
    assert times["flash"]["cpu_ratio"]["median"] == pytest.approx(sum(ratios) / 2)
    assert found["options"]["causal"] is True


def test_a_comparison_is_shown_as_a_table(cli):
    words = ("--against", "fused-gemm-distsm,matmul", "--baseline", "matmul", "--rounds", 1)
    shown = cli("kernels", "bench", "gemm-softmax", *SMALL, *words, columns=200).stdout
    assert "base matmul" in shown
    assert "1 all-gather" in shown
    assert "1.00×" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "gemm-softmx"), "KERNEL: got 'gemm-softmx'; did you mean gemm-softmax"),
        (("run", "gemm-softmax", "--strategy", "ring"), "strategy: got 'ring'; expected fused"),
        (("run", "gemm-softmax", "--axis", "v=x"), "got 'v'; expected m or n or k"),
        (("run", "gemm-softmax", "--axis", "n=z"), "axis of n: got 'z'; expected x"),
        (("run", "gemm-softmax", "--axis", "n=x,n=x"), "--axis: got 'n=x,n=x'; expected e.g."),
        (("run", "gemm-softmax", "--axis", "n=x,m"), "--axis: got 'n=x,m'; expected e.g."),
        (("run", "gemm-softmax", "--axis", "n=x,m=x"), "expected each mesh axis once"),
        (("run", "gemm-softmax", "--m", "0"), "--m: got '0'; expected a whole number from 1"),
        (("run", "gemm-softmax", "--m", "big"), "--m: got 'big'"),
        (("run", "gemm-softmax", "--q", "4"), "--q: no size of gemm-softmax; it has --m, --n and"),
        (("run", "gemm-softmax", "--causal"), "--causal: no option of gemm-softmax; it has"),
        (("run", "gemm-softmax", "--dtype", "int8"), "--dtype: got 'int8'; expected float32 or"),
        (("run", "gemm-softmax", "--mesh", "2x0"), "--mesh: got '2x0'; expected"),
        (("run", "gemm-softmax", "--mesh", "2x4", "--devices", "6"), "2x4, 8 devices"),
        (("run", "gemm-softmax", "--devices", "0"), "--devices: got 0; expected 1 to"),
        (("run", "gemm-softmax", "--devices", "3"), "emulate: got 8 cpu devices; expected 3"),
        (("run", "gemm-softmax", "--real", "--devices", "9"), "9 devices; there are 8"),
        (("run", "gemm-softmax", "--rounds", "0"), "--rounds: got 0; expected at least 1"),
        (("run", "gemm-softmax", "--seed", "-1"), "--seed: got -1; expected at least 0"),
        (("run", "gemm-softmax", "--reduction", "both"), "expected combined or separate"),
        (("run", "gemm-softmax", "--partitioner", "me"), "--partitioner: got 'me'"),
        (("run", "cross-entropy", "--smoothing", "1.5"), "expected a number from 0 below 1"),
        (("run", "attention", "--strategy", "ring", "--axis", "keys=x"), "got 'keys'"),
        (("bench", "gemm-softmax", "--against", "autp"), "--against: got 'autp'; did you mean"),
        (("bench", "gemm-softmax", "--baseline", "flash"), "--baseline: got 'flash'; known:"),
    ],
)
def test_words_that_cannot_be_used_are_refused(refused, words: tuple[str, ...], message: str):
    assert message in refused("kernels", *words)


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    """Python in a process that knows nothing of our emulated devices."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
    path = os.pathsep.join(part for part in (str(PACKAGE), os.environ.get("PYTHONPATH")) if part)
    return subprocess.run(
        [sys.executable, *words],
        env={**inherited, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_devices_asked_for_are_there_before_jax_starts():
    # The import of the command line must not start JAX, or the number would be settled.
    words = "'kernels', 'run', 'distributed-softmax', '--m', '5', '--n', '6', '--devices', '3', "
    script = (
        "from jaxcomet._compat import backends_started\n"
        "from jaxcomet.cli.main import app\n"
        "assert not backends_started()\n"
        f"app([{words} '--rounds', '1', '--json'])\n"
    )
    result = _python("-c", script)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["mesh"] == {"x": 3}
    assert [one["group_size"] for one in found["collectives"]] == [3]
    assert found["error"]["arrays"]["result"]["relative_error"] <= tolerance("float32", 6)
