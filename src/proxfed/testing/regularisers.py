"""The laws of regularisers, tested at a few sample points."""

from __future__ import annotations

import torch

from proxfed.keyed_random import generator
from proxfed.regularisers import REGULARISERS
from proxfed.testing import configurable as common
from proxfed.testing.law import Broken, DoesNotApply, Law, Report, check_laws, collect, must
from proxfed.testing.vectors import D, first, normal, square
from proxfed.types import Regulariser

LAWS: list[Law] = []
law = collect(LAWS)

SCALES = (0.05, 1.0, 10.0)


def check_regulariser(h: Regulariser) -> Report:
    """Test all laws for a regulariser, on vectors of 12 numbers."""
    return check_laws(h, "regulariser", LAWS)


def steps(h: Regulariser) -> list[float]:
    """Steps from small to nearly the largest that h allows."""
    most = 0.95 / h.weak_convexity if h.weak_convexity > 0 else 2.0
    return [part * min(most, 2.0) for part in (0.005, 0.3, 1.0)]


@law()
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


@law()
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


@law()
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


@law()
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


@law()
def rows_are_independent(h: Regulariser) -> None:
    """Value and prox of a row do not depend on the rows beside it."""
    v, step = normal(8, 5), steps(h)[1]
    for name, of in (("prox", lambda x: h.prox(x, step)), ("value", h.value)):
        together, alone = of(v), torch.stack([of(row) for row in v])
        off = 0.0 if torch.equal(together, alone) else float((together - alone).abs().max())
        must(off <= 1e-12, f"the {name} of rows differs by {off:.1e} from that of each alone")


@law()
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


@law()
def survives_the_configuration_file(h: Regulariser) -> None:
    """The table that describes it in a configuration file builds the same object again."""
    common.survives_the_configuration_file(h, REGULARISERS)


@law()
def is_documented(h: Regulariser) -> None:
    """The class has a docstring, and each of its settings a line of its own below it or there."""
    common.is_documented(h)
