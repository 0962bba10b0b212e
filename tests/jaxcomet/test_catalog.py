"""The catalog of workloads: names, sizes, options, and what is refused."""

import inspect

import numpy as np
import pytest

from jaxcomet import WorkloadError, attention, gemm, gemm_layernorm, gemm_softmax, strategies
from jaxcomet.operations.catalog import CATALOG, find


@pytest.mark.parametrize("name", CATALOG)
def test_every_entry_has_strategies_and_a_builder_that_takes_what_it_says(name: str):
    entry = find(name)
    assert strategies.available(name)
    taken = inspect.signature(entry.builder).parameters
    assert {s.name for s in entry.sizes} | {o.name for o in entry.options} <= set(taken)
    sizes = dict.fromkeys(entry.required, 4)
    assert entry.build(sizes).name == name
    pieces = "".join(entry.form).format(**entry.filled(sizes))
    assert "4" in pieces


def test_an_entry_builds_what_the_builder_builds():
    assert find("gemm").build({"M": 2, "N": 3, "K": 4}) == gemm(2, 3, 4)
    assert find("gemm-softmax").build({"M": 2, "N": 3, "K": 4}) == gemm_softmax(2, 3, 4)
    rms = find("gemm-layernorm").build({"M": 2, "N": 3, "K": 4}, {"norm": "rms", "affine": True})
    assert rms == gemm_layernorm(2, 3, 4, norm="rms", affine=True)
    masked = find("attention").build({"heads": 4, "q": 8, "head_dim": 2}, {"causal": True})
    assert masked == attention(1, 4, 8, 8, 2, causal=True)


def test_sizes_that_are_left_out_follow_others():
    filled = find("attention").filled({"heads": 12, "q": 256, "head_dim": 64})
    assert filled == {
        "batch": 1.0,
        "heads": 12,
        "kv_heads": 12,
        "q": 256,
        "kv": 256,
        "head_dim": 64,
        "value_dim": 64,
    }


def test_arrays_of_sizes_are_a_batch():
    q = np.array([1.0, 16.0])
    op = find("attention").build({"heads": 4, "q": q, "head_dim": 8})
    assert np.asarray(op.sizes["N"]).tolist() == [1.0, 16.0]


def test_options_have_defaults_and_words():
    entry = find("gemm-layernorm")
    assert entry.chosen({}) == {"norm": "layer", "affine": False}
    assert entry.changed({}) == []
    assert entry.changed({"affine": True}) == ["affine"]


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: find("gemm-softmaks"), "did you mean gemm-softmax"),
        (lambda: find("x"), "known: gemm, gemm-softmax"),
        (lambda: find("gemm").build({"M": 1, "N": 1}), "got no K; expected M, N, K"),
        (lambda: find("gemm").filled({"q": 1}), "got size 'q'; its sizes are M, N, K"),
        (lambda: find("gemm").chosen({"norm": "rms"}), "its options are none"),
        (lambda: find("gemm-layernorm").chosen({"norm": "x"}), "expected layer or rms"),
        (lambda: find("attention").chosen({"causal": "yes"}), "expected true or false"),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_known(action, message: str):
    with pytest.raises(WorkloadError, match=message):
        action()
