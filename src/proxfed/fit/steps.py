"""How a fit reports the steps it is at."""

from collections.abc import Callable

Watch = Callable[[str, int, int], object]
"""Called with the name of the current step, how much of it is done, and how much there is."""
