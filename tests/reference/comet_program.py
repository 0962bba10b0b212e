"""Scalar reference of the released COMET program, mapping "fused GEMM + distributed softmax".

One idea: the closed form written down in the project's notes `comet_closed_form.md` (called "the
notes" below), transcribed once more in plain Python - no numpy, no jax, nothing of `jaxcomet` - so
that the JAX model can be compared with something that shares no code with it. The notes were
derived from, and checked against, the Apache-2.0 program github.com/d-matrix-ai/comet (HEAD
917af0d) of COMET, arXiv:2509.00599. None of that program's code is used here.

Whole cycles are exact integers and every quotient is an exact `Fraction`. The program itself
divides in float32. No recorded run needs that to be reproduced: with whole numbers below 2**24 a
float32 ceil(x / b) is the exact one, and the released channel widths are powers of two.

`RULES` holds, per name, how `price` changes if one rule of the program is made right; its texts
are the precise formulas behind the notes' section 9, found by trial against every figure there.

Left out: other mappings, meshes that are not square, pipelined or parallel branches, and the
program's second total ("Total Cycles"), which re-attributes the same time.

The names follow the notes (m, n, nG, tc, Wg, xA, ...), not the rest of the repository, so that a
line here can be laid beside a line there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor

RULES: dict[str, str] = {
    # --- latency, notes section 9, first table ---
    "c_drained": """C goes from OB to GB after every GB step, memory and mesh time each.

    xC = Mg*(cm + cn) instead of cm + [Mg=1]*cn; excludes `c_never_drained`.
    """,
    "c_never_drained": """C stays in OB, where SUB reads it.

    xC = 0 instead of cm + [Mg=1]*cn; the core's own drain tC stays. Excludes `c_drained`.
    """,
    "read_stalls_every_step": """A read-port stall is charged at every step, not at step 0 only.

    [T2>=2] -> (T2-1) in both SIMD formulas, [Mg>=2] -> (Mg-1) for A and for the fills of D and F,
    [Md>=2] -> (Md-1) for A. Write stalls stay and are added. The longer Wsub, Wdiv also widen the
    windows of S2 and S3 (without that the cloud column would be +13016 instead of +12824).
    The core's GEMM is left alone: its tensors sit in three memories. The table cannot tell whether
    the stalls v-t of both ports add or the larger counts: v <= t in its four columns.
    """,
    "compulsory_once": """A dependent transfer (D or F) is charged its own time once.

    twice(x, w) = x instead of x + relu(x - relu(w)), at all four places.
    """,
    "core_ramp": """A resident B takes from the core's ramp-up only what it had added to it.

    rb = [Kt*Nt=1] * (max(tA, tB) - tA) instead of [Kt*Nt=1 and tB>=tA] * tB; used both for the
    later GB steps and for the later DRAM steps.
    """,
    "pipelined_moves": """Memory and mesh stages of a move overlap.

    A move costs max(mem, net) instead of mem + net; net keeps its hops, none are added. Applies to
    dv, dm, xA, xB, yA, yB, yH. Not to C, which stays cm + [Mg=1]*cn (with C too, column 1 would
    be -2634 instead of -2630), and not to the all-reduces.
    """,
    "ring_memory": """Memory time of an all-reduce at the ring bound, read and write counted.

    ceil(2 * 2(p-1)/p * 2s/link) instead of ceil(2*B1*p + B1), where link = min(link, P_gb).
    The first 2 is read + write: 2(p-1)/p * 2s/link alone, the notes' section 3, does not give the
    table (column 1 would be -277 instead of -265).
    """,
    "ring_arithmetic": """Arithmetic of an all-reduce shared by the p nodes.

    s*(p-1)/p/16 instead of s*h*p/16, inside the same truncation as the mesh time.
    """,
    "allreduce_rowsums": """The second all-reduce adds the row sums G, not the matrix F.

    R2 = R(m) instead of R(m*nG). The only latency rule that changes the energy too: item 7 takes
    (m, 0.11) instead of (m*nG, 0.11), for which the notes give no figure.
    """,
    # --- energy, notes section 9, second list ---
    "dram_mesh_energy": """The gb mesh between DRAM and the GBs costs energy too.

    Adds Md*noc_gb(Mg*m*K, 8, 1) + noc_gb(K*nG, 8, 1) + Md*noc_gb(Mg*m*nG, 8, 1): A and H at every
    DRAM step, B once, each with the tile of one GB, as in the times yA, yB, yH.
    """,
    "all_clusters_mesh_energy": """The core meshes of all clusters count.

    Item 8 as a whole (ib, wb and ob moves, not the all-reduces of item 7) times p.
    """,
    "broadcast_all_receivers": """A broadcast tile of A is written at each receiver.

    Item 1: a*gw -> p*a*gw. Item 2: A*(gr + iw) -> A*(gr + c*iw). Both are needed (item 2 alone
    gives +.02 and +.48 instead of +.11 and +1.03).
    """,
    "b_moved_once": """B goes from GB to the cores once in the whole run, as in time.

    Item 2: Q*p*c*B*(gr + iw) -> p*c*B*(gr + iw). Item 8: Md*noc_wb(B) -> noc_wb(B). Both are needed
    (item 2 alone gives -1.75 and -.52 instead of -1.79 and -.57).
    """,
    "vector_all_cores": """ROWMAX, SUB, EXP and ROWSUM run on all p*c cores, as DIV does.

    Their four terms of item 5 and their four terms of item 6, both times c.
    """,
    "lane_ops_ceil": """A SIMD step issues ceil(Nc/16) instructions of 16 lanes, not one.

    Item 6 as a whole, DIV included, times ceil(Nc/16).
    """,
    "allreduce_memory_energy_once": """Each GB reads and writes its tile once in an all-reduce.

    Item 7: p*s*2*p*(gr + gw) -> p*s*2*(gr + gw), for both all-reduces; arithmetic and noc stay.
    """,
    "c_mesh_every_step": """C crosses the ob mesh at every GB step.

    Item 8: Md*noc_ob(X, 8, 1) -> Q*noc_ob(X, 8, 1).
    """,
}


@dataclass(frozen=True, kw_only=True)
class Network:
    """One mesh network: what a move over it needs to know."""

    port_bytes_per_cycle: int
    hop_cycles: int
    queuing_cycles: int
    width_bits: int


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Every machine number of the closed form, by the names of the notes.

    `gb` joins DRAM and the GBs, and the GBs among each other; `ib`, `wb`, `ob` join a GB and its
    cores' buffers. `ibE`, `wbE`, `obE` are the ports of the GEMM engine, `se` that of the SIMD
    engine on OB, in bytes per cycle. `mesh_edge` is that of the cluster mesh and of the core mesh.
    """

    mesh_edge: int
    gb: Network
    ib: Network
    wb: Network
    ob: Network
    ibE: int
    wbE: int
    obE: int
    se: int
    dram_bytes_per_cycle: int
    link_bytes_per_cycle: int
    gb_port_bytes_per_cycle: int
    buffer_port_bytes_per_cycle: int
    ib_bytes: int
    wb_bytes: int
    ob_bytes: int
    gb_bytes: int
    array_edge: int
    array_grid: int
    simd_lanes: int
    rowmax_cycles: int
    sub_cycles: int
    exp_cycles: int
    rowsum_cycles: int
    div_cycles: int
    dram_pj_per_byte: float
    gb_read_pj_per_byte: float
    gb_write_pj_per_byte: float
    iw_read_pj_per_byte: float
    iw_write_pj_per_byte: float
    ob_read_pj_per_byte: float
    ob_write_pj_per_byte: float
    mac_pj: float
    max_pj: float
    add_pj: float
    exp_pj: float
    div_pj: float


@dataclass(frozen=True, kw_only=True)
class Priced:
    """Result of `price`; `nodes` holds the intermediate values of the notes' section 8."""

    latency_cycles: int
    energy_pj: float
    oom: tuple[str, int, int] | None
    nodes: dict[str, int]


def _numbers(
    *,
    mesh_edge: int,
    port: int,
    wb_engine_port: int,
    width_bits: int,
    dram_bytes_per_cycle: int,
    gb_bytes: int,
    gb_word_bytes: int,
    gb_read_pj: float,
    gb_write_pj: float,
) -> Numbers:
    mesh = Network(port_bytes_per_cycle=port, hop_cycles=5, queuing_cycles=2, width_bits=width_bits)
    return Numbers(
        mesh_edge=mesh_edge,
        gb=mesh,
        ib=mesh,
        wb=mesh,
        ob=mesh,
        ibE=port,
        wbE=wb_engine_port,
        obE=port,
        se=port,
        dram_bytes_per_cycle=dram_bytes_per_cycle,
        link_bytes_per_cycle=port,
        gb_port_bytes_per_cycle=2048,
        buffer_port_bytes_per_cycle=4096,
        ib_bytes=32768,
        wb_bytes=32768,
        ob_bytes=131072,
        gb_bytes=gb_bytes,
        array_edge=32,
        array_grid=8,
        simd_lanes=16,
        rowmax_cycles=4,
        sub_cycles=1,
        exp_cycles=3,
        rowsum_cycles=4,
        div_cycles=1,
        dram_pj_per_byte=100.0,
        gb_read_pj_per_byte=gb_read_pj / gb_word_bytes,
        gb_write_pj_per_byte=gb_write_pj / gb_word_bytes,
        iw_read_pj_per_byte=47 / 4096,
        iw_write_pj_per_byte=60 / 4096,
        ob_read_pj_per_byte=72 / 4096,
        ob_write_pj_per_byte=129 / 4096,
        mac_pj=0.2296,
        max_pj=0.0025,
        add_pj=0.11,
        exp_pj=3.86,
        div_pj=0.8,
    )


def edge() -> Numbers:
    """Numbers of the released edge machine (notes, sections 1, 2 and 7)."""
    return _numbers(
        mesh_edge=2,
        port=64,
        wb_engine_port=512,
        width_bits=512,
        dram_bytes_per_cycle=25,
        gb_bytes=2097152,
        gb_word_bytes=2048,
        gb_read_pj=474,
        gb_write_pj=532,
    )


def cloud() -> Numbers:
    """Numbers of the released cloud machine (notes, sections 1, 2 and 7)."""
    return _numbers(
        mesh_edge=4,
        port=256,
        wb_engine_port=256,
        width_bits=2048,
        dram_bytes_per_cycle=50,
        gb_bytes=8388608,
        gb_word_bytes=4096,
        gb_read_pj=994,
        gb_write_pj=1111,
    )


def _up(x: int, b: int) -> int:
    """ceil(x / b), exactly."""
    return ceil(Fraction(x) / Fraction(b))


def _relu(x: int) -> int:
    return max(0, x)


def _hops(numbers: Numbers) -> int:
    """h of the notes: mesh hops of one phase, (e-1) each way of the square mesh."""
    return 2 * (numbers.mesh_edge - 1)


def net(numbers: Numbers, network: Network, s: int, bits: int) -> int:
    """Mesh cycles of one move, s elements a child tile (notes, section 3)."""
    h = _hops(numbers)
    words = Fraction(s * h * bits) / Fraction(network.width_bits)
    return floor(h * Fraction(network.hop_cycles) + words * Fraction(network.queuing_cycles))


def all_reduce(numbers: Numbers, s: int, rules: frozenset[str] | set[str] = frozenset()) -> int:
    """Cycles R(s) of an all-reduce of s 16-bit elements over the p GBs (notes, section 3)."""
    h, p = _hops(numbers), numbers.mesh_edge**2
    network = numbers.gb
    port = Fraction(min(numbers.link_bytes_per_cycle, network.port_bytes_per_cycle))
    if "ring_memory" in rules:
        memory = 2 * Fraction(2 * (p - 1), p) * (2 * s / port)
    else:
        b1 = s * p * 2 / port
        memory = 2 * b1 * p + b1
    words = Fraction(s * h * 16) / Fraction(network.width_bits)
    lanes = numbers.simd_lanes
    if "ring_arithmetic" in rules:
        arithmetic = Fraction(s * (p - 1), p * lanes)
    else:
        arithmetic = Fraction(s * h * p, lanes)
    hop, tq = Fraction(network.hop_cycles), Fraction(network.queuing_cycles)
    return ceil(memory) + floor(2 * h * hop + 2 * words * tq + arithmetic)


def noc(numbers: Numbers, network: Network, s: int, bits: int, f: int) -> float:
    """Router and link energy, pJ, of one move (f = 1) or all-reduce (f = 2) of s elements.

    The Orion-style model at the end of the notes' section 7, with its quirks: the output-control
    term enters once more as a power (Y*(h+q)*z), Pk is not multiplied by a time, Px lacks the
    frequency in its first part.
    """
    e, W, tq = numbers.mesh_edge, network.width_bits, network.queuing_cycles
    Cg, Cd, Cl = 5.34e-16, 2.67e-16, 1.068e-16
    Ci, Co, Cj = 3 * Cg, 3 * Cd, 3 * (Cg + Cl)
    freq = 1 / (20 * 606.321 * (3 * Cd + 12 * Cg + 12 * Cl))
    y0 = 0.81 * freq
    a, d, w, lam = 8e-5, 1.6e-4, 1.069356e-12, 0.016
    kap = (5 / 16) * (1 + Co / Cj)

    def clk(j: int, x: int) -> float:
        return j * (1 + kap) * x * (8 * a * w + Cj) * y0

    def dff(j: int, x: int) -> float:
        idle = 1.6 * (Ci + Co)
        return j * x * y0 * (0.5 * (idle + 1.6 * (2 / 3) * Co) + idle + 1.6 * (2 / 3) * Cg)

    Pw = y0 * (8.1 * (Ci + Co) + w)
    Pk, Pq = clk(2, 2), clk(1, W)
    Pd, Po = dff(2, 2), dff(1, W)
    decode = 1.25 * (1 + Co / Ci) * (12 * W * a * w + 5 * W * Ci)
    drive = 2 * w * (8 * a + 30) * Ci + W * (8 * lam * Cg + 6 * a * w)
    line = y0 * (decode + (1 + (5 / 16) * (1 + Co / Ci)) * drive)
    bit = 30 * (4 * lam * Cd + 8 * a * w)
    Pr = line + W * y0 * bit
    Px = line + W * (0.81 * (Co + Ci) + y0 * bit)
    L = 5 * W * d
    Cn = L * w
    xi = Cn / 16
    xo = xi * 4 * Co / Cj
    Pb = 0.5 * W * y0 * (kap * (0.5 * w * L + xi) + 2 * Cn + 6 * xi + 5 * xo + xo)
    Pc = (1 + kap) * y0 * (5 * W * Cn / 16 + 2 * L * w)

    h = 2 * (e - 1) * f
    q = tq * floor(s * h * bits) / W
    k, z = e * (2 * e - 2), e * e
    Y = Pq * h * 2 * z
    return (
        Pw * (h + q) * k
        + Pk * 2 * z
        + Pd * (h + q) * k
        + (Pr + Px) * q * z
        + Pb * 3 * h * z
        + Pc * (3 * h + q) * z
        + Po * (h + q) * z
        + Y
        + Y * (h + q) * z
    )


def price(
    numbers: Numbers,
    shape: tuple[int, int, int],
    factors: Mapping[str, int | str],
    rules: frozenset[str] | set[str] = frozenset(),
) -> Priced:
    """Latency, energy and feasibility of one mapping, by the notes' sections 2 to 7.

    Args:
      numbers: the machine.
      shape: (M, N, K) of the GEMM.
      factors: the mapping, by the column names of `comet_program_runs.csv` (M_dram_t, M_gb_t,
        M_core_t, M_comp, N_dram_sx, N_dram_sy, N_gb_sx, N_gb_sy, N_core_t, N_comp, K_core_t,
        K_comp); other keys are ignored, values may be text.
      rules: names of `RULES`, each of which replaces one rule of the program by a better one.

    Returns:
      The price. A mapping that does not fit is priced all the same; `oom` then names the first
      of IB, WB, OB, GB that overflows, the bytes needed and the bytes there are.

    Raises:
      ValueError: a factor product differs from its dimension, a spatial factor differs from the
        mesh edge, a rule is unknown, or both rules on C are asked for.
    """
    if unknown := set(rules) - set(RULES):
        raise ValueError(f"unknown rules {sorted(unknown)}; known: {sorted(RULES)}")
    if {"c_drained", "c_never_drained"} <= set(rules):
        raise ValueError("rules c_drained and c_never_drained exclude each other; give one")

    M, N, K = shape
    e = numbers.mesh_edge
    for name in ("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"):
        if int(factors[name]) != e:
            raise ValueError(f"factors[{name!r}]: got {factors[name]}; expected mesh edge {e}")
    p = c = e * e
    Md, Mg, Mt, Mc = (int(factors[f"M_{x}"]) for x in ("dram_t", "gb_t", "core_t", "comp"))
    Kt, Kc = int(factors["K_core_t"]), int(factors["K_comp"])
    Nt, Nc = int(factors["N_core_t"]), int(factors["N_comp"])
    for name, product, bound in (
        ("M", Md * Mg * Mt * Mc, M),
        ("N", p * c * Nt * Nc, N),
        ("K", Kt * Kc, K),
    ):
        if product != bound:
            raise ValueError(f"factors of {name}: their product is {product}; expected {bound}")
    m, n = Mt * Mc, Nt * Nc
    nG = c * n

    # Section 2: footprints, bytes.
    footprints = (
        ("IB", m * K, numbers.ib_bytes),
        ("WB", K * n, numbers.wb_bytes),
        ("OB", 4 * m * n + 2 * m, numbers.ob_bytes),
        ("GB", Mg * m * K + K * nG + Mg * m + 2 * Mg * m * nG, numbers.gb_bytes),
    )
    oom = next((buffer for buffer in footprints if buffer[1] > buffer[2]), None)

    # Section 3: moves. A move over a network costs memory and mesh time.
    gb_port, buffer_port = numbers.gb_port_bytes_per_cycle, numbers.buffer_port_bytes_per_cycle

    def mem(network: Network, parent: int, child: int, s: int, b: int, k: int) -> int:
        port = network.port_bytes_per_cycle
        return max(_up(k * s * b, min(parent, port)), _up(s * b, min(child, port)))

    def mem_core(network: Network, s: int, b: int, k: int) -> int:
        return mem(network, gb_port, buffer_port, s, b, k)

    def join(memory: int, mesh: int) -> int:
        return max(memory, mesh) if "pipelined_moves" in rules else memory + mesh

    def move_core(network: Network, s: int, b: int, k: int) -> int:
        return join(mem_core(network, s, b, k), net(numbers, network, s, 8 * b))

    def move_dram(s: int, k: int) -> int:
        memory = mem(numbers.gb, numbers.dram_bytes_per_cycle, gb_port, s, 1, k)
        return join(memory, net(numbers, numbers.gb, s, 8))

    def first_steps(steps: int) -> int:
        """How often a read stall is charged: [steps >= 2], or steps - 1 if corrected."""
        return steps - 1 if "read_stalls_every_step" in rules else min(1, steps - 1)

    def twice(x: int, window: int) -> int:
        return x if "compulsory_once" in rules else x + _relu(x - _relu(window))

    # Section 4.1: GEMM in a core.
    T = Mt * Kt * Nt
    R, side = numbers.array_edge, numbers.array_edge * numbers.array_grid
    tc = (2 * R + R + Mc - 2) * _up(Kc, side) * _up(Nc, side)
    tA = _up(Mc * Kc, min(buffer_port, numbers.ibE))
    tB = _up(Kc * Nc, min(buffer_port, numbers.wbE))
    tC = _up(Mc * Nc, min(buffer_port, numbers.obE))
    rA = Nt if Mt == 1 and Kt == 1 else 1
    rB = Mt
    rC = Kt if Mt == 1 else 1
    a, b, g = _relu(tA // rA - tc), _relu(tB // rB - tc), _relu(tC // rC - tc)
    S = 0
    cuts = sorted({0, T - rA, T - rB, min(rC, T), T})
    for start, stop in pairwise(cuts):
        stalls = [0]
        stalls += [a] if start < T - rA else []
        stalls += [b] if start < T - rB else []
        stalls += [g] if start >= rC else []
        S += (stop - start) * max(stalls)
    Wg = T * tc + max(tA, tB) + tC + S

    # Section 4.2: SIMD in a core.
    T2 = m * Nt
    x = _up(Nc, numbers.simd_lanes)
    v = _up(2 * Nc, min(buffer_port, numbers.se))
    u = _up(2, min(buffer_port, numbers.se))
    r1 = Nt if m == 1 else 1
    k1 = T2 // r1

    def reduction(op_cycles: int) -> int:
        t = op_cycles * x
        read = first_steps(T2) * _relu(v - t)
        return T2 * t + v + u + read + (T2 - r1) * _relu(u // r1 - t)

    def elementwise(op_cycles: int, q: int) -> int:
        t = op_cycles * x
        vector = q * (r1 == 1) * _relu(u - _relu(t - v))
        read = first_steps(T2) * (_relu(v - t) + vector)
        return T2 * t + 2 * v + q * u + read + (T2 - 1) * _relu(v - t)

    Wmax = reduction(numbers.rowmax_cycles)
    Wsub = elementwise(numbers.sub_cycles, 1)
    Wexp = elementwise(numbers.exp_cycles, 0)
    Wsum = reduction(numbers.rowsum_cycles)
    Wdiv = elementwise(numbers.div_cycles, 1)

    # Section 5: one DRAM step, Mg GB steps.
    dv = move_core(numbers.ob, m, 2, c)
    dm = move_core(numbers.ob, m * n, 2, c)
    xA = move_core(numbers.ib, m * K, 1, 1)
    xB = move_core(numbers.wb, K * n, 1, c)
    cm, cn = mem_core(numbers.ob, m * n, 1, c), net(numbers, numbers.ob, m * n, 8)
    if "c_never_drained" in rules:
        xC = 0
    elif "c_drained" in rules:
        xC = Mg * (cm + cn)
    else:
        xC = cm + (Mg == 1) * cn
    if "core_ramp" in rules:
        rb = (Kt * Nt == 1) * (max(tA, tB) - tA)
    else:
        rb = tB if Kt * Nt == 1 and tB >= tA else 0
    G = Wg + (Mg - 1) * (Wg - rb) + xA + xB + xC + first_steps(Mg) * _relu(xA - Wg)

    S1 = Mg * Wmax + dv + (Mg - 1) * twice(dv, Wmax - T2 * v)
    W2 = Wsub + Wexp
    S2 = Mg * W2 + dv + dm + first_steps(Mg) * twice(dv, W2 - 2 * T2 * v)
    S2 += (Mg - 1) * twice(dm, W2 - 2 * T2 * v - k1 * u)
    W3 = Wsum + Wdiv
    S3 = Mg * W3 + 2 * dm + first_steps(Mg) * twice(dm, W3 - T2 * v - k1 * u)
    S3 += (Mg - 1) * _relu(dm - _relu(W3 - 2 * T2 * v - k1 * u))

    s2 = m if "allreduce_rowsums" in rules else m * nG
    R1, R2 = all_reduce(numbers, m, rules), all_reduce(numbers, s2, rules)
    body = G + S1 + S2 + S3 + Mg * (R1 + R2)

    # Section 6: Md DRAM steps.
    yA, yB, yH = move_dram(Mg * m * K, 1), move_dram(K * nG, p), move_dram(Mg * m * nG, p)
    latency = body + (Md - 1) * (body - xB - rb) + yA + yB + yH
    latency += first_steps(Md) * _relu(yA - body) + (Md - 1) * _relu(yH - body)

    nodes = {"tc": tc, "T": T, "Wg": Wg, "rb": rb, "xA": xA, "xB": xB, "xC": xC, "G": G}
    nodes |= {"Wmax": Wmax, "Wsub": Wsub, "Wexp": Wexp, "Wsum": Wsum, "Wdiv": Wdiv}
    nodes |= {"dv": dv, "dm": dm, "S1": S1, "S2": S2, "S3": S3, "R1": R1, "R2": R2, "body": body}
    nodes |= {"yA": yA, "yB": yB, "yH": yH}

    # Section 7: energy, pJ.
    Q = Md * Mg
    gr, gw = numbers.gb_read_pj_per_byte, numbers.gb_write_pj_per_byte
    ir, iw = numbers.iw_read_pj_per_byte, numbers.iw_write_pj_per_byte
    o_r, ow = numbers.ob_read_pj_per_byte, numbers.ob_write_pj_per_byte
    A, B, X, V = m * K, K * n, m * n, m

    dram_a, dram_b, dram_h = Md * Mg * m * K, p * K * nG, M * N
    energy = (dram_a + dram_b + dram_h) * numbers.dram_pj_per_byte
    gb_receivers, core_receivers = (p, c) if "broadcast_all_receivers" in rules else (1, 1)
    energy += (gb_receivers * dram_a + dram_b) * gw + dram_h * gr
    b_moves = 1 if "b_moved_once" in rules else Q
    energy += Q * p * (A * (gr + core_receivers * iw) + c * X * (gw + o_r))
    energy += b_moves * p * c * B * (gr + iw)
    moved = (T // rA) * Mc * Kc * ir + (T // rB) * Kc * Nc * ir + (T // rC) * Mc * Nc * ow
    energy += Q * p * c * (moved + T * Mc * Nc * Kc * numbers.mac_pj)

    up_drain, down_fill = gw + o_r, gr + ow
    simd_gb = V * up_drain + V * down_fill + c * X * up_drain + c * X * down_fill + c * X * up_drain
    energy += Q * p * 2 * simd_gb

    Am, Av = 2 * T2 * Nc, 2 * k1
    four = (Am * o_r + Av * ow) + (Am * o_r + Av * o_r + Am * ow) + (Am * o_r + Am * ow)
    four += Am * o_r + Av * ow
    cores = c if "vector_all_cores" in rules else 1
    energy += Q * p * (cores * four + c * (Am * o_r + Av * o_r + Am * ow))

    stages = 4  # log2 of the 16 lanes, in a row reduction
    four_ops = stages * numbers.max_pj + numbers.add_pj + numbers.exp_pj + stages * numbers.add_pj
    instructions = x if "lane_ops_ceil" in rules else 1
    lanes = numbers.simd_lanes
    energy += Q * p * T2 * lanes * instructions * (cores * four_ops + c * numbers.div_pj)

    h = _hops(numbers)
    copies = 1 if "allreduce_memory_energy_once" in rules else p
    for s, op_pj in ((m, numbers.max_pj), (s2, numbers.add_pj)):
        energy += Q * (p * s * 2 * copies * (gr + gw) + s * h * p * op_pj)
        energy += Q * noc(numbers, numbers.gb, s, 16, 2)

    c_moves = Q if "c_mesh_every_step" in rules else Md
    mesh = Q * noc(numbers, numbers.ib, A, 8, 1)
    b_mesh_moves = 1 if "b_moved_once" in rules else Md
    mesh += b_mesh_moves * noc(numbers, numbers.wb, B, 8, 1) + c_moves * noc(
        numbers, numbers.ob, X, 8, 1
    )
    mesh += Q * 2 * noc(numbers, numbers.ob, V, 16, 1) + Q * 3 * noc(numbers, numbers.ob, X, 16, 1)
    energy += mesh * (p if "all_clusters_mesh_energy" in rules else 1)
    if "dram_mesh_energy" in rules:
        energy += Md * noc(numbers, numbers.gb, Mg * A, 8, 1)
        energy += noc(numbers, numbers.gb, K * nG, 8, 1)
        energy += Md * noc(numbers, numbers.gb, Mg * m * nG, 8, 1)

    return Priced(latency_cycles=latency, energy_pj=energy, oom=oom, nodes=nodes)
