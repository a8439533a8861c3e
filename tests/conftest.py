"""Tests run on one thread each, so that several can run side by side; torch's threads would only get in the way."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
