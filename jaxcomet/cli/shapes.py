"""Twelve shapes for each workload that `jaxcomet compare` compares when no size is named.

A matrix product with a softmax or a normalization: the shapes that the authors of COMET released,
with their machines (d-matrix-ai/comet 917af0d, test/iterative_mapper/multiple_run.sh for edge and
cloud_multiple_run.sh for cloud, in the order of the files; the labels are ours).

Attention: shapes of ours, six a machine, from 256 to 16,384 keys. On edge as in BERT-base and GPT-2
(12 heads of width 64; arXiv:1810.04805, section 3): three lengths of a sequence seen whole, one of
them also under a causal mask, and one new query on cached keys, alone and in a batch of 8. On cloud
as in the Llama models (heads of width 128, 8 of keys and values where they are grouped;
arXiv:2407.21783, table 3): prefill from 2,048 to 16,384 with 32 and 64 heads, the shortest under a
causal mask, and decode on many cached keys.
"""

from dataclasses import dataclass, field

from jaxcomet.operations.catalog import OptionValue


@dataclass(frozen=True)
class Shape:
    """A shape and the machine that it is compared on.

    Attributes:
      machine: name of the machine.
      sizes: sizes of the workload by name.
      options: options of the workload.
    """

    machine: str
    sizes: dict[str, float]
    options: dict[str, OptionValue] = field(default_factory=dict)


def _gemm(machine: str, m: int, n: int, k: int) -> Shape:
    return Shape(machine, {"M": float(m), "N": float(n), "K": float(k)})


def _heads(machine: str, heads: str, q: int, kv: int, *, batch: int = 1, mask: str = "") -> Shape:
    query_heads, kv_heads = heads.split("/")
    sizes = {"batch": batch, "heads": int(query_heads), "kv_heads": int(kv_heads), "q": q, "kv": kv}
    sizes["head_dim"] = 64 if machine == "edge" else 128
    return Shape(machine, {n: float(s) for n, s in sizes.items()}, {"causal": bool(mask)})


_PUBLISHED = {
    "e1": _gemm("edge", 256, 256, 128),
    "e2": _gemm("edge", 1024, 1024, 256),
    "e3": _gemm("edge", 1, 1024, 128),
    "e4": _gemm("edge", 1, 512, 256),
    "e5": _gemm("edge", 1, 2048, 256),
    "e6": _gemm("edge", 512, 256, 128),
    "c1": _gemm("cloud", 256, 256, 512),
    "c2": _gemm("cloud", 2048, 2048, 256),
    "c3": _gemm("cloud", 1, 4096, 512),
    "c4": _gemm("cloud", 1, 8192, 128),
    "c5": _gemm("cloud", 1, 16384, 128),
    "c6": _gemm("cloud", 1024, 1024, 512),
}

_ATTENTION = {
    "e1": _heads("edge", "12/12", 256, 256),
    "e2": _heads("edge", "12/12", 1024, 1024),
    "e3": _heads("edge", "12/12", 4096, 4096),
    "e4": _heads("edge", "12/12", 1024, 1024, mask="causal"),
    "e5": _heads("edge", "12/12", 1, 1024),
    "e6": _heads("edge", "12/12", 1, 4096, batch=8),
    "c1": _heads("cloud", "32/8", 2048, 2048, mask="causal"),
    "c2": _heads("cloud", "32/32", 4096, 4096),
    "c3": _heads("cloud", "64/8", 8192, 8192),
    "c4": _heads("cloud", "32/8", 16384, 16384),
    "c5": _heads("cloud", "32/8", 1, 8192, batch=8),
    "c6": _heads("cloud", "32/8", 1, 16384),
}

SHAPES: dict[str, dict[str, Shape]] = {
    "gemm-softmax": _PUBLISHED,
    "gemm-layernorm": _PUBLISHED,
    "attention": _ATTENTION,
}
"""Shapes by label, of each workload that has some; the first one is compared if none is named."""
