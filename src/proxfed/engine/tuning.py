"""Sizes measured on one machine; other values may be faster on another. None of them changes the results."""

from __future__ import annotations

BLOCK = 1 << 20
"""Numbers of one client vector processed at a time: a few such pieces fit in the cache."""

PARALLEL_FROM = 1 << 15
"""From this many numbers on, threads gain more than their wake-up costs."""

PARALLEL_READ = 1 << 18
"""The same for numbers that a gradient reads, each of which is used once or twice."""

MIX_BLOCK = 1 << 19
"""Numbers per row that `mix` overwrites at a time."""

DENSE_FROM = 0.25
"""From this density on, a matrix product is faster than gathering neighbours' rows."""

KEEP = 1 << 25
"""Bytes of freed memory that the allocator keeps for the next temporary."""

EXACT_SPECTRUM = 1500
"""Up to this many clients, the spectrum of W is computed before every run."""
