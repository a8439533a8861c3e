"""Tests run on one thread each, so that several can run side by side; torch's threads would only get in the way.

A property test takes as many examples as the hypothesis profile says: `ci` is the default, and `make test-slow` chooses
`slow` with --hypothesis-profile.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings

torch.set_num_threads(1)

settings.register_profile("ci", max_examples=15, deadline=None)
settings.register_profile("slow", max_examples=1000, deadline=None)
settings.load_profile("ci")
