"""One run at one site: each round is answered exactly once, from the state on the site's own disk.

The answer to a round is on the disk before it leaves, with its state. Repeating a question gives the same bytes. A
question older than one that was answered is late, and changes nothing. If a question continues `after` an earlier round
than the last, because the last answer never counted, it starts from the state after that round.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from proxfed.engine.messages import dense, leaves, nbytes
from proxfed.errors import RunError, require
from proxfed.silos.protection.guard import Asked, Link, Shares, Upload, withheld
from proxfed.silos.site.part import Part
from proxfed.silos.site.peers import Peers
from proxfed.silos.site.store import Entry, Slot, Store
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Letter, pack, unpack
from proxfed.types import Star

if TYPE_CHECKING:
    from proxfed.silos.site.holder import Holder


MOST_LIVES = 1000
"""The largest number of coordinator restarts between two that a site sees."""
REMEMBERED = 32
"""The size of the cache of answers to queries."""


class Reply(Exception):
    """(kind, head) of a refusal, sent instead of an answer."""


class SiteRun:
    """The state of one run at one site between two questions."""

    def __init__(self, holder: Holder, job: Job, store: Store) -> None:
        self.holder, self.job, self.store = holder, job, store
        self.here = job.who.here(holder.name)
        self.built = holder.build(job)
        self.link: Link = holder.guard.join(job, holder.name)
        self.told: dict[bytes, bytes] = {}
        """A cache of answers to the last queries, so that a repeated query gets the same bytes."""

    def remember(self, question: Letter, answer: bytes) -> bytes:
        if question.word("what") != "there":
            self.told[question.encode()] = answer
            if len(self.told) > REMEMBERED:
                del self.told[next(iter(self.told))]
        return answer

    def follow(self, sent: Iterable[Tensor]) -> None:
        """Check and record the vectors that the coordinator sent."""
        self.holder.guard.follow(self.job, self.built.problem.start(self.job.seed), sent)

    @cached_property
    def part(self) -> Part:
        require(self.built.algorithm is not None, "the job has no algorithm")
        return Part(self.job, self.built, self.here, partial(self.holder.guard.computes, self.job))

    @cached_property
    def peers(self) -> Peers:
        return Peers(self.part, self.link)

    def state(self, t: int) -> Any:
        """The state after round t."""
        slots = self.store.slots()
        if t not in slots:
            raise Reply("gone", {"have": sorted(slots)})
        return self.part.state(slots[t].tensors)

    def round(self, letter: Letter) -> bytes:
        slots, log = self.store.slots(), self.store.log()
        for question, answer in [
            *((slot.question, slot.answer) for slot in slots.values()),
            *((entry.question.digest, entry.answer) for entry in log),
        ]:
            if question == letter.digest:
                return answer
        lives = [(slot.life, slot.round, slot.step) for slot in slots.values()]
        lives += [(e.question.life, e.question.round, e.question.step) for e in log]
        latest = max(lives, default=(-1, -1, -1))
        if (letter.life, letter.round, letter.step) <= latest:
            raise Reply("late", {"at": list(latest[1:])})
        last = max(latest[0], 0)
        good = letter.life <= last + MOST_LIVES  # else no later coordinator could overrule it
        require(good, f"life = {letter.life} is no life of a coordinator: the last one that was heard here is {last}")
        star = isinstance(self.part.algorithm, Star)
        asked = self.holder.asked(letter, self.job)
        self.holder.guard.gate(asked)
        return (self._star if star else self._peers)(letter, asked)

    def _before(self, letter: Letter) -> tuple[int, Any]:
        """The round that this one continues, and the state after it."""
        after = letter.number("after", -1)
        if not -1 <= after < letter.round and not after == -1 == letter.round - 1:
            raise RunError(f"round {letter.round} cannot go on after round {after}")
        return after, None if letter.round == 0 else self.state(after)

    def _keep(self, letter: Letter, after: int, state: Any, answer: bytes) -> bytes:
        """Write state and answer to the disk; then the answer may leave."""
        self.store.save(
            Slot(letter.round, after, letter.step, letter.life, letter.digest, answer, self.part.tensors(state))
        )
        return answer

    # ---- star --------------------------------------------------------------------------------------------------

    def _star(self, letter: Letter, asked: Asked) -> bytes:
        part, (after, before) = self.part, self._before(letter)
        if letter.round == 0:
            with withheld("round 0 failed"):
                state, counts = part.begin()
            answer = self.holder.seal(letter, "answer", {"counts": list(counts)})
            return self._keep(letter, after, state, self.holder.leave(asked, answer))
        ids, form = letter.numbers("ids"), letter.word("form")
        some = len(ids) > 0 or part.algorithm.requires().all_hear
        if not (some and ids == sorted({*ids}) and all(i in self.here for i in ids)):
            raise RunError(f"ids = {ids!r:.60} are not clients of {self.holder.name}")
        down = unpack(form, letter.body, part.codecs, part.problem.f.d, 1, shared=True)
        self.follow(dense(leaf) for leaf in leaves(down))
        with withheld(f"round {letter.round} failed"):
            done = part.answer(before, down, letter.round, ids)
        if not ids:  # it only receives the server's message
            answer = self.holder.seal(letter, "answer", {"counts": list(done.counts)})
            return self._keep(letter, after, done.state, self.holder.leave(asked, answer))
        how = {"grain": letter.head.get("grain"), "shares": Shares.of(letter)}
        upload = Upload(letter.round, letter.step, letter.words("cohort"), ids, letter.body, down, before, part, **how)
        with withheld(f"round {letter.round} failed"):
            sent = self.link.noisy(done.up, upload)
            state = done.state if sent is done.up else part.after(done.state, before, down, sent, ids)
            up = self.link.upload(sent, upload)
        size, best = nbytes(up)
        form, body = pack(up, part.codecs)
        told = {"form": form, "counts": list(done.counts._replace(sent=size, best=best))}
        answer = self.holder.seal(letter, "answer", told, body)
        return self._keep(letter, after, state, self.holder.leave(asked, answer))

    # ---- graph -------------------------------------------------------------------------------------------------

    def _peers(self, letter: Letter, asked: Asked) -> bytes:
        t, k, after = letter.round, letter.step, letter.number("after", -1)
        if after != t - 1:
            raise RunError(f"round {t} of peers cannot go on after round {after}")
        log = [e for e in self.store.log() if (e.question.round, e.question.number("after", -1)) == (t, after)][:k]
        if len(log) < k:
            raise Reply("late", {"at": [t, len(log) - 1]})
        if not self.peers.stands_before(t, k):
            self.peers.replay(t, self._before(letter)[1], log)
        stop = self.peers.go(letter)
        if stop.done:
            counts = self.peers.counts()
            answer = self.holder.seal(letter, "answer", {"done": True, "counts": list(counts)})
            return self._keep(letter, after, stop.value, self.holder.leave(asked, answer))
        head, body, said = self.peers.told(t, k, stop.value)
        data = self.holder.leave(asked, self.holder.seal(letter, "answer", head, body), "neighbours")
        self.store.append(log, Entry(letter, data, said))
        return data
