"""Simulated time: what the rounds, steps and bytes of a run take on described devices and links.

amounts.py     a number, a distribution or a measured trace
timing.py      the table [time]: devices, links, profiles
exchanges.py   how often a graph algorithm exchanges messages in a round
clock.py       rows -> seconds, with a server and on graphs
after.py       the same for a run that is over
"""

from proxfed.simulate.clock import Clock, clock
from proxfed.simulate.timing import Timing, profiles

__all__ = ["Clock", "Timing", "clock", "profiles"]
