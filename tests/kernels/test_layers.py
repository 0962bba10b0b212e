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
    return harness.normal(shape, dtype, seed=math.prod(shape)) / math.sqrt(fan_in)


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

    def __init__(self, plain: Plain, attention: dict[str, Any], linear: dict[str, Any]):
        self.first = plain.first
        self.attention = FusedSelfAttention.from_modules(
            plain.attention, is_causal=True, **attention
        )
        self.up = LayerNormLinear.from_modules(plain.norm, plain.up, **linear)
        self.down = plain.down

    def __call__(self, x: Array) -> Array:
        x = x + self.attention(self.first(x))
        return x + self.down(nnx.gelu(self.up(x)))


class Stack(nnx.Module):
    """Two blocks."""

    bottom: Any
    top: Any

    def __init__(self, bottom: nnx.Module, top: nnx.Module):
        self.bottom = bottom
        self.top = top

    def __call__(self, x: Array) -> Array:
        return self.top(self.bottom(x))


def plain_stack() -> Stack:
    rngs = nnx.Rngs(0)
    return Stack(Plain(rngs), Plain(rngs))


def converted(stack: Stack, **options: dict[str, Any]) -> Stack:
    """The stack with other insides and the same parameters."""
    options = {"attention": {}, "linear": {}} | options
    return Stack(*(Fused(block, **options) for block in (stack.bottom, stack.top)))


def parameters(model: nnx.Module) -> dict[str, Array]:
    """By path, which is that of the ordinary stack."""
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
        flat = nnx.to_flat_state(state)
        leaves = [
            (path, variable.replace(values[name]))
            for name, (path, variable) in zip(names, flat, strict=True)
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
def stack_reference() -> tuple[Any, Any]:
    """Value and gradients of the ordinary stack, in float64."""
    plain = plain_stack()
    for block in (plain.bottom, plain.top):
        block.attention.attention_fn = exact_attention
    arguments = {"x": inputs()} | parameters(plain)
    with enable_x64():
        wide = {name: jnp.asarray(value, jnp.float64) for name, value in arguments.items()}
        value, gradients = harness.value_and_gradients(
            function_of(plain), wide, inputs(1), unoptimized=True
        )
        return np.asarray(value), {name: np.asarray(slope) for name, slope in gradients.items()}


def assert_same(value: Any, gradients: Any, expected: Any, slopes: Any, **tolerance: Any) -> None:
    assert gradients.keys() == slopes.keys()
    assert_close(value, expected, **tolerance)
    for name, gradient in gradients.items():
        if name.endswith("key.bias"):  # adds the same to all scores of a query: no effect
            assert np.abs(slopes[name]).max() < 1e-12
            assert np.abs(gradient).max() < 1e-4
        else:
            assert_close(gradient, slopes[name], **tolerance)


# A transformer, converted.

SPLITS = {
    "none": ({}, {}),
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
    specs = {
        "query.kernel": (None, last),
        "key.kernel": (None, last),
        "value.kernel": (None, last),
        "out.kernel": (last,),
        "up.kernel": (None, last),
        "down.kernel": (last,),
    }

    def place(name: str, value: Array) -> Array:
        spec = specs.get(".".join(name.split(".")[-2:]), ())
        if spec and value.shape[len(spec) - 1] % devices.shape[last]:
            spec = ()  # fewer key heads than devices
        return jax.device_put(value, NamedSharding(devices, PartitionSpec(*spec)))

    return {name: place(name, value) for name, value in values.items()}


@pytest.mark.parametrize(
    "split",
    [
        pytest.param(name, marks=() if name in ("none", "2x4") else pytest.mark.slow)
        for name in SPLITS
    ],
)
def test_converted_transformer_has_the_values_and_gradients_of_the_ordinary_one(split):
    options = dict(zip(("attention", "linear"), SPLITS[split], strict=True))
    if split != "none":
        options = {key: value | {"mesh": harness.mesh(split)} for key, value in options.items()}
    model = converted(plain_stack(), **options)
    arguments = {"x": inputs()} | parameters(model)
    if split != "none":
        arguments = placed(arguments, split)
    value, gradients = harness.value_and_gradients(
        function_of(model), arguments, inputs(1), unoptimized=True
    )
    # Two blocks behind one another: what the first rounds passes through the second.
    tolerance = {"dtype": "float32", "length": HIDDEN, "amplified": 4}
    assert_same(value, gradients, *stack_reference(), **tolerance)


def test_converted_transformer_trains_with_the_losses_of_the_ordinary_one():
    target = inputs(2)

    def losses(model: Stack) -> list[float]:
        optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.5), wrt=nnx.Param)
        graph, state = nnx.split((model, optimizer))

        @unoptimized
        def step(state: Any, x: Array) -> tuple[Any, Array]:
            model, optimizer = nnx.merge(graph, state)
            error = nnx.value_and_grad(lambda model: ((model(x) - target) ** 2).mean())
            loss, slopes = error(model)
            optimizer.update(model, slopes)
            return nnx.state((model, optimizer)), loss

        found = []
        for _ in range(4):
            state, loss = step(state, inputs())
            found.append(float(loss))
        return found

    ordinary = losses(plain_stack())
    assert ordinary[-1] < 0.9 * ordinary[0]
    np.testing.assert_allclose(losses(converted(plain_stack())), ordinary, rtol=1e-4)


def test_scan_over_layers_with_remat_is_the_loop_over_them():
    model = converted(plain_stack())
    blocks = [nnx.split(block) for block in (model.bottom, model.top)]
    assert blocks[0][0] == blocks[1][0]  # so the blocks differ in arrays alone
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), blocks[0][1], blocks[1][1])

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    @nnx.remat
    def scanned(x: Array, block: Fused) -> Array:
        return block(x)

    @unoptimized
    def gradient(stacked: Any, x: Array) -> tuple[Array, Any]:
        def loss(stacked: Any) -> Array:
            return (scanned(x, nnx.merge(blocks[0][0], stacked)) * inputs(1)).sum()

        return jax.value_and_grad(loss)(stacked)

    loss, slopes = gradient(stacked, inputs())
    expected, expected_slopes = stack_reference()
    scale = np.abs(expected * np.asarray(inputs(1))).sum()
    assert abs(float(loss) - (expected * np.asarray(inputs(1))).sum()) < 1e-5 * scale
    for index, block in enumerate(("bottom", "top")):
        assert_close(
            slopes["up"]["linear"]["kernel"][...][index],
            expected_slopes[f"{block}.up.kernel"],
            dtype="float32",
            length=HIDDEN,
            amplified=4,  # as of the two blocks above
        )
    with harness.compilations() as compiled:
        gradient(stacked, inputs(3))
    assert compiled == []


# LayerNormLinear and RMSNormLinear.


def test_norm_linear_makes_the_parameters_of_the_modules_it_replaces():
    normal, uniform = nnx.initializers.normal(1.0), nnx.initializers.uniform(1.0)
    norm_arguments = {"scale_init": normal, "bias_init": uniform, "param_dtype": jnp.bfloat16}
    rngs = nnx.Rngs(3)
    norm = nnx.LayerNorm(8, **norm_arguments, rngs=rngs)
    linear = nnx.Linear(
        8, 3, kernel_init=uniform, bias_init=normal, param_dtype=jnp.bfloat16, rngs=rngs
    )
    layer = LayerNormLinear(
        8, 3, **norm_arguments, kernel_init=uniform, linear_bias_init=normal, rngs=nnx.Rngs(3)
    )
    for ours, theirs in ((layer.norm, norm), (layer.linear, linear)):
        expected = parameters(theirs)
        assert parameters(ours).keys() == expected.keys()
        for name, value in parameters(ours).items():
            assert value.dtype == jnp.bfloat16
            np.testing.assert_array_equal(value, expected[name])


def test_norm_linear_leaves_out_the_parameters_it_is_told_to():
    layer = LayerNormLinear(
        4, 3, use_scale=False, use_bias=False, use_linear_bias=False, rngs=nnx.Rngs(0)
    )
    assert list(parameters(layer)) == ["linear.kernel"]
    x = harness.normal((2, 4))
    deviations = np.asarray(x, np.float64) - np.asarray(x, np.float64).mean(-1, keepdims=True)
    normalized = deviations / np.sqrt((deviations**2).mean(-1, keepdims=True) + 1e-6)
    expected = normalized @ np.asarray(layer.linear.kernel[...], np.float64)
    assert_close(layer(x), expected, dtype="float32", length=4)
    assert_close(layer.fold()(x), expected, dtype="float32", length=4)


LAYERS = {
    "layer norm": (nnx.LayerNorm, LayerNormLinear),
    "RMS norm": (nnx.RMSNorm, RMSNormLinear),
}
# dtype of the norm, of the linear layer, of the parameters, of the input -> of the result
MIXTURES = {
    "all wide": ((None, None, "float32", "float32"), "float32"),
    "narrow input": ((None, None, "float32", "bfloat16"), "float32"),
    "narrow": (("bfloat16", "bfloat16", "float32", "float32"), "bfloat16"),
    "narrow parameters": ((None, None, "bfloat16", "bfloat16"), "bfloat16"),
    "wide norm": (("float32", "bfloat16", "float32", "bfloat16"), "bfloat16"),
    "half": ((None, "float16", "float16", "float16"), "float16"),
}


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("kind", LAYERS)
def test_norm_linear_follows_the_dtypes_of_the_modules(kind, mixture):
    (norm_dtype, linear_dtype, param_dtype, input_dtype), result = MIXTURES[mixture]
    norm_type, layer_type = LAYERS[kind]
    common = {"param_dtype": param_dtype, "rngs": nnx.Rngs(0)}
    norm = norm_type(12, scale_init=numbers, dtype=norm_dtype, **common)
    linear = nnx.Linear(12, 5, kernel_init=numbers, bias_init=numbers, dtype=linear_dtype, **common)
    layer = layer_type.from_modules(norm, linear)
    x = harness.normal((3, 12), input_dtype)
    assert jax.eval_shape(lambda x: linear(norm(x)), x).dtype == result

    exact = {name: np.asarray(each, np.float64) for name, each in parameters(layer).items()}
    rows = np.asarray(x, np.float64)
    if kind == "layer norm":
        rows = rows - rows.mean(-1, keepdims=True)
    rows = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-6) * exact["norm.scale"]
    expected = rows @ exact["linear.kernel"] + exact["linear.bias"]
    folded = layer.fold()
    for value in unoptimized(lambda x: (layer(x), folded(x)))(x):
        assert value.dtype == result
        assert_close(value, expected, dtype=result, length=12)


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
    layer = LayerNormLinear(8, 16, mesh=mesh, axis={"n": "x"}, rngs=nnx.Rngs(0))
    whole = NamedSharding(mesh, PartitionSpec())
    columns = NamedSharding(mesh, PartitionSpec(None, "x"))

    arguments = {"x": harness.normal((6, 8))} | parameters(layer)
    arguments = {
        name: jax.device_put(value, columns if name == "linear.kernel" else whole)
        for name, value in arguments.items()
    }
    run = unoptimized(lambda arguments: function_of(layer)(**arguments))
    compiled = run.lower(arguments).compile()
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
            nnx.Linear(4, 3, **linear, rngs=nnx.Rngs(0)),
        )


def test_norm_linear_refuses_other_modules_and_names():
    norm, rngs = nnx.LayerNorm(4, rngs=nnx.Rngs(0)), nnx.Rngs(0)
    adapted = nnx.LoRALinear(4, 3, lora_rank=1, rngs=rngs)
    with pytest.raises(KernelError, match="linear: got LoRALinear; expected nnx"):
        LayerNormLinear.from_modules(norm, adapted)
    with pytest.raises(KernelError, match="norm: got LayerNorm; expected nnx"):
        RMSNormLinear.from_modules(norm, nnx.Linear(4, 3, rngs=rngs))
    with pytest.raises(KernelError, match="norm of 4 features and linear of 5"):
        LayerNormLinear.from_modules(norm, nnx.Linear(5, 3, rngs=rngs))
    with pytest.raises(KernelError, match="RMSNormLinear: strategy: got 'centred'"):
        RMSNormLinear(4, 3, strategy="centred", rngs=rngs)
    with pytest.raises(KernelError, match="LayerNormLinear: axis: got 'heads'; expected m or n"):
        LayerNormLinear(4, 3, mesh=harness.mesh("2"), axis={"heads": "x"}, rngs=rngs)
    with pytest.raises(KernelError, match="x axis 1"):
        LayerNormLinear(4, 3, rngs=rngs)(jnp.ones((2, 5)))


# FusedSelfAttention.


def attention(**options: Any) -> nnx.MultiHeadAttention:
    options = {"decode": False, "kernel_init": numbers, "bias_init": numbers} | options
    return nnx.MultiHeadAttention(4, FEATURES, num_kv_heads=2, **options, rngs=nnx.Rngs(0))


def test_attention_makes_the_parameters_of_the_module_it_replaces():
    options = {"qkv_features": 8, "out_features": 6, "num_kv_heads": 2, "normalize_qk": True}
    ours = FusedSelfAttention(4, FEATURES, **options, rngs=nnx.Rngs(5))
    theirs = nnx.MultiHeadAttention(4, FEATURES, **options, rngs=nnx.Rngs(5))
    expected = parameters(theirs)
    assert parameters(ours).keys() == expected.keys()
    for name, value in parameters(ours).items():
        np.testing.assert_array_equal(value, expected[name])
    result, other = unoptimized(lambda x: (ours(x), theirs(x, decode=False)))(inputs())
    assert_close(result, other, dtype="float32", length=FEATURES)


def test_attention_over_other_inputs_with_several_batch_axes_and_a_mask_of_numbers():
    plain = attention(in_kv_features=5)
    fused = FusedSelfAttention.from_modules(plain)
    q, k = harness.normal((2, 3, 4, FEATURES)), harness.normal((2, 3, 7, 5), seed=1)
    v = harness.normal((2, 3, 7, 5), seed=2)
    seen = np.random.default_rng(3).integers(0, 2, size=(2, 3, 1, 4, 7))
    seen[..., 0] = 1  # every query sees something
    mask = jnp.asarray(seen, jnp.float32)

    def both(mask: Array) -> tuple[Array, Array]:
        whole = jnp.broadcast_to(mask, (2, 3, 4, 4, 7))
        return fused(q, k, v, mask=mask), plain(q, k, v, mask=whole)

    for each in (mask, mask[0, 0], mask[:1, :1]):
        assert_close(*unoptimized(both)(each), dtype="float32", length=FEATURES)


def test_query_that_sees_nothing_leaves_only_the_bias_of_the_projection():
    fused = FusedSelfAttention.from_modules(attention())
    mask = jnp.ones((1, 1, TOKENS, TOKENS), bool).at[:, :, 2].set(False)
    result = unoptimized(lambda x: fused(x, mask=mask))(inputs())
    bias = parameters(fused)["out.bias"]
    np.testing.assert_array_equal(result[:, 2], np.tile(bias, (BATCH, 1)))


def test_soft_cap_and_narrow_dtypes_reach_the_kernel():
    x, narrow = inputs(), FusedSelfAttention.from_modules(attention(dtype=jnp.bfloat16))
    assert jax.eval_shape(lambda x: narrow(x), x).dtype == jnp.bfloat16
    # A cap of nearly 0 makes all scores equal: each query gives the mean of the values.
    fused = FusedSelfAttention.from_modules(attention(), logits_soft_cap=1e-9)

    def both(x: Array) -> tuple[Array, Array]:
        mean = fused.value(x).mean(1, keepdims=True).repeat(2, axis=2)  # two query heads read each
        return fused(x), jnp.broadcast_to(fused.out(mean), x.shape)

    assert_close(*unoptimized(both)(x), dtype="float32", length=FEATURES)


@pytest.mark.parametrize("kind", ["ordinary", "split"])
def test_cache_filled_in_chunks_gives_what_nnx_gives_token_by_token(kind):
    plain, split = attention(), {}
    if kind == "split":
        split = {"mesh": harness.mesh("2x4"), "axis": {"batch": "y", "heads": "x"}}
    fused = FusedSelfAttention.from_modules(plain, **split)
    tokens = nnx.clone(plain)
    x, mask = inputs(), jnp.ones((BATCH, 1, 1, TOKENS + 1), bool).at[1, :, :, 1].set(False)
    for layer in (tokens, fused):
        layer.init_cache((BATCH, TOKENS + 1, FEATURES))

    @nnx.jit
    def step(layer: nnx.MultiHeadAttention, x: Array, mask: Array) -> Array:
        return layer(x, decode=True, mask=mask)

    expected = [step(tokens, x[:, t : t + 1], mask) for t in range(TOKENS)]
    parts = [step(fused, x[:, :3], mask), step(fused, x[:, 3:4], mask)]
    parts += [step(fused, x[:, t : t + 1], mask) for t in range(4, TOKENS)]
    result = jnp.concatenate(parts, axis=1)
    assert_close(result, jnp.concatenate(expected, axis=1), dtype="float32", length=FEATURES)
    for name in ("cached_key", "cached_value", "cache_index"):
        cache = getattr(fused, name)[...]
        assert_close(cache, getattr(tokens, name)[...], dtype="float32", length=FEATURES)
        if name != "cache_index":
            assert cache.shape == (BATCH, TOKENS + 1, 2, FEATURES // 4)  # of 2 heads, not 4
        if name != "cache_index" and kind == "split":
            heads = NamedSharding(harness.mesh("2x4"), PartitionSpec(None, None, "x", None))
            assert cache.sharding.is_equivalent_to(heads, 4)


def test_full_cache_is_refused_and_gives_nan_where_its_place_is_traced():
    fused = FusedSelfAttention.from_modules(attention(decode=True))
    with pytest.raises(KernelError, match="without a cache; call init_cache"):
        fused(inputs())
    fused.init_cache((BATCH, 4, FEATURES))
    with pytest.raises(KernelError, match=r"got batch \[1\] for a cache of batch \[2\]"):
        fused(inputs()[:1, :1])
    with pytest.raises(KernelError, match="got 6 tokens for a cache of 4 that holds 0"):
        fused(inputs())
    fused(inputs()[:, :3])
    with pytest.raises(KernelError, match="got 2 tokens for a cache of 4 that holds 3"):
        fused(inputs()[:, :2])

    @nnx.jit
    def step(layer: FusedSelfAttention, x: Array) -> Array:
        return layer(x)

    last = step(fused, inputs()[:, 3:4])
    assert jnp.isfinite(last).all()
    assert jnp.isnan(step(fused, inputs()[:, 4:5])).all()
    assert jnp.isnan(step(fused, inputs()[:, 5:6])).all()
    fused.init_cache((BATCH, 4, FEATURES))
    assert jnp.isfinite(step(fused, inputs()[:, 4:5])).all()


def test_attention_split_by_heads_of_placed_parameters_sends_one_sum():
    mesh = harness.mesh("2")
    with jax.set_mesh(mesh):  # where nnx places parameters as their metadata say
        layer = FusedSelfAttention(
            4,
            FEATURES,
            num_kv_heads=2,
            is_causal=True,
            mesh=mesh,
            axis="x",
            kernel_metadata={"out_sharding": (None, "x", None)},
            bias_metadata={"out_sharding": ("x", None)},
            out_kernel_metadata={"out_sharding": ("x", None, None)},
            out_bias_metadata={"out_sharding": (None,)},
            rngs=nnx.Rngs(0),
        )
    assert layer.key.kernel[...].addressable_shards[0].data.shape == (FEATURES, 1, 4)
    arguments = {"x": inputs()} | parameters(layer)
    compiled = unoptimized(lambda arguments: function_of(layer)(**arguments)).lower(arguments)
    compiled = compiled.compile()
    sums = [(each.kind, each.bytes) for each in collectives(compiled)]
    assert sums == [("all-reduce", 4 * BATCH * TOKENS * FEATURES)]  # of the output projection
    plain = nnx.MultiHeadAttention(4, FEATURES, num_kv_heads=2, decode=False, rngs=nnx.Rngs(0))
    expected = unoptimized(lambda x: plain(x, is_causal=True))(inputs())
    assert_close(compiled(arguments), expected, dtype="float32", length=FEATURES)


def test_attention_refuses_what_needs_the_scores_and_what_does_not_fit():
    def rotated(*arguments: Any, **options: Any) -> Array:
        raise AssertionError

    class Subclass(nnx.MultiHeadAttention):
        pass

    rngs, x = nnx.Rngs(0), inputs()
    with pytest.raises(KernelError, match=r"attention_fn: got .*rotated"):
        FusedSelfAttention(4, FEATURES, attention_fn=rotated, rngs=rngs)
    with pytest.raises(KernelError, match=r"attention_fn: got .*rotated"):
        FusedSelfAttention.from_modules(attention(attention_fn=rotated))
    with pytest.raises(KernelError, match="attention: got Subclass"):
        FusedSelfAttention.from_modules(Subclass(4, FEATURES, rngs=rngs))
    with pytest.raises(KernelError, match="strategy: got 'flush'; expected unfused or"):
        FusedSelfAttention(4, FEATURES, strategy="flush", rngs=rngs)
    layer = FusedSelfAttention(4, FEATURES, dropout_rate=0.1, rngs=rngs)
    with pytest.raises(KernelError, match="deterministic: got None with dropout_rate"):
        layer(x)
    assert layer(x, deterministic=True).shape == x.shape
    with pytest.raises(KernelError, match="sow_weights: got True"):
        layer(x, deterministic=True, sow_weights=True)
    with pytest.raises(KernelError, match="inputs_k: got None with inputs_v"):
        layer(x, inputs_v=x)
    with pytest.raises(KernelError, match=r"inputs_k: got shape \(2, 6, 5\)"):
        layer(x, x[..., :5], deterministic=True)
    with pytest.raises(KernelError, match=r"inputs_k: got batch \(1,\)"):
        layer(x, x[:1], deterministic=True)
    with pytest.raises(KernelError, match=r"mask: got batch axes \(3,\)"):
        layer(x, deterministic=True, mask=jnp.ones((3, 1, TOKENS, TOKENS)))
