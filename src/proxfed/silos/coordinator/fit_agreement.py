"""The agreement of sites and coordinator before a fit: the preparation of the tables, the loss, and the folds."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from proxfed import files
from proxfed.errors import InputError, RunError, require
from proxfed.files import checked, replace, with_checksum
from proxfed.fit.settings import Settings, loss_of
from proxfed.problems.losses import Logistic
from proxfed.problems.named_losses import KINDS
from proxfed.registry import Table, describe
from proxfed.silos.coordinator.deploy import Greeting, greet
from proxfed.silos.wire.carrier import Carrier
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.fit_job import FitTable
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Letter
from proxfed.tables.schema import Schema, from_plain


class FitAgreement(NamedTuple):
    """The agreement, which is kept on disk until the model is saved."""

    job: Job
    tests: tuple[str, ...]
    """The sites that have test rows."""
    summaries: tuple[int, int]
    """Bytes that sites sent and received before the job."""
    rows: dict[str, int | None]
    """The number of rows of each site, as far as it reveals it."""
    settings: Table
    """The settings with which the fit was begun."""
    life: int = 1

    def save(self, path: Path) -> None:
        plain = self._asdict() | {"job": json.loads(self.job.encode())}
        replace(path, json.dumps(with_checksum(plain), indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> FitAgreement:
        """The agreement with which the fit was begun, to resume it."""
        try:
            table = checked(files.parse_json(files.read(path), str(path)), str(path))
            job = Job.decode(json.dumps(table["job"]).encode())
            up, down = table["summaries"]
            rest = dict(table["rows"]), dict(table["settings"]), int(table["life"]) + 1
            return cls(job, tuple(table["tests"]), (int(up), int(down)), *rest)
        except (OSError, ValueError, KeyError, TypeError, RunError) as e:
            raise InputError(f"{path} is damaged: {e}") from e


def agree_on_fit(
    schema: Schema,
    settings: Settings,
    carrier: Carrier,
    protection: dict[str, object],
    say: Callable[[str], None],
    folds: int | None = None,
) -> FitAgreement:
    """From the coordinator's schema, which must equal every site's; `folds` replaces the number of folds of the
    settings."""
    met = greet(carrier, False, say)
    same_schema(met, schema)
    target = schema.target
    require(target is not None, "the schema has no [target]")
    assert target is not None
    loss = loss_of(settings, target)
    left_out = settings.cv == "organisation"
    fit = FitTable.model_validate({
        "loss": describe(loss, KINDS),
        "intercept": settings.intercept and loss.separate,
        "folds": len(carrier.sites) if left_out else settings.folds if folds is None else folds,
        "by": "organisation" if left_out else "rows",
    })  # fmt: skip
    job = job_of(met, schema, carrier.sites, fit, protection)
    tests = tuple(site for site, told in met.schemas.items() if told["test"])
    return FitAgreement(job, tests, met.bytes, met.rows, settings.model_dump(mode="json", exclude_defaults=True))


def job_of(
    met: Greeting, schema: Schema, sites: tuple[str, ...], fit: FitTable, protection: Mapping[str, object]
) -> Job:
    """The job of all sites of the handshake."""
    signed, target = isinstance(fit.criterion, Logistic), schema.target
    classes = None if signed or target is None or not target.names else len(target.names)
    n = len(sites)
    return Job(
        {"protection": dict(protection)},
        sites,
        (1,) * n,
        (1 / n,) * n,
        met.agreed | {"classes": classes},
        secrets.token_hex(16),
        fit=fit.model_dump(exclude_none=True),
        introductions=met.introductions,
        audits=met.audits,
    )


def same_schema(met: Greeting, schema: Schema) -> None:
    """Refused if a site has another schema."""
    for site, told in met.schemas.items():
        require("agreement" in told, f"{site}: its rows have no schema; `proxfed site join` makes a site of one")
        theirs = from_plain(told["agreement"], f"the schema of {site}")
        apart = theirs.differences(schema.expanded(theirs.columns))  # only sites know which columns [others] stands for
        lines = "".join(f"\n  {line}" for line in apart)
        require(not apart, f"{site}: its schema is not the one that is to be fitted:{lines}")


class Announced(NamedTuple):
    """The sites' answers after they have built a job."""

    d: int
    hessians: bool
    """Whether all of them send Hessians."""
    grams: bool


def announce(job: Job, exchange: Exchange) -> Announced:
    answers = exchange.ask(job, dict.fromkeys(job.sites, Letter("job", job.digest, body=job.encode())))
    lengths = {answer.number("d") for answer in answers.values()}
    require(len(lengths) == 1, f"the sites' models have different lengths: {sorted(lengths)}")
    hessians, grams = (all(a.head.get(key) is True for a in answers.values()) for key in ("hessians", "grams"))
    return Announced(lengths.pop(), hessians, grams)
