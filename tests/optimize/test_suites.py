"""Suite files: those that come along, and one message for each thing that is wrong."""

import re
from pathlib import Path

import pytest

from jaxcomet import attention, gemm_layernorm, gemm_softmax
from jaxcomet.hardware import load
from jaxcomet.optimize import SearchError
from jaxcomet.optimize.joint.suite import make_suite
from jaxcomet.optimize.joint.suites import SuiteFileError, load_suite, suite_names

GOOD = """
name = "one"
description = "a single workload"

[[workload]]
name = "first"
operation = "attention"
heads = 8
kv_heads = 2
q = 64
head_dim = 32
options = { causal = true }
weight = 2.5

[[workload]]
name = "second"
operation = "gemm"
M = 4
N = 8
K = 16
"""


def _file(folder: Path, text: str) -> Path:
    file = folder / "suite.toml"
    file.write_text(text, encoding="utf-8")
    return file


def _macs(name: str) -> dict[str, float]:
    """Multiplications of the matrix products of each workload, from the sizes in the file."""
    found = {}
    for label, op in load_suite(name).workloads.items():
        sizes = {dim: float(value) for dim, value in op.sizes.items()}  # pyright: ignore[reportArgumentType]
        product = sizes["M"] * sizes["N"] * sizes["K"]
        found[label] = product * (2 * sizes["H"] if op.name == "attention" else 1)
    return found


def test_the_default_suite_is_one_of_each_fused_operation():
    suite = load_suite("three")
    assert suite.weights == (1.0, 1.0, 1.0)
    assert suite.workloads == {
        "gemm-softmax": gemm_softmax(512, 1024, 128),
        "gemm-layernorm": gemm_layernorm(512, 1024, 128),
        "attention": attention(1, 12, 1024, 1024, 64),
    }


def test_models_have_the_sizes_of_their_papers():
    # multiplications by hand: heads x queries x keys x (128 + 128), and M x N x K
    assert _macs("llama-3-8b") == {
        "prefill attention": 32 * 2048 * 2048 * 256,
        "decode attention": 32 * 1 * 16384 * 256,
        "output projection and norm": 2048 * (32 * 128) ** 2,
    }
    assert _macs("gpt-3-175b") == {
        "attention": 96 * 2048 * 2048 * 256,
        "output projection and norm": 2048 * (96 * 128) ** 2,
        "decode attention": 96 * 1 * 2048 * 256,
    }
    llama = load_suite("llama-3-8b").workloads
    assert float(llama["decode attention"].sizes["H"]) == 8.0  # heads of keys and values  # pyright: ignore[reportArgumentType]
    assert llama["output projection and norm"] == gemm_layernorm(2048, 4096, 4096, norm="rms")
    assert llama["prefill attention"] == attention(1, 32, 2048, 2048, 128, kv_heads=8, causal=True)


@pytest.mark.parametrize("name", suite_names())
def test_every_workload_that_comes_along_can_be_mapped(name: str):
    given = load_suite(name)
    suite = make_suite(given.workloads, load("edge"), weights=given.weights)
    assert [item.name for item in suite.items] == list(given.workloads)
    assert all(suite.choices)


def test_a_file_is_read_with_options_defaults_and_weights(tmp_path):
    suite = load_suite(_file(tmp_path, GOOD))
    assert (suite.name, suite.weights) == ("one", (2.5, 1.0))
    first = attention(1, 8, 64, 64, 32, kv_heads=2, causal=True)
    assert suite.workloads["first"] == first
    assert load_suite(str(tmp_path / "suite.toml")) == suite


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('name = "one"', "", ("suite.toml: name: got nothing", "add the key")),
        ('name = "one"', "name = 1", ("suite.toml: name: got 1;", "a name")),
        ('description = "a single workload"', "", ("description: got nothing",)),
        ('name = "one"', 'nane = "one"', ("unknown key nane", "did you mean name?")),
        ('"attention"', '"atention"', ('workload.1.operation: got "atention"', "mean attention")),
        ('operation = "gemm"', "", ("workload.2.operation: got nothing", "gemm-softmax")),
        ("heads = 8\n", "", ("workload.1.heads: got nothing", "heads, q, head_dim")),
        ("heads = 8\n", "heads = 0\n", ("workload.1.heads: got 0", "whole number from 1")),
        ("heads = 8\n", "heads = 8.5\n", ("workload.1.heads: got 8.5", "whole number")),
        ("heads = 8\n", "heads = true\n", ("workload.1.heads: got true", "whole number")),
        ("kv_heads = 2", "kv_heads = 3", ("workload.1: got sizes that attention cannot have", "3")),
        ("kv_heads = 2", "kv_head = 2", ("unknown key kv_head", "did you mean kv_heads")),
        ("M = 4", "M = 4\nq = 3", ("workload.2.q: got unknown key q", "gemm has no such size")),
        ("causal = true", "casual = true", ("options.casual: got unknown key", "mean causal?")),
        ("causal = true", "causal = 1", ("workload.1.options.causal: got 1", "true or false")),
        ("{ causal = true }", "true", ("workload.1.options: got true", "a table")),
        ("weight = 2.5", "weight = 0", ("workload.1.weight: got 0", "above 0")),
        ("weight = 2.5", "weight = inf", ("workload.1.weight: got inf", "above 0")),
        ("weight = 2.5", "weight = true", ("workload.1.weight: got true", "above 0")),
        ('"second"', '"first"', ("workload.2.name", "which workload.1 has as well", "rename")),
        ('name = "second"', "", ("workload.2.name: got nothing",)),
        ("[[workload]]", "[[workloads]]", ("unknown key workloads", "mean workload?")),
        ("= 2.5", "= = 2.5", ("line 13: got no valid TOML", "line 13")),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(tmp_path, old: str, new: str, parts):
    assert old in GOOD
    with pytest.raises(SuiteFileError) as caught:
        load_suite(_file(tmp_path, GOOD.replace(old, new)))
    message = str(caught.value)
    for part in parts:
        assert part in message
    assert isinstance(caught.value, SearchError)
    for line in message.splitlines():
        assert re.search(r"suite\.toml: .+: got .+; expected .+; .+", line), line


def test_all_problems_come_together(tmp_path):
    text = GOOD.replace("M = 4", "M = -4").replace("weight = 2.5", "weight = -1")
    with pytest.raises(SuiteFileError) as caught:
        load_suite(_file(tmp_path, text))
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["workload.1.weight", "workload.2.M"]


def test_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(
        SuiteFileError, match=r"thre: suite name: got the unknown name thre; .* mean three\?"
    ):
        load_suite("thre")
    with pytest.raises(SuiteFileError, match="got a folder"):
        load_suite(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(SuiteFileError, match="not UTF-8"):
        load_suite(tmp_path / "bytes.toml")
    with pytest.raises(SuiteFileError, match="workload: got nothing"):
        load_suite(_file(tmp_path, 'name = "a"\ndescription = "b"'))
