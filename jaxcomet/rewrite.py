"""Rewrites: the same mathematics as another graph of elementary operations.

The one idea: a strategy that needs another form of a workload names the rewrite in its mapping, and
the cost model prices the rewritten graph; inputs, outputs and sizes stay. `online_softmax` is the
form of flash attention.
"""

import dataclasses
from collections.abc import Callable, Sequence

from jaxcomet.mapping import MappingError
from jaxcomet.workload import CompoundOp, Operation, Tensor

Rewrite = Callable[[CompoundOp], CompoundOp]


def rewritten(workload: CompoundOp, names: Sequence[str]) -> CompoundOp:
    """A workload after the named rewrites, in order.

    Raises:
      MappingError: an unknown rewrite, or a workload without the pattern that it needs.
    """
    for name in names:
        if name not in REWRITES:
            raise MappingError(f"rewrite: got {name!r}; expected one of {', '.join(REWRITES)}")
        workload = REWRITES[name](workload)
    return workload


def _one(found: list[Operation], what: str, workload: CompoundOp) -> Operation:
    if len(found) != 1:
        raise MappingError(
            f"rewrite online-softmax: {workload.name} has {len(found)} {what}; it needs a softmax "
            "whose result goes into one contraction over the same dimension"
        )
    return found[0]


def online_softmax(workload: CompoundOp) -> CompoundOp:
    """Softmax and the contraction after it, block after block of the reduced dimension.

    After Milakov and Gimelshein 2018 (arXiv:1805.02867, algorithm 3) and Dao 2023
    (arXiv:2307.08691, algorithm 1). For each block of columns: the block's row maximum X; the
    running maximum D; F = exp(S - D); the correction W = exp(D_before - D); the running sum
    G = G W + rowsum(F); the running result U = U W + F V. After the last block O = U / G.

    The probabilities are never normalised, so F takes the place of P; the steps with D, T, W, Y, Z
    and the rescaling of U are the price: they are vector work that the plain form does not have.

    Raises:
      MappingError: the workload has no such pattern.
    """
    ops = workload.operations
    div = _one(
        [o for o in ops if o.function == "div" and len(workload.consumers(o.output)) == 1],
        "divisions by a row sum",
        workload,
    )
    powers, total = div.inputs
    rowsum = _one([o for o in ops if o.output == total and o.kind == "reduce"], "sums", workload)
    _one([o for o in ops if o.output == powers and o.function == "exp"], "powers", workload)
    values = _one(
        [o for o in ops if div.output in o.inputs and o.kind == "contract"],
        "contractions",
        workload,
    )
    rowmax = _one([o for o in ops if o.function == "max"], "row maxima", workload)
    row = workload.tensor(rowmax.output).dims
    reduced = tuple(d for d in workload.tensor(powers).dims if d not in row)
    bits = rowmax.bits
    result, largest = workload.tensor(values.output), rowmax.output

    def carried(name: str, function: str, inputs: tuple[str, ...], output: str) -> Operation:
        return Operation(
            name=name,
            kind="map",
            function=function,
            inputs=inputs,
            output=output,
            bits=bits,
            carried=reduced,
        )

    before = ops[: ops.index(rowmax)]
    inside = (
        dataclasses.replace(o, carried=reduced)
        for o in ops[ops.index(rowmax) + 1 : ops.index(rowsum)]
    )
    online = (
        dataclasses.replace(rowmax, output="X", carried=reduced),
        carried("runmax", "max", ("X", largest), largest),
        *inside,
        carried("shift", "add", (largest,), "T"),
        carried("correct", "exp", ("T",), "W"),
        dataclasses.replace(rowsum, output="Y", carried=reduced),
        carried("scale_sum", "mul", (total, "W"), "Z"),
        carried("add_sum", "add", ("Z", "Y"), total),
        carried("rescale", "mul", ("U", "W"), "U"),
        dataclasses.replace(
            values,
            inputs=tuple(powers if t == div.output else t for t in values.inputs),
            output="U",
            carried=reduced,
        ),
        Operation(
            name="normalize",
            kind="map",
            function="div",
            inputs=("U", total),
            output=result.name,
            bits=bits,
        ),
    )
    after = ops[ops.index(values) + 1 :]
    extra = [Tensor(name=n, dims=row, bits=bits) for n in ("X", "T", "W", "Y", "Z")]
    tensors = [t for t in workload.tensors if t.name != div.output]
    return dataclasses.replace(
        workload,
        operations=(*before, *online, *after),
        tensors=(*tensors, *extra, Tensor(name="U", dims=result.dims, bits=bits)),
    )


REWRITES: dict[str, Rewrite] = {"online-softmax": online_softmax}
"""Rewrites by the name that mappings use."""
