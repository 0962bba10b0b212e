"""Multi-head attention whose scores are never held whole.

The one idea: the layer is an `nnx.MultiHeadAttention` with other insides. Its projections, its
parameters, their paths in checkpoints and its cache are those of that class; what happens between
the projections is `jaxcomet.kernels.attention`.

It leaves out dropout of the attention weights and sowing them, which need the scores.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jax import Array, lax
from jax.sharding import AxisType, Mesh
from jax.typing import DTypeLike

from jaxcomet._compat import is_traced
from jaxcomet.kernels.attention import attention
from jaxcomet.kernels.attention.plan import DIMENSIONS, STRATEGIES
from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.layers.execution import execution
from jaxcomet.kernels.partition import Axis

_NAME = "FusedSelfAttention"


class FusedSelfAttention(nnx.MultiHeadAttention):
    """`nnx.MultiHeadAttention` over the attention kernels, with grouped heads and a cache.

    It takes the arguments of that class, and makes the same parameters from the same random keys.
    It attends to other inputs as well, where `inputs_k` is given. Three things differ:

    * `is_causal` lets the last query see the last key, where there are fewer queries than keys
      (nnx lets the first see the first).
    * A query that sees nothing gives 0 before the output projection (nnx gives the mean of all
      values).
    * A call that decodes may bring several tokens, such as a prompt in chunks: each sees those
      before it and the cache.

    Args:
      num_heads: of the queries.
      in_features: of the inputs.
      qkv_features: of all heads together; None for `in_features`.
      out_features: of the result; None for `in_features`.
      num_kv_heads: heads of keys and values, which divide `num_heads`, None for as many. The cache
        shrinks with them.
      in_kv_features: of `inputs_k` and `inputs_v`; None for `in_features`.
      is_causal: whether later keys are hidden, unless a call says otherwise.
      logits_soft_cap: c in c * tanh(x / c), taken of the scores; None for no cap.
      strategy: ``unfused``, ``partial``, ``flash`` or ``ring``.
      mesh: the devices, or None for one.
      axis: the mesh axes of ``heads``, or ``sequence`` for ``ring``; or a mapping from ``batch``,
        ``heads``, ``queries``, ``keys`` and ``sequence`` to mesh axes; None is all of the mesh.
      partitioner: ``shard_map``, or ``auto``, where XLA decides what moves.
      reduction: where keys are split, ``combined`` or ``separate`` collectives.
      wire_dtype: dtype of what is sent, or None for the kernel's own choice.
      block_q: most queries of a block; None for the kernel's choice.
      block_k: most keys of a block; None for the kernel's choice.
      rngs: random keys of the parameters.
      arguments: the others of `nnx.MultiHeadAttention`: `dtype`, `param_dtype`, `precision`,
        `use_bias`, `normalize_qk`, `decode`, initializers, metadata (`kernel_metadata=
        {"out_sharding": ...}` places parameters), `dropout_rate` for calls that are deterministic.

    Raises:
      KernelError: an `attention_fn`, or wrong names in the arguments of the kernel.
      ValueError: what `nnx.MultiHeadAttention` refuses.

    Example:
      >>> layer = FusedSelfAttention(4, 16, num_kv_heads=2, is_causal=True, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((1, 5, 16))).shape
      (1, 5, 16)
    """

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        qkv_features: int | None = None,
        out_features: int | None = None,
        num_kv_heads: int | None = None,
        in_kv_features: int | None = None,
        *,
        is_causal: bool = False,
        logits_soft_cap: float | None = None,
        strategy: str = "flash",
        mesh: Mesh | None = None,
        axis: Axis = None,
        partitioner: str = "shard_map",
        reduction: str = "combined",
        wire_dtype: DTypeLike | None = None,
        block_q: int | None = None,
        block_k: int | None = None,
        rngs: nnx.Rngs,
        **arguments: Any,
    ):
        if "attention_fn" in arguments:
            _refuse_attention_fn(arguments["attention_fn"])
        super().__init__(
            num_heads,
            in_features,
            qkv_features,
            out_features,
            num_kv_heads,
            in_kv_features,
            rngs=rngs,
            **arguments,
        )
        self.is_causal = is_causal
        self.logits_soft_cap = logits_soft_cap
        self.block_q = block_q
        self.block_k = block_k
        self.execution = execution(
            _NAME,
            strategy=strategy,
            strategies=STRATEGIES,
            mesh=mesh,
            axis=axis,
            dimensions=DIMENSIONS,
            default="sequence" if strategy == "ring" else "heads",
            partitioner=partitioner,
            reduction=reduction,
            wire_dtype=wire_dtype,
        )

    @classmethod
    def from_modules(
        cls,
        attention: nnx.MultiHeadAttention,
        *,
        is_causal: bool = False,
        logits_soft_cap: float | None = None,
        strategy: str = "flash",
        mesh: Mesh | None = None,
        axis: Axis = None,
        partitioner: str = "shard_map",
        reduction: str = "combined",
        wire_dtype: DTypeLike | None = None,
        block_q: int | None = None,
        block_k: int | None = None,
    ) -> "FusedSelfAttention":
        """A layer over the projections, parameters and cache of an ordinary one.

        They are shared, not copied: what changes one layer changes the other.

        Args:
          attention: the ordinary layer.
          is_causal: as of the class.
          logits_soft_cap: as of the class.
          strategy: as of the class.
          mesh: as of the class.
          axis: as of the class.
          partitioner: as of the class.
          reduction: as of the class.
          wire_dtype: as of the class.
          block_q: as of the class.
          block_k: as of the class.

        Raises:
          KernelError: a subclass of `nnx.MultiHeadAttention`, whose own ways would be lost, or an
            `attention_fn` of its own.
        """
        if type(attention) is not nnx.MultiHeadAttention:
            raise KernelError(
                f"{_NAME}: attention: got {type(attention).__name__}; expected "
                "nnx.MultiHeadAttention itself, not a subclass, which may compute something else"
            )
        if attention.attention_fn is not nnx.dot_product_attention:
            _refuse_attention_fn(attention.attention_fn)
        layer = nnx.eval_shape(  # its own parameters are never made
            lambda: cls(
                1,
                1,
                is_causal=is_causal,
                logits_soft_cap=logits_soft_cap,
                strategy=strategy,
                mesh=mesh,
                axis=axis,
                partitioner=partitioner,
                reduction=reduction,
                wire_dtype=wire_dtype,
                block_q=block_q,
                block_k=block_k,
                rngs=nnx.Rngs(0),
            )
        )
        for name, value in vars(attention).items():
            if not name.startswith("_"):
                setattr(layer, name, value)
        return layer

    def __call__(
        self,
        inputs_q: Array,
        inputs_k: Array | None = None,
        inputs_v: Array | None = None,
        *,
        mask: Array | None = None,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
        sow_weights: bool = False,
        decode: bool | None = None,
        is_causal: bool | None = None,
        out_sharding: Any = None,
        qkv_sharding: Any = None,
        input_positions: Array | None = None,
    ) -> Array:
        """Attention of `inputs_q` over `inputs_k`, between the projections.

        A call that decodes writes its keys and values behind those in the cache, which it moves on,
        and sees them and all before them, up to its own token. What does not fit is refused; where
        the place in the cache is traced, and cannot be read, the result is NaN instead, and that of
        all calls after it.

        Args:
          inputs_q: shape (*batch, T, in_features).
          inputs_k: shape (*batch, S, in_kv_features), or None for `inputs_q`.
          inputs_v: of the same shape, or None for `inputs_k`.
          mask: broadcastable to (*batch, num_heads, T, S), nonzero where a key takes part; S is the
            length of the cache in a call that decodes.
          deterministic: True for no dropout, None for what the layer says; it matters only with a
            `dropout_rate`.
          rngs: not used, as nothing is random.
          sow_weights: must be False.
          decode: whether to use the cache, or None for what the layer says; not, if it says None.
          is_causal: whether later keys are hidden, or None for what the layer says.
          out_sharding: of the output projection.
          qkv_sharding: of the other projections.
          input_positions: must be None; rotary embeddings are an `attention_fn` of nnx.

        Returns:
          Shape (*batch, T, out_features).

        Raises:
          KernelError: inputs that do not fit together, dropout, no cache or a full one.
        """
        if sow_weights:
            raise KernelError(f"{_NAME}: sow_weights: got True; {_NO_SCORES}")
        if input_positions is not None:
            raise KernelError(
                f"{_NAME}: input_positions: got an array; expected None; rotary embeddings are not "
                "supported; use nnx.MultiHeadAttention for them"
            )
        if inputs_k is None and inputs_v is not None:
            raise KernelError(
                f"{_NAME}: inputs_k: got None with inputs_v; expected both, or inputs_k alone"
            )
        inputs_k = inputs_q if inputs_k is None else inputs_k
        inputs_v = inputs_k if inputs_v is None else inputs_v
        self._check_inputs(inputs_q=inputs_q, inputs_k=inputs_k, inputs_v=inputs_v)
        deterministic = self.deterministic if deterministic is None else deterministic
        if self.dropout_rate > 0 and not deterministic:
            raise KernelError(
                f"{_NAME}: deterministic: got {deterministic} with dropout_rate="
                f"{self.dropout_rate}; {_NO_SCORES}; or call with deterministic=True, or use "
                "dropout_rate=0"
            )
        query = self.query(inputs_q, out_sharding=qkv_sharding)
        key = self.key(inputs_k, out_sharding=qkv_sharding)
        value = self.value(inputs_v, out_sharding=qkv_sharding)
        if self.query_ln is not None and self.key_ln is not None:
            query, key = self.query_ln(query), self.key_ln(key)
        if self.decode if decode is None else decode:
            key, value, filled = self._extended(key, value)
            result = self._attend(query, key, value, mask, is_causal=True, filled=filled)
            result = jnp.where(filled > key.shape[-3], jnp.nan, result)
        else:
            causal = self.is_causal if is_causal is None else is_causal
            result = self._attend(query, key, value, mask, is_causal=causal)
        return self.out(result, out_sharding=out_sharding)

    def init_cache(self, input_shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> None:
        """Makes an empty cache, split over the mesh like the keys of the kernel.

        Args:
          input_shape: (*batch, most tokens, in_features).
          dtype: of the cached keys and values; best that of the queries, as another one is
            converted at each step.
        """
        super().init_cache(tuple(input_shape), dtype)
        for cache in (self.cached_key, self.cached_value):
            if cache is not None:
                cache[...] = self._placed(cache[...])

    def _placed(self, cache: Array) -> Array:
        """A cache on the devices that read it, where there is one batch axis, as the kernel has."""
        split = self.execution.partition
        explicit = split.mesh is not None and AxisType.Explicit in split.mesh.axis_types
        if cache.ndim != 4 or explicit:  # explicit axes leave the placing to the user
            return cache
        return split.constrain(cache, "batch", ("keys", "sequence"), "heads", None)

    def _attend(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None,
        *,
        is_causal: bool,
        filled: Array | None = None,
    ) -> Array:
        """The kernel on (*batch, T, heads, head_dim): its batch is one axis."""
        query, key, value = promote_dtype((query, key, value), dtype=self.dtype)
        batch = query.shape[:-3]
        result = attention(
            *(x.reshape(-1, *x.shape[-3:]) for x in (query, key, value)),
            mask=None if mask is None else _batched_mask(mask, batch),
            is_causal=is_causal,
            key_value_seq_lengths=filled,
            logits_soft_cap=self.logits_soft_cap,
            precision=self.precision,
            block_q=self.block_q,
            block_k=self.block_k,
            **self.execution.arguments(),
        )
        return result.reshape(*batch, *result.shape[1:])

    def _extended(self, key: Array, value: Array) -> tuple[Array, Array, Array]:
        """Keys and values of the cache with new ones behind, and how many there are then."""
        if self.cached_key is None or self.cached_value is None or self.cache_index is None:
            raise KernelError(
                f"{_NAME}: decode: got True without a cache; call init_cache first, with the shape "
                "(*batch, most tokens, in_features)"
            )
        start, *batch = self.cache_index[...], *self.cached_key.shape[:-3]
        if list(key.shape[:-3]) != batch:
            raise KernelError(
                f"{_NAME}: decode: got batch {list(key.shape[:-3])} for a cache of batch {batch}; "
                "call init_cache again"
            )
        room, tokens = self.cached_key.shape[-3], key.shape[-3]
        if tokens > room or (not is_traced(start) and int(start) + tokens > room):
            raise KernelError(
                f"{_NAME}: decode: got {tokens} tokens for a cache of {room} that holds "
                f"{'an unknown number' if is_traced(start) else int(start)}; make a larger one by "
                "init_cache"
            )
        for cache, new in ((self.cached_key, key), (self.cached_value, value)):
            zero = jnp.zeros_like(start)
            place = (*[zero] * len(batch), start, zero, zero)
            whole = lax.dynamic_update_slice(cache[...], new.astype(cache.dtype), place)
            cache[...] = self._placed(whole)
        self.cache_index[...] = start + tokens
        return self.cached_key[...], self.cached_value[...], start + tokens

    def _check_inputs(self, **inputs: Array) -> None:
        """Refuses inputs of other features than the projections, which say so less clearly."""
        for name, array in inputs.items():
            features = self.in_features if name == "inputs_q" else self.in_kv_features
            if array.ndim < 2 or array.shape[-1] != features:
                raise KernelError(
                    f"{_NAME}: {name}: got shape {array.shape}; expected (*batch, length, "
                    f"{features})"
                )
            if array.shape[:-2] != inputs["inputs_q"].shape[:-2]:
                raise KernelError(
                    f"{_NAME}: {name}: got batch {array.shape[:-2]}; inputs_q has "
                    f"{inputs['inputs_q'].shape[:-2]}"
                )


_NO_SCORES = (
    "the kernels never hold the scores that this needs; use nnx.MultiHeadAttention, which has the "
    "same parameters"
)


def _refuse_attention_fn(attention_fn: object) -> NoReturn:
    raise KernelError(
        f"{_NAME}: attention_fn: got {attention_fn!r}; expected none of its own: the layer is that "
        "function; choose it by strategy="
    )


def _batched_mask(mask: Array, batch: tuple[int, ...]) -> Array:
    """A mask of booleans with one batch axis, as the kernel takes it."""
    mask = mask.astype(bool).reshape(*(1,) * (len(batch) + 3 - mask.ndim), *mask.shape)
    lead, tail = mask.shape[:-3], mask.shape[-3:]
    if all(size == 1 for size in lead):
        return mask.reshape(1, *tail)
    fits = len(lead) == len(batch) and all(
        size in (1, whole) for size, whole in zip(lead, batch, strict=True)
    )
    if not fits:
        raise KernelError(
            f"{_NAME}: mask: got batch axes {lead}; expected some that broadcast to {batch}"
        )
    return jnp.broadcast_to(mask, (*batch, *tail)).reshape(-1, *tail)
