"""Tuning with equal effort for every algorithm, and sweeps over any settings of a study."""
