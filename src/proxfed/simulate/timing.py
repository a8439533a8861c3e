"""The table [time] of an experiment: the devices and the links between them.

    [time]
    profile = "fednag_wifi"              a shipped profile; any other key replaces the profile's
    server_seconds = 0.05                s for the server to compute its next message
    vector_seconds = 0.01                s more for each vector that a client sends: FedNAG sends two
    step_scale = 1.0                     multiplies every seconds_per_step: the model is larger or smaller
    [[time.devices]]
    seconds_per_step = 0.02              s for one gradient of one client
    [[time.links]]
    latency = 0.004                      s until the first byte arrives
    up = 100                             Mbit/s that the client sends
    down = 200                           Mbit/s that it receives
    [[time.edges]]
    between = [0, 3]                     two clients of a graph, in both directions
    latency = 0.1
    bandwidth = 5                        Mbit/s

Devices and links are assigned in turn: client i gets entry i mod their count. Entries with `clients` apply to only
these clients. Every amount is a number, a distribution or a trace (distributions.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from proxfed.errors import InputError, nearest, non_negative, positive, require
from proxfed.registry import Table, arguments, read_toml
from proxfed.simulate.distributions import Amount, Constant, amount, table_of


@dataclass(frozen=True)
class Device:
    """The device of a client."""

    seconds_per_step: Amount
    name: str = ""
    clients: list[int] | None = None


@dataclass(frozen=True)
class Link:
    """The link between a client and the server, or the rest of the network."""

    latency: Amount
    up: Amount
    down: Amount
    name: str = ""
    clients: list[int] | None = None


@dataclass(frozen=True)
class Edge:
    """An edge between two clients, which overrides their links."""

    latency: Amount
    bandwidth: Amount
    between: list[int]


AMOUNTS_OF: dict[type, dict[str, str]] = {
    Device: {"seconds_per_step": "seconds"},
    Link: {"latency": "latency", "up": "up", "down": "down"},
    Edge: {"latency": "latency", "bandwidth": "bandwidth"},
}
"""The amounts of an entry, and their columns in a trace."""

RATES = ("up", "down", "bandwidth")

Entry = TypeVar("Entry", Device, Link)


@dataclass(frozen=True)
class Timing:
    """Devices and links of n clients."""

    devices: tuple[Device, ...]
    """The clients' devices: client i gets entry i mod their count."""
    links: tuple[Link, ...]
    """The links between clients and the server: client i gets entry i mod their count."""
    edges: tuple[Edge, ...] = ()
    """Edges between two clients of a graph, which override their links."""
    server_seconds: Amount = Constant(0.0)
    """Seconds for the server to compute its next message."""
    vector_seconds: float = 0.0
    """Additional seconds of the server for each vector that a client sends."""
    step_scale: float = 1.0
    """Multiplies the seconds of every gradient: the model is larger or smaller."""
    profile: str | None = None
    """The name of its profile; None: no profile."""

    def __post_init__(self) -> None:
        positive(self, "step_scale")
        non_negative(self, "vector_seconds")

    @classmethod
    def read(cls, given: Table) -> Timing:
        """From a table [time]; a profile supplies the missing keys."""
        profile = given.get("profile")
        table = given if profile is None else shipped_profile(profile) | given
        known = cls.__dataclass_fields__
        for key in table:
            require(key in known, f"time: unknown key {key!r}; {nearest(key, known)}")
        for key in ("devices", "links"):
            require(key in table, f"time: the key {key!r} is missing; give it, or a profile ({', '.join(profiles())})")
        parts: dict[str, Any] = {
            "devices": tuple(_entry(Device, part, where) for part, where in _listed(table, "devices")),
            "links": tuple(_entry(Link, part, where) for part, where in _listed(table, "links")),
            "edges": tuple(_entry(Edge, part, where) for part, where in _listed(table, "edges")),
            "server_seconds": amount(table.get("server_seconds", 0.0), "time.server_seconds", "seconds"),
        }
        rest = {k: v for k, v in table.items() if k not in parts}
        return cls(**parts, **arguments(cls, rest, "time", set(parts)))

    def table(self) -> Table:
        """The complete table, with the digests of the traces."""
        out: Table = {} if self.profile is None else {"profile": self.profile}
        out |= {"server_seconds": table_of(self.server_seconds), "step_scale": self.step_scale}
        out |= {"vector_seconds": self.vector_seconds} if self.vector_seconds else {}
        out |= {"devices": [_table(d) for d in self.devices], "links": [_table(l) for l in self.links]}
        return out | ({"edges": [_table(e) for e in self.edges]} if self.edges else {})

    def check(self, n: int) -> None:
        """Requires that all named clients exist and that every client has a device and a link."""
        hand_out(self.devices, n, "time.devices")
        hand_out(self.links, n, "time.links")
        self.check_edges(n)

    def check_edges(self, n: int) -> None:
        """Requires that edges are between existing clients, at most one per pair."""
        for k, edge in enumerate(self.edges):
            _exist(edge.between, n, f"time.edges.{k}.between")
            twice = any(set(edge.between) == set(other.between) for other in self.edges[:k])
            require(not twice, f"time.edges.{k}.between = {edge.between!r} has an entry already")


def hand_out(entries: Sequence[Entry], n: int, where: str) -> np.ndarray:
    """(n,) the number of each client's entry."""
    common = np.array([k for k, e in enumerate(entries) if e.clients is None], np.int32)
    given = common[np.arange(n, dtype=np.int32) % len(common)] if len(common) else np.full(n, -1, np.int32)
    named: set[int] = set()
    for k, entry in enumerate(entries):
        for i in _exist(entry.clients or [], n, f"{where}.{k}.clients"):
            require(i not in named, f"{where}.{k}.clients: client {i} is named twice")
            named.add(i)
            given[i] = k
    none = int((given < 0).sum())
    require(none == 0, f"{where}: {none} of the {n} clients get none; leave out `clients` in one entry")
    return given


def _exist(clients: Sequence[int], n: int, where: str) -> Sequence[int]:
    wrong = next((i for i in clients if not 0 <= i < n), None)
    require(wrong is None, f"{where} = {list(clients)!r}: there is no client {wrong}, only 0 to {n - 1}")
    return clients


# ---- profiles ------------------------------------------------------------------------------------------------------


def profiles() -> dict[str, Path]:
    """The profiles that come with the package, by name."""
    folder = Path(str(files("proxfed.simulate") / "profiles"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def shipped_profile(name: Any) -> Table:
    """The table of a shipped profile."""
    known = profiles()
    require(isinstance(name, str) and name in known, f"time: there is no profile {name!r}; {nearest(str(name), known)}")
    return read_time(known[name])


def origin(table: Table) -> str:
    """The origin of the numbers of a table [time], if it names a shipped profile and keeps its devices or links."""
    profile = table.get("profile")
    if profile is None:
        return ""
    own, shipped = Timing.read(table), Timing.read({"profile": profile})
    if own.devices != shipped.devices and own.links != shipped.links:
        return ""
    said = f"simulated seconds are for the profile {profile!r}: {read_toml(profiles()[profile])['origin']}"
    return f"{said}; time.step_scale = {own.step_scale:g} multiplies a step: set it for your model and devices"


def read_time(path: Path) -> Table:
    """The table [time] of a TOML file."""
    table = read_toml(path).get("time")
    if not isinstance(table, dict):
        raise InputError(f"{path} has no table [time]")
    return table


# ---- entries -------------------------------------------------------------------------------------------------------


def _listed(table: Table, key: str) -> list[tuple[Any, str]]:
    entries = table.get(key, [])
    good = isinstance(entries, list) and (key == "edges" or len(entries) > 0)
    require(good, f"time.{key} = {entries!r} must be one or more tables, [[time.{key}]]")
    return [(entry, f"time.{key}.{k}") for k, entry in enumerate(entries)]


def _entry(make: Any, given: Any, where: str) -> Any:
    require(isinstance(given, dict), f"{where} = {given!r} must be a table")
    rest = dict(given)
    columns = AMOUNTS_OF[make]
    if make is Link and "trace" in rest:  # one file with all three
        file = rest.pop("trace")
        rest = {key: {"name": "trace", "file": file} for key in columns} | rest
    for key in columns:
        require(key in rest, f"{where}: the key {key!r} is missing; it is a number, a distribution or a trace")
    amounts = {key: amount(rest.pop(key), f"{where}.{key}", column) for key, column in columns.items()}
    for key in amounts.keys() & set(RATES):
        written = given.get(key, given.get("trace"))
        require(amounts[key].never_zero, f"{where}.{key} = {written!r} must be > 0 Mbit/s, always")
    allowed = [*make.__dataclass_fields__, *(["trace"] if make is Link else [])]
    for key in rest:
        require(key in allowed, f"{where}: unknown key {key!r}; {nearest(key, allowed)}")
    entry = make(**amounts, **arguments(make, rest, where, set(amounts)))
    if make is Edge:
        two = len(entry.between) == 2 and entry.between[0] != entry.between[1]
        require(two, f"{where}.between = {entry.between!r} must be two different clients")
    return entry


def _table(entry: Device | Link | Edge) -> Table:
    amounts = AMOUNTS_OF[type(entry)]
    fields = {k: table_of(v) if k in amounts else v for k, v in vars(entry).items()}
    return {k: v for k, v in fields.items() if v not in (None, "")}
