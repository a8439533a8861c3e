"""The laws of regularisers, compressors and topologies, at the points of a few samples."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxfed.compressors import COMPRESSORS
from proxfed.harness.conformance import common
from proxfed.harness.conformance.law import Broken, DoesNotApply, Law, Report, check_laws, collect, must
from proxfed.keyed_random import Key, generator, keys
from proxfed.regularisers import REGULARISERS
from proxfed.topologies import TOPOLOGIES, check, psi
from proxfed.topologies import dense as as_matrix
from proxfed.types import Compressor, Mixing, Regulariser, Topology

D = 12
"""Numbers of a vector: groups of 2, 3, 4 and 6 fit."""

NODES = 8
"""Of a topology that leaves its size to the run."""

REGULARISER_LAWS: list[Law] = []
COMPRESSOR_LAWS: list[Law] = []
TOPOLOGY_LAWS: list[Law] = []
of_regularisers, of_compressors, of_topologies = map(collect, (REGULARISER_LAWS, COMPRESSOR_LAWS, TOPOLOGY_LAWS))


def check_regulariser(h: Regulariser) -> Report:
    """Put all laws to a regulariser, on vectors of 12 numbers."""
    return check_laws(h, "regulariser", REGULARISER_LAWS)


def check_compressor(C: Compressor) -> Report:
    """Put all laws to a compressor, on vectors of 12 numbers."""
    return check_laws(C, "compressor", COMPRESSOR_LAWS)


def check_topology(topology: Topology) -> Report:
    """Put all laws to a topology."""
    return check_laws(topology, "topology", TOPOLOGY_LAWS)


def normal(seed: int, rows: int) -> Tensor:
    return torch.from_numpy(generator(seed, "conformance").standard_normal((rows, D)))


def square(x: Tensor) -> Tensor:
    return (x * x).sum(-1)


def first(broken: Tensor) -> int | None:
    """The first row of which something is true."""
    rows = broken.nonzero()
    return int(rows[0, 0]) if len(rows) else None


# ---- regularisers ----------------------------------------------------------------------------------------------------

SCALES = (0.05, 1.0, 10.0)


def steps(h: Regulariser) -> list[float]:
    """Steps from small to nearly the largest that h allows."""
    most = 0.95 / h.weak_convexity if h.weak_convexity > 0 else 2.0
    return [part * min(most, 2.0) for part in (0.005, 0.3, 1.0)]


@of_regularisers()
def keeps_shapes_and_dtypes(h: Regulariser) -> None:
    """A value for each row, whatever stands in front; a prox in the shape and dtype of v, which stays as it is."""
    for dtype in (torch.float32, torch.float64):
        for shape in ((D,), (3, D), (2, 3, D), (0, D)):
            v = torch.from_numpy(generator(1, "conformance").standard_normal(shape)).to(dtype)
            before, p, value = v.clone(), h.prox(v, steps(h)[0]), h.value(v)
            must(p.shape == v.shape, f"the prox of {tuple(shape)} has the shape {tuple(p.shape)}")
            must(p.dtype == dtype, f"the prox of a {dtype} is a {p.dtype}")
            must(value.shape == shape[:-1], f"the values of {tuple(shape)} have the shape {tuple(value.shape)}")
            must(torch.equal(v, before), "prox() or value() writes into its argument: it must make new tensors")


@of_regularisers()
def prox_minimises(h: Regulariser) -> None:
    """p = prox(v, step) minimises F(u) = step h(u) + |u - v|^2 / 2: F(u) >= F(p) + (1 - step rho)/2 |u - p|^2."""
    for scale in SCALES:
        v, noise = scale * normal(2, 8), normal(3, 8)
        for step in steps(h):
            p = h.prox(v, step)
            at_p = step * h.value(p) + square(p - v) / 2
            must(bool(at_p.isfinite().all()), f"step = {step:g}: h is not finite at a prox")
            near = [p + size * noise for size in (1e-4, 1e-2, 1.0, scale)]
            sparse = [torch.zeros_like(v), p * (noise > 0), p + (v - p) * (noise > 1)]
            for u in [*near, *sparse, *(h.prox(w, step) for w in near), v]:  # a prox: feasible for indicators
                at_u, growth = step * h.value(u) + square(u - v) / 2, (1 - step * h.weak_convexity) / 2 * square(u - p)
                slack = 1e-12 * (1 + at_p.abs() + growth)
                if (k := first(~(at_u >= at_p + growth - slack))) is not None:
                    less = float((at_p + growth - at_u)[k])
                    raise Broken(
                        f"step = {step:g}: another point is better than the prox, or too nearly as good, by {less:.1e}"
                    )


@of_regularisers()
def prox_is_as_smooth_as_the_theory_says(h: Regulariser) -> None:
    """Convex: |p - q|^2 <= <p - q, v - w>, firmly non-expansive; else |p - q| <= |v - w| / (1 - step rho)."""
    rho = h.weak_convexity
    for scale in SCALES:
        v = scale * normal(4, 40)
        w = torch.where(torch.arange(40)[:, None] < 20, normal(5, 40), v + 0.1 * normal(5, 40))
        for step in steps(h):
            d = h.prox(v, step) - h.prox(w, step)
            if rho == 0:
                excess = square(d) - (d * (v - w)).sum(-1)
                bound, slack = "<p - q, v - w>", 1e-12 * (1 + square(v - w))
            else:
                excess = square(d).sqrt() - square(v - w).sqrt() / (1 - step * rho)
                bound, slack = "|v - w| / (1 - step rho)", 1e-10 * (1 + square(v - w).sqrt())
            if (k := first(~(excess <= slack))) is not None:
                raise Broken(
                    f"step = {step:g}, weak_convexity = {rho:g}: {bound} is exceeded by {float(excess[k]):.1e}"
                )


@of_regularisers()
def is_as_convex_as_it_says(h: Regulariser) -> None:
    """h((x + y)/2) <= (h(x) + h(y))/2 + weak_convexity/8 |x - y|^2 between any two points."""
    rho = h.weak_convexity
    for scale in SCALES:
        x, y = h.prox(scale * normal(6, 200), steps(h)[0]), h.prox(scale * normal(7, 200), steps(h)[0])
        for part in (1.0, 0.1):
            z = x + part * (y - x)
            mean = (h.value(x) + h.value(z)) / 2
            excess = h.value((x + z) / 2) - mean - rho / 8 * square(x - z)
            if (k := first(~(excess <= 1e-10 * (1 + mean.abs())) & mean.isfinite())) is not None:
                raise Broken(f"weak_convexity = {rho:g}, but the value half-way is {float(excess[k]):.1e} too large")


@of_regularisers()
def rows_are_independent(h: Regulariser) -> None:
    """Value and prox of a row do not depend on the rows beside it."""
    v, step = normal(8, 5), steps(h)[1]
    for name, of in (("prox", lambda x: h.prox(x, step)), ("value", h.value)):
        together, alone = of(v), torch.stack([of(row) for row in v])
        off = 0.0 if torch.equal(together, alone) else float((together - alone).abs().max())
        must(off <= 1e-12, f"the {name} of rows differs by {off:.1e} from that of each alone")


@of_regularisers()
def an_indicator_projects(h: Regulariser) -> None:
    """If it is an indicator: 0 at every prox, whatever the step, and the prox of a prox is itself."""
    if not h.indicator:
        must(bool(h.value(normal(9, 20)).isfinite().all()), "it is infinite somewhere, but indicator is False")
        raise DoesNotApply("it is no indicator")
    v = 3 * normal(9, 20)
    p = h.prox(v, 0.5)
    must(bool((h.value(p) == 0).all()), f"its value at a projection is {float(h.value(p).max()):g}, not 0")
    for what, q in (("with another step", h.prox(v, 50.0)), ("of a projection", h.prox(p, 0.5))):
        off = float((p - q).abs().max())
        must(off <= 1e-12, f"the projection {what} differs by {off:.1e}")


# ---- compressors -----------------------------------------------------------------------------------------------------

DRAWS = 2000


def vectors(rows: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows of different shapes: normal, heavy-tailed, mostly zero, flat, one large entry."""
    g = normal(1, 5)
    shapes = [g[0], g[1] ** 5, g[2] * (g[2] > 0.8), g[3].sign(), torch.eye(D, dtype=g.dtype)[3] * -7]
    return torch.stack([shapes[i % 5] for i in range(rows)]).to(dtype)


def some_keys(rows: int, seed: int = 0) -> Key:
    return keys(seed, "conformance", range(rows), 0)


@of_compressors()
def loses_no_more_than_its_contraction(C: Compressor) -> None:
    """E|C(v) - v|^2 <= contraction(d) |v|^2, the mean over 2000 keys but for five standard errors."""
    q2 = C.contraction(D)
    for v in vectors():
        error = square(C(v.expand(DRAWS, D), some_keys(DRAWS)).dense - v) / square(v)
        mean, deviation = float(error.mean()), float(error.std()) / sqrt(DRAWS)
        must(mean <= q2 + 5 * deviation + 1e-12, f"it loses {mean:.4g} of |v|^2, but contraction({D}) is {q2:.4g}")


@of_compressors()
def is_unbiased_if_it_says_so(C: Compressor) -> None:
    """If unbiased, E C(v) = v, the mean over 2000 keys but for six standard errors."""
    if not C.unbiased:
        raise DoesNotApply("it does not say that it is unbiased")
    for v in vectors():
        drawn = C(v.expand(DRAWS, D), some_keys(DRAWS)).dense
        off, allowed = float((drawn.mean(0) - v).norm()), 6 * float(drawn.var(0).sum().sqrt()) / sqrt(DRAWS)
        must(off <= allowed + 1e-12 * float(v.norm()), f"the mean of {DRAWS} draws is {off:.2g} from v")


@of_compressors(dtype=[torch.float32, torch.float64])
def decode_of_encode_is_dense(C: Compressor, dtype: torch.dtype) -> None:
    """What is read from the bytes of a message is its dense value, bit by bit, in the dtype of v."""
    v = vectors(dtype=dtype)
    packed = C(v, some_keys(len(v)))
    must(packed.dense.shape == v.shape, f"dense has the shape {tuple(packed.dense.shape)}, not {tuple(v.shape)}")
    must(packed.dense.dtype == dtype, f"dense is {packed.dense.dtype} for a {dtype}")
    read = C.decode(C.encode(packed), D, dtype)
    must(read.dtype == dtype, f"decode returns {read.dtype} for a {dtype}")
    off = 0.0 if torch.equal(read, packed.dense) else float((read - packed.dense).abs().max())
    must(torch.equal(read, packed.dense), f"decode(encode(p)) differs from p.dense by {off:.1e}")


@of_compressors(dtype=[torch.float32, torch.float64])
def bytes_promised_are_bytes_encoded(C: Compressor, dtype: torch.dtype) -> None:
    """`best` is exactly the length of what encode makes, a message for each row; `nbytes` grows with the rows alone."""
    v = vectors(dtype=dtype)
    packed = C(v, some_keys(len(v)))
    messages = C.encode(packed)
    must(len(messages) == len(v), f"encode makes {len(messages)} messages of {len(v)} rows")
    total = sum(map(len, messages))
    must(packed.best == total, f"best is {packed.best}, but encode makes {total} bytes")
    alone = sum(C(v[i : i + 1], some_keys(len(v))[i : i + 1]).nbytes for i in range(len(v)))
    must(packed.nbytes == alone, f"nbytes of {len(v)} rows is {packed.nbytes}, but {alone} in sum when each is alone")


@of_compressors()
def rows_and_keys_decide(C: Compressor) -> None:
    """C(v) is a function of v and the key alone, row by row, and leaves v as it is."""
    v, key = vectors(), some_keys(5)
    before, block, again = v.clone(), C(v, key).dense, C(v, key).dense
    must(torch.equal(v, before), "it writes into v: it must make new tensors")
    must(torch.equal(block, again), "two calls with the same key differ: randomness must come from the key")
    alone = torch.cat([C(v[i : i + 1], key[i : i + 1]).dense for i in range(5)])
    off = float(((alone - block).abs().amax(1) / v.norm(dim=1)).max())
    must(off <= 1e-12, f"a row depends on the rows beside it: alone it differs by {off:.1e}")


# ---- topologies ------------------------------------------------------------------------------------------------------


def rounds(topology: Topology) -> list[Mixing]:
    """Those of a period, or some that are drawn."""
    return [topology.W(t) for t in range(topology.period or 20)]


@of_topologies()
def rows_of_W_average(topology: Topology) -> None:
    """W(t) is over n nodes, has no negative entry, and its rows sum to one."""
    for W in rounds(topology):
        must(W.n == topology.n, f"W has {W.n} nodes, but n is {topology.n}")
        order = np.asarray(W.row) * W.n + np.asarray(W.col)
        must(bool((np.diff(order) > 0).all()), "the entries of W must be sorted by row and column, each once")
        inside = len(order) == 0 or (min(W.row.min(), W.col.min()) >= 0 and max(W.row.max(), W.col.max()) < W.n)
        must(bool(inside), f"an entry of W is outside of 0..{W.n - 1}")
        check(W, columns=False, connected=False)


@of_topologies()
def columns_sum_to_one_if_it_says_so(topology: Topology) -> None:
    """If doubly_stochastic, the columns of W sum to one as well, so that mixing keeps the mean."""
    if not topology.doubly_stochastic:
        raise DoesNotApply("it does not say that W is doubly stochastic")
    for W in rounds(topology):
        check(W, columns=True, connected=False)


@of_topologies()
def everybody_is_reached(topology: Topology) -> None:
    """Over a period everybody hears from everybody, directly or not; where rounds are drawn, disagreement shrinks."""
    check(topology, columns=False)


@of_topologies()
def spectral_gap_is_as_stated(topology: Topology) -> None:
    """1 - |W - J|_2; of a period 1 - |W_k ... W_1 - J|_2^(1/k); of drawn rounds one minus their mean shrinking."""
    stated = topology.spectral_gap()
    if topology.period is not None:
        found, slack = 1 - psi(*rounds(topology)) ** (1 / topology.period), 1e-6
    else:
        found, slack = 1 - sqrt(float(np.mean([_shrinking(topology.W(t)) for t in range(400)]))), 0.05
    must(abs(found - stated) <= slack, f"spectral_gap() is {stated:.6g}, but W has {found:.6g}")


def _shrinking(W: Mixing) -> float:
    """|WX - JWX|^2 / |X - JX|^2 for an X without a direction: the mean over all of them."""
    centre = np.eye(W.n) - 1 / W.n
    return float(np.square(centre @ as_matrix(W) @ centre).sum() / max(W.n - 1, 1))


@of_topologies()
def rounds_repeat(topology: Topology) -> None:
    """W(t) is a function of t alone, and the same again after a period."""
    for t in range(topology.period or 5):
        for later in [t] if topology.period is None else [t, t + topology.period]:
            same = np.array_equal(as_matrix(topology.W(t)), as_matrix(topology.W(later)))
            must(same, f"W({t}) and W({later}) differ, with period = {topology.period}")


# ---- files and words -------------------------------------------------------------------------------------------------


def _common(laws: list[Law], registry: Any) -> None:
    @collect(laws)()
    def survives_the_configuration_file(value: Any) -> None:
        """The table that describes it in a configuration file builds the same object again."""
        common.survives_the_configuration_file(value, registry)

    @collect(laws)()
    def is_documented(value: Any) -> None:
        """The class has a docstring, and each of its settings a line of its own below it or there."""
        common.is_documented(value)


_common(REGULARISER_LAWS, REGULARISERS)
_common(COMPRESSOR_LAWS, COMPRESSORS)
_common(TOPOLOGY_LAWS, TOPOLOGIES)
