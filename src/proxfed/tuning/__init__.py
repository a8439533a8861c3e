"""Hyperparameter tuning with equal effort per algorithm, and sweeps over any settings of a study."""
