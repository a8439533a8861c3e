"""Experiments around the engine: from tables to objects, run folders, resuming, results."""
