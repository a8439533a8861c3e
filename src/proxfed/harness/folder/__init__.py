"""The files of a run: rows, status, checkpoints, journal."""
