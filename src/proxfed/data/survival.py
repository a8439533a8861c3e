"""Survival data in one label: the time of an event, or minus the censoring time.

The sign bit counts: -0.0 is a sample censored at time 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfed.errors import InputError, require


def survival_labels(time: Any, event: Any) -> np.ndarray:
    """Labels (N,) from times >= 0 and event indicators: 1 or True if the event was observed, else 0 or False."""
    time, event = np.asarray(time, np.float64), np.asarray(event)
    require(time.ndim == 1 and time.shape == event.shape, f"{time.shape} times do not fit {event.shape} events")
    bad = np.flatnonzero(~(np.isfinite(time) & (time >= 0)))
    if len(bad):
        raise InputError(f"time = {time[bad[0]]} of row {bad[0]} must be a finite number >= 0")
    bad = np.flatnonzero(~np.isin(event, (0, 1)))
    if len(bad):
        raise InputError(f"event = {event[bad[0]]} of row {bad[0]} must be 1 (observed) or 0 (censored)")
    return np.where(event == 1, time, -time)


def time_and_event(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(times, event indicators) of labels."""
    labels = np.asarray(labels, np.float64)
    return np.abs(labels), ~np.signbit(labels)
