"""`proxfed silo`: the long-running process of a site, which answers jobs."""

from __future__ import annotations

import logging
import os
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from proxfed.errors import require
from proxfed.report.terminal import say, stop_on_signal


class CarrierName(StrEnum):
    nvflare = "nvflare"
    flower = "flower"


CarrierOption = Annotated[
    CarrierName, typer.Option("--carrier", help="Framework of the network: NVIDIA FLARE or Flower.")
]


def silo(
    site: Annotated[Path, typer.Option("--site", metavar="FILE.toml", help="The site's file.")] = Path("site.toml"),
    carrier: CarrierOption = CarrierName.nvflare,
    kit: Annotated[Path | None, typer.Option("--kit", metavar="FOLDER", help="nvflare: the kit of this site.")] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ...]", help="flower: arguments for flower-supernode.")
    ] = None,
) -> None:
    """Hold this site's rows and take part in the jobs that its site.toml allows, until Ctrl-C.

    It opens outgoing connections only. It may be killed at any time: results are on disk before an answer is sent, and
    after a restart it resumes.

    Examples: [bold]proxfed silo --site site.toml --kit kits/lyon[/bold], [bold]proxfed silo --carrier flower --
    --superlink host:8000 --root-certificates ca.crt --auth-supernode-private-key lyon.key[/bold]
    """
    from proxfed.files import locked
    from proxfed.silos.carriers.resident import serving
    from proxfed.silos.carriers.supervise import Kept
    from proxfed.silos.site.config import read_site
    from proxfed.silos.site.from_config import holder

    os.umask(0o077)  # states and logs contain information on rows: only for this user
    logging.basicConfig(format="%(asctime)s %(message)s")
    here = read_site(site)
    place = here.path(here.files.state) / "resident"
    socket = place / "socket"
    whole = carrier is CarrierName.flower  # a SuperNode does not notice when its parent process has ended
    if carrier is CarrierName.nvflare:
        from proxfed.silos.carriers import nvflare_kits

        require(kit is not None, "--kit FOLDER is missing: the kit of NVIDIA FLARE that was made for this site")
        assert kit is not None
        command, environment = nvflare_kits.at_site(kit, socket)
    else:
        from proxfed.silos.carriers import flower_carrier

        command, environment = flower_carrier.at_site(arguments or [], socket)
    holds = holder(here)
    count = sum(holds.rows.sizes)  # a table that cannot be read is refused now
    with locked(place, wait=False) as free:
        require(free, f"{site}: another `proxfed silo` is answering for {here.name}")
        log = place / "carrier.log"
        with serving(socket, holds.answer), Kept(command, log, environment, whole), stop_on_signal() as stop:
            say(f"{here.name}: {count:,} rows; jobs are limited by {site}. The log of {carrier} is {log}")
            while not stop():
                time.sleep(0.2)
