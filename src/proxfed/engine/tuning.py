"""Sizes that were measured on one machine; another may like others. None of them changes what is computed."""

from __future__ import annotations

BLOCK = 1 << 20
"""Numbers of one client vector that are worked on at a time: a few vectors of them stay in the cache."""

PARALLEL_FROM = 1 << 15
"""Numbers to work on, from which on threads gain more than it costs to wake them."""

PARALLEL_READ = 1 << 18
"""Numbers that a gradient reads, from which on the same holds: each of them is used once or twice."""

MIX_BLOCK = 1 << 19
"""Numbers of the rows that `mix` overwrites at a time."""

DENSE_FROM = 0.25
"""From this share of non-zero entries on, a matrix product is faster than gathering neighbours' rows."""

KEEP = 1 << 25
"""Bytes of freed memory that the allocator keeps for the next temporary."""

EXACT_SPECTRUM = 1500
"""Up to this many clients, the spectrum of W is cheap enough to look at before every run."""
