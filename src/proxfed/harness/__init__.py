"""Experiments on top of the engine: from tables to objects, run folders, resuming, results."""
