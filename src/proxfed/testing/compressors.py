"""The laws of compressors, tested on a few vectors and many keys."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from proxfed.compressors import COMPRESSORS
from proxfed.keyed_random import Key, keys
from proxfed.testing import configurable as common
from proxfed.testing.law import DoesNotApply, Law, Report, check_laws, collect, must
from proxfed.testing.vectors import D, normal, square
from proxfed.types import Compressor, SparseCompressor

LAWS: list[Law] = []
law = collect(LAWS)

DRAWS = 2000


def check_compressor(C: Compressor) -> Report:
    """Test all laws for a compressor, on vectors of 12 numbers."""
    return check_laws(C, "compressor", LAWS)


def vectors(rows: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows of different shapes: normal, heavy-tailed, mostly zero, flat, one large entry."""
    g = normal(1, 5)
    shapes = [g[0], g[1] ** 5, g[2] * (g[2] > 0.8), g[3].sign(), torch.eye(D, dtype=g.dtype)[3] * -7]
    return torch.stack([shapes[i % 5] for i in range(rows)]).to(dtype)


def some_keys(rows: int, seed: int = 0) -> Key:
    return keys(seed, "conformance", range(rows), 0)


@law()
def loses_no_more_than_its_contraction(C: Compressor) -> None:
    """E|C(v) - v|^2 <= contraction(d) |v|^2, the mean over 2000 keys but for five standard errors."""
    q2 = C.contraction(D)
    for v in vectors():
        for draws in (DRAWS // 10, DRAWS):  # the first are enough for one that draws nothing
            error = square(C(v.expand(draws, D), some_keys(draws)).dense - v) / square(v)
            if bool((error == error[0]).all()):
                break
        mean, deviation = float(error.mean()), float(error.std()) / sqrt(draws)
        must(mean <= q2 + 5 * deviation + 1e-12, f"it loses {mean:.4g} of |v|^2, but contraction({D}) is {q2:.4g}")


@law()
def is_unbiased_if_it_says_so(C: Compressor) -> None:
    """If unbiased, E C(v) = v, the mean over 2000 keys but for six standard errors."""
    if not C.unbiased:
        raise DoesNotApply("it does not say that it is unbiased")
    for v in vectors():
        drawn = C(v.expand(DRAWS, D), some_keys(DRAWS)).dense
        off, allowed = float((drawn.mean(0) - v).norm()), 6 * float(drawn.var(0).sum().sqrt()) / sqrt(DRAWS)
        must(off <= allowed + 1e-12 * float(v.norm()), f"the mean of {DRAWS} draws is {off:.2g} from v")


@law(dtype=[torch.float32, torch.float64])
def decode_of_encode_is_dense(C: Compressor, dtype: torch.dtype) -> None:
    """What is read from the bytes of a message is its dense value, bit by bit, in the dtype of v; the same by the
    compressor that the message names, which reads it between processes. Of a sparse one, the entries are all of it."""
    v = vectors(dtype=dtype)
    packed = C(v, some_keys(len(v)))
    must(packed.dense.shape == v.shape, f"dense has the shape {tuple(packed.dense.shape)}, not {tuple(v.shape)}")
    must(packed.dense.dtype == dtype, f"dense is {packed.dense.dtype} for a {dtype}")
    read = C.decode(C.encode(packed), D, dtype)
    must(read.dtype == dtype, f"decode returns {read.dtype} for a {dtype}")
    off = 0.0 if torch.equal(read, packed.dense) else float((read - packed.dense).abs().max())
    must(torch.equal(read, packed.dense), f"decode(encode(p)) differs from p.dense by {off:.1e}")
    by = packed.compressor
    same = torch.equal(by.decode(by.encode(packed), D, dtype), packed.dense)
    must(same, f"p.compressor = {by!r:.60} reads its message as something else: it must be who packed it")
    if isinstance(by, SparseCompressor):
        built = torch.zeros_like(v).scatter_add_(1, *by.entries(by.encode(packed), D, dtype))
        must(torch.equal(built, packed.dense), "entries are not those of decode, or some are there twice")


@law(dtype=[torch.float32, torch.float64])
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


@law()
def rows_and_keys_decide(C: Compressor) -> None:
    """C(v) is a function of v and the key alone, row by row, and leaves v as it is."""
    v, key = vectors(), some_keys(5)
    before, block, again = v.clone(), C(v, key).dense, C(v, key).dense
    must(torch.equal(v, before), "it writes into v: it must make new tensors")
    must(torch.equal(block, again), "two calls with the same key differ: randomness must come from the key")
    alone = torch.cat([C(v[i : i + 1], key[i : i + 1]).dense for i in range(5)])
    off = float(((alone - block).abs().amax(1) / v.norm(dim=1)).max())
    must(off <= 1e-12, f"a row depends on the rows beside it: alone it differs by {off:.1e}")


@law()
def survives_the_configuration_file(C: Compressor) -> None:
    """The table that describes it in a configuration file builds the same object again."""
    common.survives_the_configuration_file(C, COMPRESSORS)


@law()
def is_documented(C: Compressor) -> None:
    """The class has a docstring, and each of its settings a line of its own below it or there."""
    common.is_documented(C)
