"""Carriers bring questions to holders and answers back. They know nothing else, and need not be reliable.

A carrier may deliver a question twice, late or out of order, or lose it and repeat it: holders and the coordinator
recognise all of this. The real carriers have their own files; `Direct` is for holders in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

Answer = Callable[[bytes], bytes]
"""A holder, as carriers see it: a function from question to answer."""


class Carrier(Protocol):
    """The way to some sites."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the holders, in the order of the clients."""

    def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        """The answers, by site.

        deadline: seconds after which sites that have not answered are left out; None: wait, and report the missing ones
        after a while.
        """


class Direct:
    """Holders in this process, by name."""

    def __init__(self, holders: Mapping[str, Answer]) -> None:
        self.holders = holders

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.holders)

    def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        return {site: self.holders[site](question) for site, question in questions.items()}
