"""The catalogue says the same as the kernels themselves."""

import importlib
import inspect
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcomet.kernels
from jaxcomet.kernels.catalog import KERNELS, find
from jaxcomet.kernels.description import Kernel
from jaxcomet.kernels.errors import KernelError
from tests.kernels.harness import mesh

# Takes weights that were folded beforehand, which are no arrays to be drawn.
NOT_LISTED = {"normalized-linear"}

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=list(KERNELS))


def _small(kernel: Kernel) -> dict[str, jnp.ndarray]:
    return kernel.arguments({size.name: 2 for size in kernel.sizes}, "float32")


def _allowed(message: str) -> set[str]:
    """The names that a refusal allows: "... expected a or b"."""
    return set(message.partition("expected ")[2].split(" or "))


def test_every_public_function_that_takes_a_mesh_is_listed():
    found = set()
    for module in pkgutil.iter_modules(jaxcomet.kernels.__path__):
        if not module.ispkg or module.name == "layers":  # classes over these functions
            continue
        package = importlib.import_module(f"jaxcomet.kernels.{module.name}")
        for name, value in vars(package).items():
            if inspect.isfunction(value) and "partitioner" in inspect.signature(value).parameters:
                found.add(name.replace("_", "-"))
    assert {"gemm-softmax", "attention"} <= found
    assert found - NOT_LISTED == set(KERNELS)


@every_kernel
def test_the_automatic_form_is_refused_on_explicit_axes(kernel: Kernel):
    mesh = jax.make_mesh((2,), ("x",))
    with pytest.raises(KernelError, match="partitioner: got 'auto' with a mesh of explicit axis"):
        kernel.function(**_small(kernel), mesh=mesh, partitioner="auto")


@every_kernel
def test_arguments_and_options_are_parameters_of_function_and_reference(kernel: Kernel):
    parameters = inspect.signature(kernel.function).parameters
    assert list(parameters)[: len(kernel.operands)] == [one.name for one in kernel.operands]
    assert {option.parameter for option in kernel.options} <= set(parameters)
    assert set(kernel.strategies) == set() or "strategy" in parameters
    if kernel.name != "attention":  # its plain form takes all that the reference takes
        known = inspect.signature(kernel.reference).parameters
        assert {one.name for one in kernel.operands} <= set(known)
        assert {option.parameter for option in kernel.options if option.meaning} <= set(known)


@every_kernel
def test_strategies_are_those_of_the_function_and_the_usual_one_is_its_default(kernel: Kernel):
    if not kernel.strategies:
        assert "strategy" not in inspect.signature(kernel.function).parameters
        return
    with pytest.raises(KernelError) as refused:
        kernel.function(**_small(kernel), strategy="none")
    assert _allowed(str(refused.value)) == set(kernel.strategies)
    default = inspect.signature(kernel.function).parameters["strategy"].default
    assert next(iter(kernel.strategies)) == default


@every_kernel
def test_dimensions_are_those_that_the_function_splits(kernel: Kernel):
    with pytest.raises(KernelError) as refused:
        kernel.function(**_small(kernel), mesh=mesh("2"), axis={"none": "x"})
    splits = [kernel.split_of(name) for name in kernel.strategies or (None,)]
    assert _allowed(str(refused.value)) == {name for s in splits for name in s.dimensions}
    for split in splits:
        assert split.default in split.dimensions
    named = {
        name
        for one in kernel.operands
        for names in one.dimensions
        for name in ((names,) if isinstance(names, str) else names or ())
    }
    assert named == {name for s in splits for name in s.dimensions}


@every_kernel
def test_the_reference_gives_the_shape_of_the_result(kernel: Kernel):
    sizes = {size.name: 2 for size in kernel.sizes} | {kernel.result_shape[kernel.row_axis]: 3}
    arguments = kernel.arguments(sizes, "float32")
    result = jax.eval_shape(lambda arguments: kernel.reference(**arguments), arguments)
    filled = kernel.filled(sizes)
    assert result.shape == tuple(filled[name] for name in kernel.result_shape)
    assert result.shape[kernel.row_axis] == 3
    assert len(kernel.result) == result.ndim


@every_kernel
def test_arguments_follow_sizes_dtype_and_seed(kernel: Kernel):
    sizes = {size.name: 2 for size in kernel.sizes}
    first, again = (kernel.arguments(sizes, "bfloat16", 3) for _ in range(2))
    other = kernel.arguments(sizes, "bfloat16", 4)
    for one in kernel.operands:
        assert first[one.name].shape == (2,) * len(one.shape)
        assert first[one.name].dtype == (jnp.bfloat16 if one.differentiable else jnp.int32)
        np.testing.assert_array_equal(first[one.name], again[one.name])
    assert any((first[name] != other[name]).any() for name in first)
    assert set(kernel.filled({})) == {size.name for size in kernel.sizes}
    assert kernel.length in kernel.filled({})


def test_products_of_the_drawn_arguments_have_elements_of_size_1():
    drawn = find("gemm-softmax").arguments({"m": 32, "n": 32, "k": 1024}, "float32")
    # 1024 products whose standard deviation is over 0.9 and below 1.1 with certainty
    assert 0.9 < float((drawn["a"] @ drawn["b"]).std()) < 1.1
    labels = find("cross-entropy").arguments({"tokens": 256, "vocab": 4}, "float32")["labels"]
    assert set(np.asarray(labels)) == {0, 1, 2, 3}


def test_sizes_that_are_left_out_follow_others():
    filled = find("attention").filled({"heads": 6, "q": 10})
    assert filled["kv_heads"] == 6
    assert filled["kv"] == 10


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: find("gemm-softmx"), ["'gemm-softmx'", "gemm-softmax"]),
        (lambda: find("attention").filled({"m": 3}), ["'m'", "head_dim"]),
        (lambda: find("attention").filled({"q": 0}), ["q: got 0", "at least 1"]),
        (lambda: find("attention").split_of("ringg"), ["'ringg'", "ring"]),
        (lambda: find("distributed-softmax").split_of("flash"), ["'flash'", "one form"]),
        (
            lambda: find("attention").parameters({"smoothing": 0.1}, meaning=True),
            ["'smoothing'", "causal"],
        ),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(attempt, words: list[str]):
    with pytest.raises(KernelError) as refused:
        attempt()
    assert all(word in str(refused.value) for word in words)
