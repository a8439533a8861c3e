"""Simulated time: how long the rounds, steps and bytes of a run take on given devices and links.

distributions.py   a number, a distribution or a measured trace
timing.py          the table [time]: devices, links, profiles
clock.py           rows -> seconds, with a server and on graphs
"""

from proxfed.explained import explain
from proxfed.simulate.clock import Clock, clock
from proxfed.simulate.timing import Timing, origin, profiles

__all__ = ["Clock", "Timing", "clock", "origin", "profiles"]


explain(__name__)
