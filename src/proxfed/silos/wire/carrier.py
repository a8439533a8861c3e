"""What brings questions to holders and answers back. It knows nothing else, and need not be reliable.

A carrier may deliver a question twice, late or in another order, or lose it and repeat it: holders and the coordinator
recognise all that. Real ones are in files of their own; `Direct` is for holders in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

Answer = Callable[[bytes], bytes]
"""What a holder is, to a carrier."""


class Carrier(Protocol):
    """The way to some sites."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the holders, in the order of the clients."""

    def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        """Answers of the sites asked.

        deadline: seconds after which those that have not answered are left out; None: wait, and say after a while for
        whom.
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
