"""Step sizes that choose themselves: one algorithm with several steps side by side, until one of them has won.

    lanes       an algorithm each, with local steps of length r/L for r = 1.5^-10, ..., 1.5^4 and 1.5^6, all from the
                same start
    race        after rounds 1, 2, 4, ..., 64 the objective of every lane is measured, and the worse drop out; a few
                stay long, for steps that are ahead after 16 rounds may be far behind after 64. So do, up to round 32,
                two bold ones, which may send it up at first and win in the end, and two timid ones: where momentum has
                yet to build up, where all seem level, or all rise, short ones may win. Where the longest of the others
                leads after round 4, 8, 16 or 32, a longer one goes on beside it, from its state
    duels       from round 64, 128, ... on a shorter and a longer step go beside the winner, from its state, for a
                quarter of the rounds so far. The best of the three in the last two looks goes on
    the end     after the last round all lanes are measured once more; the result is the best state that was seen
    back-off    where the objective of the last lane has risen, it goes back to where it was best, with a shorter step;
                so it does where all lanes are above the start after round 4. If none was below it, much shorter ones
                begin anew

The best step of the first rounds need not be the best of the last ones: noise, and the bias of methods that are not
exact, call for shorter steps the closer one is. That is what the duels are for.

Where L is known and the algorithm has a step that needs no search (`known_step`), it is the only lane: nobody looks,
and nothing is sent beyond a plain run.

Lanes share the rounds, not the bytes: what they send, compute and measure is counted like the rest, and the winner has
lost no round. Where nobody knows L, the first round is taken with guesses, far apart, and every client measures its own
curvature in it; then the lanes go on, each from the state of the guess next below it. All that holds for a run holds
for a race, for its lanes are runs: ranks, checkpoints, keyed randomness.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite, isnan, nan
from typing import Any

import torch
from torch import Tensor

from proxfed.engine.halves import Work
from proxfed.engine.measures import Measures
from proxfed.engine.network import Network
from proxfed.engine.run import Run
from proxfed.engine.running import count_from, counted_so_far
from proxfed.engine.start import run_of
from proxfed.errors import InputError
from proxfed.participation import Full
from proxfed.types import Algorithm, Graph, Local, Participation, Problem

RATIO = 1.5
"""Between the steps of neighbouring lanes."""

LANES = (*range(-10, 5), 6)
"""The first lanes: powers of RATIO, in units of 1/L."""

TIMID, BOLD = (-6, -4), (4, 6)
"""Those that may be far behind up to round 2 LOOK."""

GUESSES = range(-30, 16, 3)
"""The lanes of the first round where nobody knows L: powers of RATIO."""

KEPT = {1: 8, 2: 6, 4: 5, 8: 4, 16: 3, 32: 3, 64: 1}
"""After which rounds of a race how many lanes are left; lanes that are level stay together."""

RACE = max(KEPT)
"""Its last round."""

EARLIEST = 4
"""The first round after which a challenger may begin, and one lane must be below the start."""

LOOK = 16
"""From this round on lanes are measured four times as often, to know which of them leads; in duels eight times."""

APART = 3
"""A challenger's step is this power of RATIO away."""

RISE = 0.1
"""A rise by this part of all that the objective has fallen so far is one too many."""

SAMPLES = 500
"""Of each client at most, on which the objective of a network with minibatches is measured."""

ROOM = 2 * len(LANES)
"""Rows of the table of a dump, enough for what all share, the lanes, their challengers, and the best state."""

PROBE = 0.01
"""How far from x0 the curvature is measured, relative to |x0| or 1."""


@dataclass(eq=False)
class Lane:
    """The algorithm with one step: RATIO^k / L."""

    k: int
    run: Run
    value: float = inf
    """The objective when it was last measured."""
    before: float = inf
    """And the time before."""


@dataclass
class Race:
    """Several steps of one algorithm side by side: a run (running.py), whose lanes are runs."""

    problem: Problem
    auto: Algorithm
    """With steps to find."""
    network: Network
    participation: Participation = Full()
    seed: int = 0
    rounds: int | None = None
    """The last round, if it is known."""
    work: Work = field(default_factory=Work)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.x0 = self.problem.start(self.seed)
        f = self.problem.f
        judged = f if f.batch is None else f.fewer(SAMPLES)
        self._measures = Measures(replace(self.problem, f=judged), self.network)
        self.first = self._measures.objective(self.x0)
        unit = self._known_unit()
        self.known = unit is not None
        """L, before the first round."""
        self.unit = 1.0 if unit is None else unit
        """1/L; as long as nobody knows it, 1."""
        self.best: Lane | None = None
        """Where the objective was lowest."""
        step = self.auto.known_step(1 / self.unit, self.problem.h.weak_convexity) if self.known else None
        self.settled = step is not None
        """There is nothing to find: the only lane has the step that the algorithm knows."""
        self.unit = self.unit if step is None else step
        before = self._sent()
        self.lanes = self._lanes((0,) if self.settled else LANES if self.known else GUESSES)
        self.alone = (self._sent() - before) / len(self.lanes)
        """Bytes that a run with one step would have sent from here: the mean over the lanes."""

    # ---- a round -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The lanes have begun."""

    def round(self, t: int) -> None:
        begun, before = time.perf_counter(), self._sent()
        for lane in self.lanes:
            lane.run.round(t)
        self.alone += (self._sent() - before) / len(self.lanes)
        if t == 1 and not self.known:
            guesses, self.unit = self.lanes, self._measured_unit()
            self.lanes = self._lanes(LANES, guesses)
        if not self.settled:
            self._referee(t)
        self.seconds += time.perf_counter() - begun

    def _referee(self, t: int) -> None:
        octave, end = 1 << (t.bit_length() - 1), t == self.rounds
        often = octave // (8 if t > RACE and len(self.lanes) > 1 else 4)
        if t in KEPT:
            self._judge(t, KEPT[t])
        elif end or (t > LOOK and (t % often == 0 or not self._sound())):
            together = t < RACE or octave < t < octave + octave // 4
            self._judge(t, len(self.lanes) if together else 1)
        if end:
            self.lanes = self.lanes if self.best is None else [self.best]
        elif t == octave >= EARLIEST:
            self._challenge(shorter=t >= RACE)

    def _judge(self, t: int, keep: int) -> None:
        """Measure every lane; the worse drop out, and a last one that rises goes back. Duels are judged by two looks:
        one alone may be the bottom of a swing.
        """
        for lane in self.lanes:
            lane.before, lane.value = lane.value, self._objective(lane.run.model())
        self.lanes.sort(key=lambda lane: lane.value + (lane.before if t > RACE else 0.0))
        judged = [lane for lane in self.lanes if t > LOOK or lane.k not in (*TIMID, *BOLD)] or self.lanes
        level = judged[:keep][-1].value
        stays = judged[:keep] + [lane for lane in self.lanes if keep > 1 and lane.value <= level < inf]
        stays += [lane for lane in self.lanes if lane not in judged and lane.value < self._too_high(lane, t)]
        self.lanes = [lane for lane in self.lanes if lane in stays]
        lead = self.lanes[0]
        lowest = self.first if self.best is None else self.best.value
        if lead.value < lowest:
            self.best = self._fork(lead, lead.k)
        elif lead.value == inf or (lead.value > lowest + RISE * (self.first - lowest) and self._lost(t)):
            self._go_back(lead)

    def _too_high(self, lane: Lane, t: int) -> float:
        """For a timid or bold lane: above the start, and rising still after the first rounds."""
        return inf if t <= EARLIEST else max(lane.before, self.first)

    def _lost(self, t: int) -> bool:
        """No other lane can still be better, or all are above the start."""
        return len(self.lanes) == 1 or (t >= EARLIEST and self.lanes[0].value > self.first)

    def _go_back(self, lead: Lane) -> None:
        """To the best state with a shorter step; if there was none, to the start with much shorter ones."""
        if self.best is None:
            self.lanes = self._lanes(range(lead.k - 2 * len(LANES), lead.k - len(LANES)))
        else:
            self.lanes = [self._fork(self.best, lead.k - APART)]

    def _challenge(self, shorter: bool) -> None:
        """Steps that are longer than all lanes, and perhaps shorter ones, from the state of the lane that leads."""
        lead = self.lanes[0]
        longest = all(lane.k <= lead.k or lane.k in BOLD for lane in self.lanes)
        for k in [lead.k - APART] * shorter + [lead.k + APART] * longest:
            if self._allowed(k):
                self.lanes.append(self._fork(lead, k))

    # ---- lanes -------------------------------------------------------------------------------------------------

    def _lanes(self, powers: Iterable[int], guesses: Sequence[Lane] = ()) -> list[Lane]:
        """Those that h allows; if it allows none of them, much shorter ones. Each goes on from the longest guess that
        is not longer, or else from the start.
        """
        powers = list(powers)
        while not any(map(self._allowed, powers)):
            powers = [k - len(LANES) for k in powers]
        lanes = []
        for k in filter(self._allowed, powers):
            below = [guess.run for guess in guesses if RATIO**guess.k <= self.unit * RATIO**k]
            lanes.append(Lane(k, below[-1].fork(self._at(k)) if below else self._run(k)))
        return lanes

    def _at(self, k: int) -> Algorithm:
        return self.auto.with_local_steps(self.unit * RATIO**k)

    def _run(self, k: int) -> Run:
        return run_of(self.problem, self._at(k), self.network, self.participation, self.seed, self.work)

    def _allowed(self, k: int) -> bool:
        """The step is short enough for the algorithm's penalty, and prox steps are for a weakly convex h."""
        rho = self.problem.h.weak_convexity
        try:
            algorithm = self._at(k)
        except InputError:
            return False
        return rho == 0 or algorithm.largest_prox_step() * rho < 1

    def _fork(self, lane: Lane, k: int) -> Lane:
        """A lane that goes on from the state of another one, with its own step."""
        return Lane(k, lane.run.fork(self._at(k)), lane.value, lane.before)

    # ---- what is measured, and counted -------------------------------------------------------------------------

    def _objective(self, x: Tensor) -> float:
        """Of a lane's model, which goes to all clients; each of them answers with a number."""
        self._exchange(down=x.numel(), up=1)
        value = self._measures.objective(x) if bool(torch.isfinite(x).all()) else inf
        return value if isfinite(value) else inf

    def _sound(self) -> bool:
        return bool(torch.isfinite(self.model()).all())

    def _known_unit(self) -> float | None:
        """1/L, with L that of the losses that this kind of algorithm sees: peers have n p_i f_i."""
        try:
            L = self.problem.f.smoothness().L
        except InputError:
            return None
        if isinstance(self.auto, Graph):
            L *= self.problem.f.n * float(self.problem.f.weights.max())
        return 1 / L if L > 0 else 1.0  # of losses without curvature, such as those of features that are all 0

    def _measured_unit(self) -> float:
        """1/L, with L the mean of the clients' own: two gradients each, at x0 and a little along the first one; L is
        their difference over the distance.
        """
        length = PROBE * max(1.0, float(self.x0.norm()))

        def curvature(f: Local) -> Tensor:
            g = f.full_grad(self.x0)
            away = f.full_grad(self.x0 - g * (length / g.norm(dim=1, keepdim=True).clamp_min(1e-300)))
            change: Tensor = (away - g).norm(dim=1, keepdim=True)
            return change / length

        self._exchange(down=self.x0.numel(), up=1, passes=2)
        L = float(self._measures.average(curvature))
        return 1 / L if isfinite(L) and L > 0 else 1.0

    def _exchange(self, down: int, up: int, passes: int = 1) -> None:
        """Numbers that go to and come from every client, and the passes over its data that they ask for.

        Peers add up and spread what they have along the edges of a tree.
        """
        net, traffic, size = self.network, self.network.traffic, self.x0.element_size()
        lines = net.n if net.topology is None else net.n - 1  # a server apart, or a tree among the clients
        batch, data = self.problem.f.batch, self._measures.problem.f.data
        steps = 1 if batch is None or data is None else ceil(max(data.sizes) / batch)
        self.work.gradients += len(net.ids) * passes * steps
        if not net.leader:
            return
        if isinstance(self.auto, Graph):
            traffic.edge += (down + up) * size * lines
        else:
            traffic.down, traffic.up = traffic.down + down * size * lines, traffic.up + up * size * lines
        traffic.best += (down + up) * size * lines

    def _sent(self) -> int:
        """Bytes so far, of this process."""
        return self.network.traffic.up + self.network.traffic.down + self.network.traffic.edge

    # ---- as a run ----------------------------------------------------------------------------------------------

    @property
    def algorithm(self) -> Algorithm:
        """With the step that leads."""
        return self.lanes[0].run.algorithm

    @property
    def state(self) -> Any:
        return self.lanes[0].run.state

    def found(self) -> dict[str, float]:
        """The steps that lead, by their names."""
        steps = self.auto.steps_for(self.unit * RATIO ** self.lanes[0].k)
        return {name: value for name, value in steps.items() if name in self.auto.to_find}

    def sent(self) -> tuple[int, int]:
        """Bytes so far, and those of a run with one step alone; of all processes."""
        together, alone = self.network.total([self._sent(), round(self.alone)])
        return together, alone

    def model(self) -> Tensor:
        return self.lanes[0].run.model()

    def fields(self, asked: Collection[str] | None = None) -> dict[str, Tensor]:
        return self.lanes[0].run.fields(asked)

    def counters(self) -> dict[str, float]:
        return counted_so_far(self.work, self.network)

    def variates(self) -> Tensor | None:
        """Lanes come and go, so none are followed."""
        return None

    def changes(self) -> Iterator[dict[str, Tensor]] | None:
        return None

    def dump(self, clients: bool = True) -> dict[str, Tensor]:
        """All lanes and the best state, as named tensors, at the leader; `race` says which they are."""
        lanes = [*self.lanes, *([] if self.best is None else [self.best])]
        shared = [self.unit, self.first, float(self.best is not None), self.sent()[1]]
        standing = [shared, *([lane.k, lane.value, lane.before, nan] for lane in lanes)]
        table = torch.full((ROOM, 4), nan, dtype=torch.float64)
        table[: len(standing)] = torch.tensor(standing, dtype=torch.float64)
        parts = {f"{i}.{name}": x for i, lane in enumerate(lanes) for name, x in lane.run.dump().items()}
        return {"race": table} | parts

    def load(self, tensors: dict[str, Tensor] | None, counters: Mapping[str, float]) -> None:
        """Go on from a dump; only the leader needs to have it."""
        table = torch.full((ROOM, 4), nan, dtype=torch.float64) if tensors is None else tensors["race"]
        (self.unit, self.first, best, alone), *standing = self.network.from_leader(table).tolist()
        lanes = [Lane(int(k), self._run(int(k)), value, before) for k, value, before, _ in standing if not isnan(k)]
        for i, lane in enumerate(lanes):
            own = None if tensors is None else {name: tensors[f"{i}.{name}"] for name in lane.run.names()}
            lane.run.load(own, counters)
        self.best = lanes.pop() if best else None
        self.lanes, self.seconds = lanes, counters["wall_seconds"]
        self.alone = alone if self.network.leader else 0.0
        count_from(counters, self.work, self.network)
