"""What a fit cost, step by step: rounds, bytes, and seconds on described devices and links."""

from __future__ import annotations

from collections.abc import Mapping

from proxfed.algorithms import ProxNewton
from proxfed.fit.model_file import Sent
from proxfed.fit.solve import Traffic
from proxfed.participation import Full
from proxfed.simulate.clock import clock
from proxfed.simulate.timing import Timing

SUMMARIES, CHOICE, FINAL, MEASURES, INTERVALS = "summaries", "cross-validation", "model", "measures", "intervals"


def costs(steps: Mapping[str, Traffic], organisations: int, profile: str) -> list[Sent]:
    """Every round is one gradient of each organisation, but for the summaries and the measures, which have none."""
    timing = Timing.read({"profile": profile})
    timing.check(organisations)
    now = clock(timing, ProxNewton(1.0), Full(), None, organisations, 0)
    spent, before, found = Traffic(), 0.0, []
    gradients = 0
    for step, traffic in steps.items():
        spent = spent + traffic
        gradients += 0 if step in (SUMMARIES, MEASURES) else traffic.rounds * organisations
        row = {"round": spent.rounds, "gradients": gradients, "bytes_edge": 0}
        after = now(row | {"bytes_up": spent.bytes_up, "bytes_down": spent.bytes_down})
        found.append(
            Sent(
                step=step,
                rounds=traffic.rounds,
                bytes_up=traffic.bytes_up,
                bytes_down=traffic.bytes_down,
                seconds=after - before,
            )
        )
        before = after
    return found


def total(sent: list[Sent]) -> Sent:
    """All steps together."""
    sums = {key: sum(getattr(each, key) for each in sent) for key in ("rounds", "bytes_up", "bytes_down", "seconds")}
    return Sent(step="together", **sums)
