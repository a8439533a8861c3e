"""How a command reaches the sites: through a carrier's running server, or with everything on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from proxfed.cli.silo import CarrierName
from proxfed.errors import require
from proxfed.report.terminal import err, say

if TYPE_CHECKING:
    from proxfed.silos.wire.carrier import Carrier

KitOption = Annotated[Path | None, typer.Option("--kit", metavar="FOLDER", help="Kit of an NVFLARE administrator.")]
SuperlinkOption = Annotated[
    str, typer.Option("--superlink", help="Flower: the connection's name in Flower's config.toml.")
]
SitesOption = Annotated[
    str,
    typer.Option("--sites", metavar="A,B,...", help="Sites, in this order; NVFLARE's default: all that are connected."),
]
LoopbackOption = Annotated[
    int | None,
    typer.Option("--loopback", min=2, metavar="N", help="Run everything on this machine, with this many sites."),
]


class Connection(NamedTuple):
    """The options of the command line about the sites."""

    carrier: CarrierName
    kit: Path | None
    superlink: str
    sites: str
    loopback: int | None

    def check(self) -> None:
        """Refuses missing options."""
        if self.loopback is not None:
            return
        if self.carrier is CarrierName.nvflare:
            require(self.kit is not None, "--kit FOLDER is missing: the kit of an administrator of NVIDIA FLARE")
        else:
            require(bool(self.superlink), "--superlink NAME is missing: a connection in Flower's own settings")


@contextmanager
def connected(
    to: Connection,
    path: Path,
    command: str,
    known: Callable[[], tuple[str, ...]],
    make: Callable[[Path], tuple[str, ...]],
) -> Iterator[Carrier]:
    """The sites, while this command works on `path`; the carrier's folder is beside it.

    known   the sites of an earlier attempt there; none if there was none
    make    writes the folders of sites that run on this machine, and returns their names
    """
    from proxfed.files import locked
    from proxfed.silos.carriers.desk import Desk

    beside = path.with_name(path.name + ".carrier")
    run = sha256(str(beside.resolve()).encode()).hexdigest()[:12]
    with ExitStack() as held:
        free = held.enter_context(locked(beside, wait=False))
        require(free, f"{path}: another `proxfed {command}` is working on it")
        held.callback(_remove_if_empty, beside)
        names, kit, superlink = known(), to.kit, to.superlink
        if to.loopback is not None:
            from proxfed.silos.carriers.loopback import Loopback

            names = make(beside)
            site = [sys.executable, "-m", "proxfed", "silo", "--site"]
            here = Loopback(beside, names, to.carrier, lambda name: [*site, str(beside / name / "site.toml")])
            say(
                f"{to.loopback} sites on this machine; their logs and those of {to.carrier} are in {beside / 'logs'}",
                err,
            )
            held.enter_context(here)
            kit, superlink = here.kit, "loopback"
            os.environ.update(here.environment)
        dispatch = _couriers(to.carrier, kit, superlink, run)
        names = tuple(to.sites.split(",")) if to.sites else names or dispatch.sites()
        say(f"The sites are {', '.join(names)}", err)
        yield held.enter_context(Desk(names, beside / "desk", dispatch))


@contextmanager
def tables_at_sites(
    file: Path,
    to: Connection,
    place: Path,
    command: str,
    data: str | None,
    *,
    folds: int = 5,
    kept: Path | None = None,
    rules: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Carrier]:
    """The sites of tables with this schema, while this command works on `place`.

    folds   of the rows of sites on this machine
    kept    the folder of an earlier attempt to resume; None: there is none
    rules   further rules of sites on this machine
    """
    from proxfed.silos.carriers.loopback_sites import make_table_sites
    from proxfed.silos.coordinator.fit_agreement import FitAgreement

    os.umask(0o077)  # only this user may read the sites' messages
    to.check()
    if data is not None:
        os.environ["PROXFED_DATA"] = str(Path(data).resolve())  # for sites on this machine
    agreement = None if kept is None else kept / "agreement.json"

    def known() -> tuple[str, ...]:
        return FitAgreement.read(agreement).job.sites if agreement is not None and agreement.exists() else ()

    def make(beside: Path) -> tuple[str, ...]:
        return make_table_sites(file, data, beside, to.loopback or 0, folds, rules)

    with connected(to, place, command, known, make) as desk:
        yield desk


def _remove_if_empty(folder: Path) -> None:
    """Removes the remains of the locked folder after a refusal."""
    with suppress(OSError):
        folder.rmdir()


def _couriers(carrier: CarrierName, kit: Path | None, superlink: str, run: str) -> Any:
    if carrier is CarrierName.nvflare:
        from proxfed.silos.carriers.nvflare_carrier import Flare

        assert kit is not None
        return Flare(kit, run)
    from proxfed.silos.carriers.flower_carrier import Runs

    return Runs(superlink, run)
