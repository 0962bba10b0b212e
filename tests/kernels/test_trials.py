"""Cases: where their arguments lie, what they are compared with, and how errors are found."""

import dataclasses
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxcomet.kernels import trials
from jaxcomet.kernels.catalog import KERNELS
from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.trials import Case
from tests.kernels.harness import mesh
from tests.tolerance import tolerance

pytestmark = pytest.mark.multi_device

GEMM = Case(
    kernel=KERNELS["gemm-softmax"],
    sizes={"m": 8, "n": 6, "k": 4},
    mesh=mesh("2x4"),
    axis={"m": "y", "n": "x"},
)
CAUSAL = Case(
    kernel=KERNELS["attention"],
    sizes={"heads": 2, "q": 24, "kv": 30, "head_dim": 4},
    options={"causal": True},
    gradient=True,
)


@pytest.fixture(autouse=True, scope="module")
def unoptimized() -> Iterator[None]:
    """Programs without most optimizations, which take longer than these cases."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def test_arguments_lie_on_the_mesh_as_the_split_asks():
    (arguments,) = trials.program(GEMM).arguments
    for name, spec in (("a", PartitionSpec("y", None)), ("b", PartitionSpec(None, "x"))):
        wanted = NamedSharding(mesh("2x4"), spec)
        assert arguments[name].sharding.is_equivalent_to(wanted, 2)


def test_axes_that_do_not_divide_lie_whole_and_are_named():
    program = trials.program(dataclasses.replace(GEMM, sizes={"m": 7, "n": 6, "k": 4}))
    assert program.undivided == ("a axis 0 of 7 over 4",)
    assert program()[0].shape == (7, 6)


def test_the_bare_product_is_the_product():
    (arguments,) = (program := trials.bare_product(GEMM)).arguments
    a, b = (np.asarray(arguments[name], np.float64) for name in "ab")
    np.testing.assert_allclose(program()[0], a @ b, rtol=1e-5)
    with pytest.raises(KernelError, match="no product"):
        trials.bare_product(CAUSAL)


def test_rows_of_a_small_case_are_all_and_of_a_large_one_few_and_spread(monkeypatch):
    np.testing.assert_array_equal(GEMM.rows(), np.arange(8))
    monkeypatch.setattr(trials, "REFERENCE_ELEMENTS", 5 * 6)
    np.testing.assert_array_equal(GEMM.rows(), [0, 2, 4, 5, 7])  # 0, 1.75, 3.5, 5.25, 7
    monkeypatch.setattr(trials, "REFERENCE_FLOP", 1.0)
    np.testing.assert_array_equal(GEMM.rows(), [0])


def test_errors_are_found_on_the_rows_that_have_a_reference(monkeypatch):
    # 7 of 24 queries: each row of scores has 2 heads x 30 keys
    monkeypatch.setattr(trials, "REFERENCE_ELEMENTS", 7 * 60)
    rows = CAUSAL.rows()
    assert len(rows) == 7
    result = trials.program(CAUSAL)()
    found = trials.deviations(CAUSAL, result)
    assert set(found) == {"result", "query", "key", "value"}
    assert all(one.relative < tolerance("float32", 30) for one in found.values())
    assert all(one.largest > 0.1 for one in found.values())
    # Queries without a reference have no weight, so their gradient is 0.
    value, gradients = jax.tree.map(np.array, result)
    others = np.setdiff1d(np.arange(24), rows)
    assert not gradients["query"][:, others].any()
    assert gradients["query"][:, rows].any(axis=(0, 2, 3)).all()

    value[0, rows[3], 1, 2] += 0.5
    gradients["key"][0, 0, 0, 0] = np.nan
    spoiled = trials.deviations(CAUSAL, jax.tree.map(jnp.asarray, (value, gradients)))
    assert spoiled["result"].max_abs_error == pytest.approx(0.5, rel=1e-4)
    assert spoiled["key"].max_abs_error == math.inf
    assert spoiled["query"] == found["query"]


def test_variants_name_every_strategy_and_baseline():
    assert set(trials.variants(GEMM)) == {*GEMM.kernel.strategies, "auto", "one-device", "matmul"}
    assert set(trials.variants(CAUSAL)) == {
        *CAUSAL.kernel.strategies,
        "one-device",
        "dot-product-attention",
    }
    single = dataclasses.replace(GEMM, kernel=KERNELS["distributed-softmax"], sizes={})
    assert set(trials.variants(single)) == {"shard_map", "auto", "one-device"}


def test_variants_compute_the_same():
    even = dataclasses.replace(CAUSAL, sizes={"q": 8, "heads": 2, "head_dim": 4}, gradient=False)
    for label in ("one-device", "dot-product-attention"):
        found = trials.deviations(even, trials.variants(even)[label]()())
        assert found["result"].relative < tolerance("float32", 8)


def test_what_means_something_else_is_refused():
    with pytest.raises(KernelError, match="first key"):
        trials.dot_product_attention(CAUSAL)
    with pytest.raises(KernelError, match="something else"):
        trials.dot_product_attention(GEMM)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(KERNELS))
def test_every_kernel_is_right_on_two_axes(name: str):
    kernel = KERNELS[name]
    split = kernel.split_of(None)
    other = next(d for d in split.dimensions if d != split.default)
    case = Case(
        kernel=kernel,
        sizes={size.name: 13 for size in kernel.sizes},
        mesh=mesh("2x4"),
        axis={split.default: "x", other: "y"},
        gradient=True,
    )
    found = trials.deviations(case, trials.program(case)())
    assert set(found) == {"result", *(one.name for one in kernel.operands if one.differentiable)}
    for one in found.values():
        assert one.relative < tolerance("float32", 13)
