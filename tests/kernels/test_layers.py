"""Flax layers over the kernels: the same values, gradients and parameters as the ordinary ones."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from jaxcomet._compat import enable_x64
from jaxcomet.kernels.compiled import collectives
from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.layers import FusedSelfAttention, LayerNormLinear, RMSNormLinear
from tests.kernels import harness
from tests.tolerance import assert_close

FEATURES, HIDDEN, HEADS, KEY_HEADS, BATCH, TOKENS = 16, 32, 8, 4, 2, 6


def numbers(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """An initializer of numbers that matter, biases and scales too; compiles nothing."""
    del key
    fan_in = shape[0] if len(shape) > 1 else 4
    values = np.random.default_rng(math.prod(shape)).normal(size=shape) / math.sqrt(fan_in)
    return jnp.asarray(values.astype(dtype))


class Plain(nnx.Module):
    """A pre-normalized block of a transformer, of ordinary layers."""

    def __init__(self, rngs: nnx.Rngs):
        norm = {"scale_init": numbers, "bias_init": numbers, "rngs": rngs}
        linear = {"kernel_init": numbers, "bias_init": numbers, "rngs": rngs}
        self.first = nnx.LayerNorm(FEATURES, **norm)
        self.attention = nnx.MultiHeadAttention(
            HEADS, FEATURES, num_kv_heads=KEY_HEADS, decode=False, **linear
        )
        self.norm = nnx.LayerNorm(FEATURES, **norm)
        self.up = nnx.Linear(FEATURES, HIDDEN, **linear)
        self.down = nnx.Linear(HIDDEN, FEATURES, **linear)

    def __call__(self, x: Array) -> Array:
        x = x + self.attention(self.first(x), is_causal=True)
        return x + self.down(nnx.gelu(self.up(self.norm(x))))


class Fused(nnx.Module):
    """The same block, converted."""

    def __init__(self, attention: dict[str, Any], linear: dict[str, Any]):
        plain = Plain(nnx.Rngs(0))
        self.first = plain.first
        attention = {"is_causal": True} | attention
        self.attention = FusedSelfAttention.from_modules(plain.attention, **attention)
        self.up = LayerNormLinear.from_modules(plain.norm, plain.up, **linear)
        self.down = plain.down

    def __call__(self, x: Array) -> Array:
        x = x + self.attention(self.first(x))
        return x + self.down(nnx.gelu(self.up(x)))


def parameters(model: nnx.Module) -> dict[str, Array]:
    """By path, which is that of the ordinary block."""
    found = {}
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        name = ".".join(str(part) for part in path)
        found[name.replace("up.norm.", "norm.").replace("up.linear.", "up.")] = variable[...]
    return found


def function_of(model: nnx.Module, call: Any = None) -> Any:
    """The model as a function of its input x and its parameters by path."""
    names = list(parameters(model))
    call = call or (lambda model, x: model(x))

    def run(x: Array, **values: Array) -> Array:
        graph, state = nnx.split(model)
        leaves = [
            (path, variable.replace(values[name]))
            for name, (path, variable) in zip(names, nnx.to_flat_state(state), strict=True)
        ]
        return call(nnx.merge(graph, nnx.from_flat_state(leaves)), x)

    return run


def unoptimized(call: Any) -> Any:
    """A program without optimizations of its machine code, which take longer than these cases."""
    return jax.jit(call, compiler_options={"xla_backend_optimization_level": 0})


def inputs(seed: int = 0) -> Array:
    return harness.normal((BATCH, TOKENS, FEATURES), seed=seed)


def exact_attention(query: Array, key: Array, value: Array, **options: Any) -> Array:
    """Causal attention in float64, where that of JAX takes its softmax in float32."""
    assert options["is_causal"]
    assert options["mask"] is None
    groups = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(array, groups, axis=2) for array in (key, value))
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) / query.shape[-1] ** 0.5
    seen = np.tril(np.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(scores, axis=-1, where=seen)
    assert weights.dtype == jnp.float64
    return jnp.einsum("bnts,bsnh->btnh", weights, value)


@functools.cache
def exact_program() -> Any:
    """Value and gradients of the ordinary block by its arguments, compiled once."""
    plain = Plain(nnx.Rngs(0))
    plain.attention.attention_fn = exact_attention

    @unoptimized
    def both(arguments: dict[str, Array], cotangent: Array) -> tuple[Array, dict[str, Array]]:
        value, pull = jax.vjp(lambda arguments: function_of(plain)(**arguments), arguments)
        return value, pull(cotangent)[0]

    return both


def exact(arguments: dict[str, Any], cotangent: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """What the ordinary block gives, in float64."""
    with enable_x64():
        wide = {name: np.asarray(value, np.float64) for name, value in arguments.items()}
        return jax.device_get(exact_program()(wide, np.asarray(cotangent, np.float64)))


def assert_same_parameters(ours: nnx.Module, theirs: nnx.Module) -> None:
    expected = parameters(theirs)
    assert parameters(ours).keys() == expected.keys()
    for name, value in parameters(ours).items():
        assert value.dtype == expected[name].dtype
        np.testing.assert_array_equal(value, expected[name])


def assert_same(value: Any, gradients: Any, expected: Any, slopes: Any, **tolerance: Any) -> None:
    assert gradients.keys() == slopes.keys()
    assert_close(value, expected, **tolerance)
    for name, gradient in gradients.items():
        if name == "attention.key.bias":  # adds the same to all scores of a query: no effect
            assert np.abs(slopes[name]).max() < 1e-12
            assert np.abs(gradient).max() < 1e-4
        else:
            assert_close(gradient, slopes[name], **tolerance)


# A transformer, converted.

SPLITS = {
    "1": ({"axis": "x"}, {"axis": "x"}),
    "2": ({"axis": "x", "strategy": "ring"}, {"axis": {"n": "x"}, "strategy": "centred"}),
    "4": ({"axis": {"keys": "x"}}, {"axis": {"m": "x"}}),
    "8": ({"axis": "x"}, {"axis": "x", "strategy": "serial"}),
    "2x4": ({"axis": {"batch": "x", "heads": "y"}}, {"axis": {"m": "x", "k": "y"}}),
}


def placed(values: dict[str, Array], mesh: str) -> dict[str, Array]:
    """Parameters on a mesh: by heads, the expansion by columns, the projection back by rows."""
    devices = harness.mesh(mesh)
    last = devices.axis_names[-1]
    columns = ("query.kernel", "key.kernel", "value.kernel", "up.kernel")
    specs: dict[str, tuple[str | None, ...]] = dict.fromkeys(columns, (None, last))
    specs |= dict.fromkeys(("out.kernel", "down.kernel"), (last,))

    def place(name: str, value: Array) -> Array:
        spec = specs.get(".".join(name.split(".")[-2:]), ())
        if spec and value.shape[len(spec) - 1] % devices.shape[last]:  # too few key heads
            spec = ()
        return jax.device_put(np.asarray(value), NamedSharding(devices, PartitionSpec(*spec)))

    return {name: place(name, value) for name, value in values.items()}


@pytest.mark.parametrize(
    "split",
    [pytest.param(name, marks=() if name == "2x4" else pytest.mark.slow) for name in SPLITS],
)
def test_converted_transformer_has_the_values_and_gradients_of_the_ordinary_one(split):
    model = Fused(*(options | {"mesh": harness.mesh(split)} for options in SPLITS[split]))
    arguments = {"x": inputs()} | parameters(model)
    value, gradients = harness.value_and_gradients(
        function_of(model), placed(arguments, split), inputs(1), unoptimized=True
    )
    # Attention and the layers behind it: what the first rounds passes through the second.
    tolerance = {"dtype": "float32", "length": HIDDEN, "amplified": 2}
    assert_same(value, gradients, *exact(arguments, inputs(1)), **tolerance)


def test_converted_transformer_trains_with_the_losses_of_the_ordinary_one():
    x, target, rate, momentum = inputs(), inputs(2), 0.1, 0.5
    model = Fused({}, {})
    values = {name: np.asarray(value, np.float64) for name, value in parameters(model).items()}
    optimizer = nnx.Optimizer(model, optax.sgd(rate, momentum=momentum), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    @unoptimized
    def step(state: Any, x: Array) -> tuple[Any, Array]:
        model, optimizer = nnx.merge(graph, state)
        error = nnx.value_and_grad(lambda model: ((model(x) - target) ** 2).mean())
        loss, slopes = error(model)
        optimizer.update(model, slopes)
        return nnx.state((model, optimizer)), loss

    state, loss = step(state, x)
    losses = [float(loss)]
    with harness.compilations() as compiled:
        for _ in range(3):
            state, loss = step(state, x)
            losses.append(float(loss))
    assert compiled == []

    ordinary, moving = [], dict.fromkeys(values, 0.0)
    for _ in losses:
        result, _ = exact({"x": x} | values, x)
        missing = result - np.asarray(target)
        ordinary.append((missing**2).mean())
        _, slopes = exact({"x": x} | values, 2 * missing / missing.size)
        moving = {name: momentum * moving[name] + slopes[name] for name in values}
        values = {name: value - rate * moving[name] for name, value in values.items()}
    assert ordinary[-1] < 0.9 * ordinary[0]
    np.testing.assert_allclose(losses, ordinary, rtol=1e-4)


def test_scan_over_layers_with_remat_is_the_loop_over_them():
    graph, state = nnx.split(Fused({}, {}))
    # The second block has other parameters.
    twice = lambda leaf: jnp.asarray(np.stack([leaf, np.asarray(leaf) / 2]))  # noqa: E731
    state = jax.tree.map(twice, state)
    model = nnx.merge(graph, state)

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    @nnx.remat
    def scanned(x: Array, block: Fused) -> Array:
        return block(x)

    arguments = {"x": inputs()} | parameters(model)
    run = function_of(model, lambda model, x: scanned(x, model))
    value, gradients = harness.value_and_gradients(run, arguments, inputs(1), unoptimized=True)
    stacked = {name: np.asarray(each) for name, each in parameters(model).items()}
    bottom, top = ({name: each[i] for name, each in stacked.items()} for i in (0, 1))
    between, _ = exact({"x": inputs()} | bottom, inputs(1))
    expected, upper = exact({"x": between} | top, inputs(1))
    _, lower = exact({"x": inputs()} | bottom, upper["x"])
    slopes = {name: np.stack([lower[name], upper[name]]) for name in bottom} | {"x": lower["x"]}
    # Two blocks behind one another: what the first rounds passes through the second.
    tolerance = {"dtype": "float32", "length": HIDDEN, "amplified": 4}
    assert_same(value, gradients, expected, slopes, **tolerance)


# LayerNormLinear and RMSNormLinear.


def drawn(size: float) -> Any:
    """An initializer of numbers that follow from the key; compiles nothing."""

    def initialize(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        return jnp.asarray((size * generator.normal(size=shape)).astype(dtype))

    return initialize


def test_norm_linear_makes_the_parameters_of_the_modules_it_replaces():
    small, large = drawn(1), drawn(100)
    norm_arguments: Any = {"scale_init": small, "bias_init": large, "param_dtype": jnp.bfloat16}
    rngs = nnx.Rngs(3)
    norm = nnx.LayerNorm(8, **norm_arguments, rngs=rngs)
    linear = nnx.Linear(
        8, 3, kernel_init=large, bias_init=small, param_dtype=jnp.bfloat16, rngs=rngs
    )
    layer = LayerNormLinear(
        8, 3, **norm_arguments, kernel_init=large, linear_bias_init=small, rngs=nnx.Rngs(3)
    )
    for ours, theirs in ((layer.norm, norm), (layer.linear, linear)):
        assert_same_parameters(ours, theirs)
        assert {value.dtype for value in parameters(ours).values()} == {jnp.dtype("bfloat16")}


def test_norm_linear_leaves_out_the_parameters_it_is_told_to():
    without: dict[str, Any] = {"use_scale": False, "use_bias": False, "use_linear_bias": False}
    layer = LayerNormLinear(4, 3, **without, kernel_init=numbers, rngs=nnx.Rngs(0))
    assert list(parameters(layer)) == ["linear.kernel"]
    x = harness.normal((2, 4))
    deviations = np.asarray(x, np.float64) - np.asarray(x, np.float64).mean(-1, keepdims=True)
    normalized = deviations / np.sqrt((deviations**2).mean(-1, keepdims=True) + 1e-6)
    expected = normalized @ np.asarray(layer.linear.kernel[...], np.float64)
    for value in unoptimized(lambda x: (layer(x), layer.fold()(x)))(x):
        assert_close(value, expected, dtype="float32", length=4)


LAYERS = {"layer norm": (nnx.LayerNorm, LayerNormLinear), "RMS norm": (nnx.RMSNorm, RMSNormLinear)}
# dtype of the norm, of the linear layer, of the parameters, of the input -> of the result
MIXTURES = {
    "all wide": ((None, None, "float32", "float32"), "float32"),
    "narrow input": ((None, None, "float32", "bfloat16"), "float32"),
    "narrow": (("bfloat16", "bfloat16", "float32", "float32"), "bfloat16"),
    "narrow parameters": ((None, None, "bfloat16", "bfloat16"), "bfloat16"),
    "wide norm": (("float32", "bfloat16", "float32", "bfloat16"), "bfloat16"),
    "half": ((None, "float16", "float16", "float16"), "float16"),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_norm_linear_follows_the_dtypes_of_the_modules(kind):
    norm_type, layer_type = LAYERS[kind]
    layers, rows, exact = {}, {}, {}
    for mixture, (dtypes, result) in MIXTURES.items():
        norm_dtype, linear_dtype, param_dtype, input_dtype = dtypes
        options = {"kernel_init": numbers, "bias_init": numbers, "dtype": linear_dtype}
        common = {"param_dtype": param_dtype, "rngs": nnx.Rngs(0)}
        norm = norm_type(12, scale_init=numbers, dtype=norm_dtype, **common)
        linear = nnx.Linear(12, 5, **options, **common)
        layers[mixture] = layer_type.from_modules(norm, linear)
        rows[mixture] = x = harness.normal((3, 12), input_dtype)
        assert jax.eval_shape(lambda x, both=(norm, linear): both[1](both[0](x)), x).dtype == result

        values = parameters(layers[mixture])
        wide = {name: np.asarray(value, np.float64) for name, value in values.items()}
        x = np.asarray(x, np.float64)
        if kind == "layer norm":
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * wide["norm.scale"]
        exact[mixture] = x @ wide["linear.kernel"] + wide["linear.bias"]

    @unoptimized
    def run(rows: dict[str, Array]) -> dict[str, tuple[Array, Array]]:
        return {name: (layers[name](x), layers[name].fold()(x)) for name, x in rows.items()}

    for mixture, values in run(rows).items():
        _, result = MIXTURES[mixture]
        for value in values:
            assert value.dtype == result, mixture
            assert_close(value, exact[mixture], dtype=result, length=12)


@pytest.mark.parametrize("kind", LAYERS)
def test_folded_layer_holds_the_column_sums_of_the_stored_weights(kind):
    norm_type, layer_type = LAYERS[kind]
    norm = norm_type(64, scale_init=numbers, rngs=nnx.Rngs(0))
    linear = nnx.Linear(64, 5, kernel_init=numbers, rngs=nnx.Rngs(1))
    folded = layer_type.from_modules(norm, linear, strategy="serial").fold(jnp.bfloat16)
    exact = np.asarray(norm.scale[...], np.float64)[:, None] * np.asarray(linear.kernel[...])
    np.testing.assert_array_equal(folded.kernel[...], exact.astype(jnp.bfloat16))
    if kind == "layer norm":
        sums = np.asarray(folded.kernel[...], np.float64).sum(0)
        np.testing.assert_allclose(folded.column_sum[...], sums, rtol=1e-5)
        assert folded.column_sum.dtype == jnp.float32
    else:
        assert folded.column_sum is None
    assert nnx.state(folded, nnx.Param) == nnx.State({})


def test_norm_linear_split_by_columns_of_a_placed_kernel_sends_nothing():
    mesh = harness.mesh("4")
    layer = LayerNormLinear(
        8, 16, mesh=mesh, axis={"n": "x"}, kernel_init=numbers, rngs=nnx.Rngs(0)
    )
    whole, columns = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((), (None, "x")))
    arguments = jax.device_put({"x": harness.normal((6, 8))} | parameters(layer), whole)
    arguments["linear.kernel"] = jax.device_put(layer.linear.kernel[...], columns)
    run = function_of(layer)
    compiled = unoptimized(lambda arguments: run(**arguments)).lower(arguments).compile()
    assert collectives(compiled) == ()
    result = compiled(arguments)
    assert result.sharding.is_equivalent_to(columns, 2)
    ordinary = unoptimized(lambda x: layer.linear(layer.norm(x)))(harness.normal((6, 8)))
    assert_close(result, ordinary, dtype="float32", length=8)


@pytest.mark.parametrize(
    ("norm", "linear", "message"),
    [
        ({"reduction_axes": (-2, -1)}, {}, r"norm.reduction_axes: got \(-2, -1\)"),
        ({"feature_axes": (0, 1)}, {}, "norm.feature_axes"),
        ({"axis_name": "batch"}, {}, "norm.axis_name: got 'batch'"),
        ({"promote_dtype": lambda arrays, dtype: arrays}, {}, "norm.promote_dtype"),
        ({}, {"dot_general": lambda *arguments, **options: None}, "linear.dot_general"),
        ({}, {"preferred_element_type": jnp.float32}, "linear.preferred_element_type"),
    ],
)
def test_norm_linear_refuses_settings_it_does_not_have(norm, linear, message):
    with pytest.raises(KernelError, match="LayerNormLinear: " + message):
        LayerNormLinear.from_modules(
            nnx.LayerNorm(4, **norm, rngs=nnx.Rngs(0)),
            nnx.Linear(4, 3, **linear, kernel_init=numbers, rngs=nnx.Rngs(0)),
        )


def test_norm_linear_refuses_other_modules_and_names():
    norm, rngs = nnx.LayerNorm(4, rngs=nnx.Rngs(0)), nnx.Rngs(0)
    adapted = nnx.LoRALinear(4, 3, lora_rank=1, kernel_init=numbers, rngs=rngs)
    with pytest.raises(KernelError, match="linear: got LoRALinear; expected nnx"):
        LayerNormLinear.from_modules(norm, adapted)
    with pytest.raises(KernelError, match="norm: got LayerNorm; expected nnx"):
        RMSNormLinear.from_modules(norm, nnx.Linear(4, 3, kernel_init=numbers, rngs=rngs))
    with pytest.raises(KernelError, match="norm of 4 features and linear of 5"):
        LayerNormLinear.from_modules(norm, nnx.Linear(5, 3, kernel_init=numbers, rngs=rngs))
    with pytest.raises(KernelError, match="RMSNormLinear: strategy: got 'centred'"):
        RMSNormLinear(4, 3, strategy="centred", rngs=rngs)
    with pytest.raises(KernelError, match="LayerNormLinear: axis: got 'heads'; expected m or n"):
        LayerNormLinear(4, 3, mesh=harness.mesh("2"), axis={"heads": "x"}, rngs=rngs)
    with pytest.raises(KernelError, match="x axis 1"):
        LayerNormLinear(4, 3, kernel_init=numbers, rngs=rngs)(
            jnp.asarray(np.ones((2, 5), np.float32))
        )


# FusedSelfAttention.


def attention(**options: Any) -> nnx.MultiHeadAttention:
    given: Any = {"decode": False, "kernel_init": numbers, "bias_init": numbers} | options
    return nnx.MultiHeadAttention(4, FEATURES, num_kv_heads=2, **given, rngs=nnx.Rngs(0))


def test_attention_makes_the_parameters_of_the_module_it_replaces():
    options: Any = {"qkv_features": 8, "out_features": 6, "num_kv_heads": 2, "normalize_qk": True}
    options |= {"kernel_init": drawn(1), "bias_init": drawn(100)}
    ours = FusedSelfAttention(4, FEATURES, **options, rngs=nnx.Rngs(5))
    theirs = nnx.MultiHeadAttention(4, FEATURES, **options, rngs=nnx.Rngs(5))
    assert_same_parameters(ours, theirs)
    result, other = unoptimized(lambda x: (ours(x), theirs(x, decode=False)))(inputs())
    assert_close(result, other, dtype="float32", length=FEATURES)


def test_attention_over_other_inputs_with_several_batch_axes_and_a_mask_of_numbers():
    plain = attention(in_kv_features=5)
    fused = FusedSelfAttention.from_modules(plain)
    q, k = harness.normal((2, 3, 4, FEATURES)), harness.normal((2, 3, 7, 5), seed=1)
    v = harness.normal((2, 3, 7, 5), seed=2)
    seen = np.random.default_rng(3).integers(0, 2, size=(2, 3, 1, 4, 7))
    seen[..., 0] = 1  # every query sees something
    mask = np.asarray(seen, np.float32)
    masks = (mask, mask[0, 0], mask[:1, :1])

    expected = unoptimized(lambda mask: plain(q, k, v, mask=mask))
    results = unoptimized(lambda masks: [fused(q, k, v, mask=mask) for mask in masks])(masks)
    for value, each in zip(results, masks, strict=True):
        whole = np.broadcast_to(each, (2, 3, 4, 4, 7))
        assert_close(value, expected(whole), dtype="float32", length=FEATURES)


def test_query_that_sees_nothing_leaves_only_the_bias_of_the_projection():
    fused = FusedSelfAttention.from_modules(attention())
    mask = np.ones((1, 1, TOKENS, TOKENS), bool)
    mask[:, :, 2] = False
    result = unoptimized(lambda x, mask: fused(x, mask=mask))(inputs(), mask)
    bias = parameters(fused)["out.bias"]
    np.testing.assert_array_equal(np.asarray(result)[:, 2], np.tile(bias, (BATCH, 1)))


def test_soft_cap_and_narrow_dtypes_reach_the_kernel():
    x, narrow = inputs(), FusedSelfAttention.from_modules(attention(dtype=jnp.bfloat16))
    assert jax.eval_shape(lambda x: narrow(x), x).dtype == jnp.bfloat16
    # A cap of nearly 0 makes all scores equal: each query gives the mean of the values.
    fused = FusedSelfAttention.from_modules(attention(), logits_soft_cap=1e-9)

    def both(x: Array) -> tuple[Array, Array]:
        mean = fused.value(x).mean(1, keepdims=True).repeat(2, axis=2)  # two query heads read each
        return fused(x), jnp.broadcast_to(fused.out(mean), x.shape)

    assert_close(*unoptimized(both)(x), dtype="float32", length=FEATURES)


CACHED = TOKENS + 1


@nnx.jit
def decoded(layer: nnx.MultiHeadAttention, x: Any, mask: Any) -> Array:
    return layer(x, decode=True, mask=mask)


def seen_keys() -> np.ndarray:
    """All of the cache but one token of the second batch element."""
    mask = np.ones((BATCH, 1, 1, CACHED), bool)
    mask[1, :, :, 1] = False
    return mask


def decoded_in_parts(layer: nnx.MultiHeadAttention, *sizes: int) -> np.ndarray:
    """The results for all inputs, in calls of so many tokens, behind one another."""
    layer.init_cache((BATCH, CACHED, FEATURES))
    parts = np.split(np.asarray(inputs()), np.cumsum(sizes)[:-1], axis=1)
    return np.concatenate([decoded(layer, part, seen_keys()) for part in parts], axis=1)


@functools.cache
def decoded_by_nnx() -> tuple[np.ndarray, nnx.MultiHeadAttention]:
    """Token by token; and the layer with the cache."""
    plain = attention()
    return decoded_in_parts(plain, *[1] * TOKENS), plain


def assert_decodes_like_nnx(layer: FusedSelfAttention, *sizes: int) -> None:
    expected, plain = decoded_by_nnx()
    assert_close(decoded_in_parts(layer, *sizes), expected, dtype="float32", length=FEATURES)
    for name in ("cached_key", "cached_value", "cache_index"):
        left, right = getattr(layer, name)[...], getattr(plain, name)[...]
        assert_close(left, right, dtype="float32", length=FEATURES)


def test_cache_on_a_mesh_filled_in_chunks_gives_what_nnx_gives_token_by_token():
    split: dict[str, Any] = {"mesh": harness.mesh("2x4"), "axis": {"batch": "y", "heads": "x"}}
    fused = FusedSelfAttention.from_modules(attention(), **split)
    assert_decodes_like_nnx(fused, 3, 1, 1, 1)
    heads = NamedSharding(harness.mesh("2x4"), PartitionSpec(None, None, "x", None))
    for cache in (getattr(fused, name)[...] for name in ("cached_key", "cached_value")):
        assert cache.shape == (BATCH, CACHED, 2, FEATURES // 4)  # of 2 heads, not 4
        assert cache.sharding.is_equivalent_to(heads, 4)


def test_cache_gives_what_nnx_gives_and_nan_where_it_is_full_and_its_place_is_traced():
    fused = FusedSelfAttention.from_modules(attention())
    fused.init_cache((BATCH, 4, FEATURES))
    with pytest.raises(KernelError, match="got 6 tokens for a cache of 4 that holds 0"):
        fused(inputs(), decode=True)
    assert_decodes_like_nnx(fused, *[1] * TOKENS)
    with pytest.raises(KernelError, match="got 2 tokens for a cache of 7 that holds 6"):
        fused(inputs()[:, :2], decode=True)

    with pytest.raises(KernelError, match=r"got batch \[1\] for a cache of batch \[2\]"):
        fused(inputs()[:1, :1], decode=True)
    with pytest.raises(KernelError, match="without a cache; call init_cache"):
        FusedSelfAttention.from_modules(attention(decode=True))(inputs())

    def another() -> np.ndarray:
        return np.asarray(decoded(fused, np.asarray(inputs())[:, :1], seen_keys()))

    assert np.isfinite(another()).all()  # the last place
    assert np.isnan(another()).all()
    assert np.isnan(another()).all()
    fused.init_cache((BATCH, CACHED, FEATURES))
    assert np.isfinite(another()).all()


def test_attention_split_by_heads_of_placed_parameters_sends_one_sum():
    mesh = harness.mesh("2")
    specs: dict[str, Any] = {"kernel": (None, "x", None), "bias": ("x", None)}
    specs |= {"out_kernel": ("x", None, None), "out_bias": (None,)}
    options: Any = {f"{name}_metadata": {"out_sharding": spec} for name, spec in specs.items()}
    options |= {"kernel_init": numbers, "bias_init": numbers}
    with jax.set_mesh(mesh):  # where nnx places parameters as their metadata say
        layer = FusedSelfAttention(
            4,
            FEATURES,
            num_kv_heads=2,
            is_causal=True,
            mesh=mesh,
            axis="x",
            **options,
            rngs=nnx.Rngs(0),
        )
    assert layer.key.kernel[...].addressable_shards[0].data.shape == (FEATURES, 1, 4)
    arguments = {"x": inputs()} | parameters(layer)
    run = function_of(layer)
    compiled = unoptimized(lambda arguments: run(**arguments)).lower(arguments).compile()
    sums = [(each.kind, each.bytes) for each in collectives(compiled)]
    assert sums == [("all-reduce", 4 * BATCH * TOKENS * FEATURES)]  # of the output projection
    expected = unoptimized(functools.partial(attention(), is_causal=True))(inputs())
    assert_close(compiled(arguments), expected, dtype="float32", length=FEATURES)


def test_attention_refuses_what_needs_the_scores_and_what_does_not_fit():
    def rotated(*arguments: Any, **options: Any) -> Array:
        raise AssertionError

    Subclass = type("Subclass", (nnx.MultiHeadAttention,), {})
    rngs, x = nnx.Rngs(0), inputs()
    with pytest.raises(KernelError, match=r"attention_fn: got .*rotated"):
        FusedSelfAttention(4, FEATURES, attention_fn=rotated, rngs=rngs)
    with pytest.raises(KernelError, match=r"attention_fn: got .*rotated"):
        FusedSelfAttention.from_modules(attention(attention_fn=rotated))
    with pytest.raises(KernelError, match="attention: got Subclass"):
        FusedSelfAttention.from_modules(Subclass(4, FEATURES, kernel_init=numbers, rngs=rngs))
    with pytest.raises(KernelError, match="strategy: got 'flush'; expected unfused or"):
        FusedSelfAttention(4, FEATURES, strategy="flush", kernel_init=numbers, rngs=rngs)
    layer = FusedSelfAttention(4, FEATURES, dropout_rate=0.1, kernel_init=numbers, rngs=rngs)
    with pytest.raises(KernelError, match="deterministic: got None with dropout_rate"):
        layer(x)
    assert jax.eval_shape(lambda x: layer(x, deterministic=True), x).shape == x.shape
    with pytest.raises(KernelError, match="sow_weights: got True"):
        layer(x, deterministic=True, sow_weights=True)
    with pytest.raises(KernelError, match="inputs_k: got None with inputs_v"):
        layer(x, inputs_v=x)
    with pytest.raises(KernelError, match=r"inputs_k: got shape \(2, 6, 5\)"):
        layer(x, x[..., :5], deterministic=True)
    with pytest.raises(KernelError, match=r"inputs_k: got batch \(1,\)"):
        layer(x, x[:1], deterministic=True)
    with pytest.raises(KernelError, match=r"mask: got batch axes \(3,\)"):
        layer(x, deterministic=True, mask=jnp.asarray(np.ones((3, 1, TOKENS, TOKENS), bool)))
