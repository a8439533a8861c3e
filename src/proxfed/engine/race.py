"""Automatic step sizes: one algorithm runs with several steps side by side until one of them has won.

    lanes       copies of the algorithm with local steps of length r/L, r = 1.5^-10, ..., 1.5^4 and 1.5^6, all from the
                same start
    race        after rounds 1, 2, 4, ..., 64 the objective of every lane is measured, and the worst lanes drop out. A
                few stay long, since steps that lead after 16 rounds may be far behind after 64. Up to round 32 so do
                two bold lanes, whose objective may rise at first and be the lowest in the end, and two timid ones:
                short steps may win if momentum has yet to build up, or if all lanes are level or rise. If the longest
                of the others leads after round 4, 8, 16 or 32, a lane with a longer step starts from its state
    duels       from rounds 64, 128, ... on, lanes with a shorter and a longer step start from the winner's state and
                run beside it for a quarter of the rounds so far. The best of the three in the last two looks continues
    the end     after the last round all lanes are measured once more; the result is the best state measured
    back-off    if the objective of the last lane has risen, the lane returns to its best state with a shorter step; the
                same happens if all lanes are above the start after round 4. If no lane was ever below the start, lanes
                with much shorter steps start anew

The duels are there because the best step changes during a run: noise, and the bias of methods that are not exact, call
for shorter steps near the solution.

If L is known and the algorithm has a step that needs no search (`known_step`), it is the only lane: nothing is
measured, and no more is sent than in a plain run.

The search adds no rounds, but it costs bytes: all that the lanes send, compute and measure is counted. If L is unknown,
the first round runs with guesses of the step, far apart, while every client measures its own curvature; then each lane
continues from the state of the guess next below it. Lanes are ordinary runs, so that ranks, checkpoints and keyed
randomness work as in any run.
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
"""The ratio of the steps of neighbouring lanes."""

LANES = (*range(-10, 5), 6)
"""The first lanes: powers of RATIO, in units of 1/L."""

TIMID, BOLD = (-6, -4), (4, 6)
"""Lanes (shorter and longer steps) that are kept up to round 2 LOOK even if their objective is far behind."""

GUESSES = range(-30, 16, 3)
"""The lanes of the first round if L is unknown: powers of RATIO."""

KEPT = {1: 8, 2: 6, 4: 5, 8: 4, 16: 3, 32: 3, 64: 1}
"""{round: number of lanes kept after it}; lanes with equal objectives stay together."""

RACE = max(KEPT)
"""The last round of the race."""

EARLIEST = 4
"""The first round after which a challenger may start; from then on one lane must be below the start."""

LOOK = 16
"""From this round on lanes are measured four times as often, to know which one leads; in duels eight times."""

APART = 3
"""A challenger's step differs by this power of RATIO."""

RISE = 0.1
"""A lane is taken back if its objective rises by more than this fraction of its decrease so far."""

SAMPLES = 500
"""Samples per client, at most, on which the objective of a network with minibatches is measured."""

ROOM = 2 * len(LANES)
"""Rows of the table of a dump: for the shared values, the lanes, their challengers, and the best state."""

PROBE = 0.01
"""The distance from x0 at which the curvature is measured, relative to |x0| or 1."""


@dataclass(eq=False)
class Lane:
    """The algorithm with one step: RATIO^k / L."""

    k: int
    run: Run
    value: float = inf
    """The objective at the last measurement."""
    before: float = inf
    """The objective at the measurement before."""


@dataclass
class Race:
    """One algorithm with several steps side by side: a run (running.py) whose lanes are runs."""

    problem: Problem
    auto: Algorithm
    """The algorithm, with steps that are "auto"."""
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
        """1/L; 1 until L is known."""
        self.best: Lane | None = None
        """The state with the lowest objective so far."""
        step = self.auto.known_step(1 / self.unit, self.problem.h.weak_convexity) if self.known else None
        self.settled = step is not None
        """Whether the only lane has the step that the algorithm knows, so that there is nothing to find."""
        self.unit = self.unit if step is None else step
        before = self._sent()
        self.lanes = self._lanes((0,) if self.settled else LANES if self.known else GUESSES)
        self.alone = (self._sent() - before) / len(self.lanes)
        """Bytes that a run with one step would have sent from this process: the mean over the lanes."""

    # ---- a round -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Nothing to do: the lanes have begun."""

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
        """Measure every lane; the worst drop out, and if the last one rises it returns to its best state. Duels are
        judged by two measurements, because a single one may be the low point of an oscillation.
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
        """The objective at which a timid or bold lane drops out: above the start, and rising."""
        return inf if t <= EARLIEST else max(lane.before, self.first)

    def _lost(self, t: int) -> bool:
        """Whether no lane can still improve, or all are above the start."""
        return len(self.lanes) == 1 or (t >= EARLIEST and self.lanes[0].value > self.first)

    def _go_back(self, lead: Lane) -> None:
        """Return to the best state with a shorter step; if there is none, to the start with much shorter steps."""
        if self.best is None:
            self.lanes = self._lanes(range(lead.k - 2 * len(LANES), lead.k - len(LANES)))
        else:
            self.lanes = [self._fork(self.best, lead.k - APART)]

    def _challenge(self, shorter: bool) -> None:
        """Add lanes with longer steps than all others, and perhaps shorter ones, from the leading lane's state."""
        lead = self.lanes[0]
        longest = all(lane.k <= lead.k or lane.k in BOLD for lane in self.lanes)
        for k in [lead.k - APART] * shorter + [lead.k + APART] * longest:
            if self._allowed(k):
                self.lanes.append(self._fork(lead, k))

    # ---- lanes -------------------------------------------------------------------------------------------------

    def _lanes(self, powers: Iterable[int], guesses: Sequence[Lane] = ()) -> list[Lane]:
        """The lanes that h allows; if it allows none, much shorter steps. Each continues from the longest guess that is
        not longer, or else from the start.
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
        """Whether the step is short enough for the algorithm's penalty, and its prox steps for a weakly convex h."""
        rho = self.problem.h.weak_convexity
        try:
            algorithm = self._at(k)
        except InputError:
            return False
        return rho == 0 or algorithm.largest_prox_step() * rho < 1

    def _fork(self, lane: Lane, k: int) -> Lane:
        """A lane with its own step that continues from the state of another lane."""
        return Lane(k, lane.run.fork(self._at(k)), lane.value, lane.before)

    # ---- measurements, and their cost --------------------------------------------------------------------------

    def _objective(self, x: Tensor) -> float:
        """The objective at a lane's model, which is sent to all clients; each replies with a number."""
        self._exchange(down=x.numel(), up=1)
        value = self._measures.objective(x) if bool(torch.isfinite(x).all()) else inf
        return value if isfinite(value) else inf

    def _sound(self) -> bool:
        return bool(torch.isfinite(self.model()).all())

    def _known_unit(self) -> float | None:
        """1/L, where L belongs to the losses that this kind of algorithm sees: peers have n p_i f_i."""
        try:
            L = self.problem.f.smoothness().L
        except InputError:
            return None
        if isinstance(self.auto, Graph):
            L *= self.problem.f.n * float(self.problem.f.weights.max())
        return 1 / L if L > 0 else 1.0  # the losses may have no curvature, for instance if all features are 0

    def _measured_unit(self) -> float:
        """1/L, with L the mean over the clients. Each takes two gradients, at x0 and a little along the first one; its
        L is their difference divided by the distance.
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
        """Count numbers sent to and from every client, and the passes over its data that they require.

        Peers add up and broadcast along the edges of a tree.
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
        """Bytes sent so far by this process."""
        return self.network.traffic.up + self.network.traffic.down + self.network.traffic.edge

    # ---- as a run ----------------------------------------------------------------------------------------------

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm with the leading step."""
        return self.lanes[0].run.algorithm

    @property
    def state(self) -> Any:
        return self.lanes[0].run.state

    def found(self) -> dict[str, float]:
        """The leading steps, by name."""
        steps = self.auto.steps_for(self.unit * RATIO ** self.lanes[0].k)
        return {name: value for name, value in steps.items() if name in self.auto.to_find}

    def sent(self) -> tuple[int, int]:
        """(bytes so far, bytes of a run with a single step), over all processes."""
        together, alone = self.network.total([self._sent(), round(self.alone)])
        return together, alone

    def model(self) -> Tensor:
        return self.lanes[0].run.model()

    def fields(self, names: Collection[str] | None = None) -> dict[str, Tensor]:
        return self.lanes[0].run.fields(names)

    def counters(self) -> dict[str, float]:
        return counted_so_far(self.work, self.network)

    def variates(self) -> Tensor | None:
        """None: lanes come and go, so their variates are not tracked."""
        return None

    def changes(self) -> Iterator[dict[str, Tensor]] | None:
        return None

    def dump(self, clients: bool = True) -> dict[str, Tensor]:
        """All lanes and the best state, as named tensors, at the leader; the tensor `race` describes them."""
        lanes = [*self.lanes, *([] if self.best is None else [self.best])]
        shared = [self.unit, self.first, float(self.best is not None), self.sent()[1]]
        standing = [shared, *([lane.k, lane.value, lane.before, nan] for lane in lanes)]
        table = torch.full((ROOM, 4), nan, dtype=torch.float64)
        table[: len(standing)] = torch.tensor(standing, dtype=torch.float64)
        parts = {f"{i}.{name}": x for i, lane in enumerate(lanes) for name, x in lane.run.dump().items()}
        return {"race": table} | parts

    def load(self, tensors: dict[str, Tensor] | None, counters: Mapping[str, float]) -> None:
        """Resume from a dump, which only the leader needs."""
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
