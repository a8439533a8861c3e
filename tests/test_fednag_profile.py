"""The profile fednag_paper is what the times that the paper prints have in common."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from proxfed import FedAvg
from proxfed.participation import Full
from proxfed.simulate import Timing, clock
from proxfed.simulate.timing import shipped_profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import fednag_profile as calibration


def test_the_profile_has_the_numbers_of_the_best_fit():
    best, second, *_ = calibration.fits()
    assert 3 * best.error < second.error
    assert best.error < 0.005
    table = shipped_profile("fednag_paper")
    (device,), (link,) = table["devices"], table["links"]
    assert device["seconds_per_step"] == pytest.approx(best.a, abs=5e-4)
    assert table["server_seconds"] == pytest.approx(best.s, abs=5e-4)
    assert link["up"] == link["down"] == pytest.approx(best.mbit_per_second, abs=5e-4)


@pytest.mark.parametrize(("name", "tau"), list(calibration.TIMES))
def test_with_its_rounds_the_clock_shows_the_time_that_the_paper_prints(name, tau):
    rounds = calibration.fits()[0].rounds[name, tau]
    vector = 4 * calibration.PARAMETERS * calibration.VECTORS[name]
    time = clock(Timing.read({"profile": "fednag_paper"}), FedAvg(0.01, tau), Full(), None, 4, 0)
    spent = {"gradients": 4 * rounds * tau, "bytes_up": 4 * rounds * vector, "bytes_down": 4 * rounds * vector}
    seconds = time({"round": rounds, "bytes_edge": 0, **spent})
    assert seconds == pytest.approx(calibration.TIMES[name, tau], rel=4e-3)


def test_a_fit_finds_what_it_was_made_from(monkeypatch):
    """Times that follow from rounds of a known length are fitted without an error, with those rounds."""
    rounds = {("FedNAG", 40): 4, ("FedNAG", 20): 7, ("FedMom", 40): 9, ("FedMom", 20): 14}
    rounds |= {("FedAvg", 40): 20, ("FedAvg", 20): 33}
    times = {key: n * (0.7 * key[1] + 3.0 + 4.0 * calibration.VECTORS[key[0]]) for key, n in rounds.items()}
    times = {key: times[key] for key in calibration.TIMES}
    monkeypatch.setattr(calibration, "TIMES", times)
    best = calibration.fits()[0]
    assert best.rounds == rounds
    assert (best.a, best.s, best.m) == pytest.approx((0.7, 3.0, 4.0))
    assert best.error < 1e-9
