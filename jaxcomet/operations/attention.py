"""Scaled dot-product attention, as elementary operations.

Heads that share keys and values (grouped heads, arXiv:2305.13245) are one problem with more rows:

* H: independent problems, batch x key/value heads;
* M: query rows of one problem, (heads / kv heads) x queries, ordered by position, heads of one
  position side by side;
* N: keys; K: head width, contracted in the scores; L: width of a value.

Q[H,M,K] and KT[H,K,N] give the scores S[H,M,N]; P = softmax(S) along N; O[H,M,L] = P V with
V[H,N,L]. The scale factor is folded into Q, the causal mask into the subtraction of the maximum.
"""

import numpy as np

from jaxcomet._compat import is_traced
from jaxcomet.operations.gemm_softmax import softmax
from jaxcomet.workload import CausalMask, CompoundOp, Operation, Tensor, WorkloadError, build
from jaxcomet.workload import check_size as _size


def attention(
    batch: object,
    heads: object,
    q: object,
    kv: object,
    head_dim: object,
    *,
    kv_heads: object | None = None,
    value_dim: object | None = None,
    causal: bool = False,
    operand_bits: int = 8,
    vector_bits: int = 16,
    output_bits: int = 8,
    fused_exp: bool = False,
) -> CompoundOp:
    """softmax(Q K^T) V for all heads of a batch.

    Args:
      batch: sequences; every size is a whole number >= 1, or an array of them (a batch of shapes).
      heads: query heads.
      q: queries of a sequence: its length in prefill, 1 in decode.
      kv: keys of a sequence, the cached ones included.
      head_dim: width of a query and a key.
      kv_heads: key/value heads, a divisor of `heads`; as many as heads if None.
      value_dim: width of a value; `head_dim` if None.
      causal: the last query sees all keys, each earlier one a key less (bottom-right aligned).
      operand_bits: bits of Q, K, V, of the scores and of the probabilities in the outermost memory.
      vector_bits: bits at which the vector engine reads and writes.
      output_bits: bits of O in the outermost memory.
      fused_exp: one operation subtracts the maximum and takes the exponential.

    Returns:
      The compound operation ``attention``.

    Raises:
      WorkloadError: a size that is no whole number >= 1, heads that are no multiple of kv_heads, or
        a causal mask with more queries than keys (the first rows would see none).

    Example:
      >>> op = attention(1, 32, 2048, 2048, 128, kv_heads=8, causal=True)
      >>> op.sizes["H"], op.sizes["M"]
      (8.0, 8192.0)
    """
    num_batch, num_heads = _size("batch", batch), _size("heads", heads)
    num_kv_heads = num_heads if kv_heads is None else _size("kv_heads", kv_heads)
    queries, keys = _size("q", q), _size("kv", kv)
    values = head_dim if value_dim is None else value_dim
    if not any(is_traced(x) for x in (num_heads, num_kv_heads, queries, keys)):
        if (np.asarray(num_heads) % np.asarray(num_kv_heads) != 0).any():
            raise WorkloadError(
                f"kv_heads: got {num_kv_heads:g} for {num_heads:g} heads; expected a divisor"
                if isinstance(num_heads, float) and isinstance(num_kv_heads, float)
                else "kv_heads: got one that does not divide heads; expected a divisor in each row"
            )
        if causal and (np.asarray(queries) > np.asarray(keys)).any():
            raise WorkloadError(
                "causal: got more queries than keys, so that the first queries would see no key; "
                "expected q <= kv, or no mask"
            )
    group = num_heads / num_kv_heads
    probabilities = Tensor(name="P", dims=("H", "M", "N"), bits=operand_bits)
    scores, row = ("H", "M", "N"), ("H", "M")
    tensors = (
        Tensor(name="Q", dims=("H", "M", "K"), bits=operand_bits),
        Tensor(name="KT", dims=("H", "K", "N"), bits=operand_bits),
        Tensor(name="S", dims=scores, bits=operand_bits),
        Tensor(name="D", dims=row, bits=vector_bits),
        Tensor(name="E", dims=scores, bits=vector_bits),
        Tensor(name="F", dims=scores, bits=vector_bits),
        Tensor(name="G", dims=row, bits=vector_bits),
        probabilities,
        Tensor(name="V", dims=("H", "N", "L"), bits=operand_bits),
        Tensor(name="O", dims=("H", "M", "L"), bits=output_bits),
    )
    vector = softmax(("S", "D", "E", "F", "G", "P"), vector_bits, fused_exp=fused_exp)
    return build(
        "attention",
        operations=(
            Operation(
                name="scores",
                kind="contract",
                function="mac",
                inputs=("Q", "KT"),
                output="S",
                bits=operand_bits,
            ),
            *vector,
            Operation(
                name="values",
                kind="contract",
                function="mac",
                inputs=("P", "V"),
                output="O",
                bits=operand_bits,
            ),
        ),
        tensors=tuple(t for t in tensors if not (fused_exp and t.name == "E")),
        sizes={
            "H": num_batch * num_kv_heads,
            "M": group * queries,
            "N": keys,
            "K": head_dim,
            "L": values,
        },
        mask=CausalMask(rows="M", columns="N", rows_per_position=group, offset=keys - queries)
        if causal
        else None,
    )
