"""site.toml: where a holder's rows are, and its policy.

name = "lyon"                                     as the job calls this site
[data]       path = "patients.csv"                label = "outcome"; also client, classes, test, held_out;
                                                  or schema = "schema.toml" of tables
[allow]      algorithms = "all"                   or a list; also measures, preparations, counts, code
[limits]     rows = 20                            minimum number of rows; also rounds, bytes, answers, norm, ...
[require]    secure_aggregation = true            sites = 3; privacy = {noise = 8.0, epsilon = 10.0, delta = 1e-5}
[fit]        folds = 5                            for `proxfed fit`; also masked, rows_per_coefficient, apart, measures
[ranges]     K = [1, 20]                          of a job's numbers; override those in protection/ranges.py
[partners]   oslo = "3f2a-..."                    fingerprints of the partners' keys; no other sites are accepted
[files]      key = "site.key"                     audit, state; beside this file unless absolute
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from proxfed.errors import InputError, nearest
from proxfed.registry import read_toml
from proxfed.silos.protection.audit import Audit
from proxfed.silos.protection.keyring import SiteKey
from proxfed.validation import STRICT, refuse_unless, sentence

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
FINGERPRINT = re.compile(r"[0-9a-f]{4}(-[0-9a-f]{4}){7}")

Names = list[str] | Literal["all"]
"""The allowed names; "all": every one that is installed here."""


OF_FITS = ("hessian", "grams", "counts", "histogram", "judged", "private")
OF_INFERENCE = ("products", "size", "agreement", "estimates", "intercept", "risks")
MEASURES = ("value", "gradient", "test", "smoothness", "mean", "field", "apart", *OF_FITS, *OF_INFERENCE)
"""The quantities about a model's fit that may be revealed (queries.py, wire/fit_job.py)."""

PREPARATIONS = ("summary",)
"""The quantities that may be revealed to agree on the preparation of tables (table_rows.py)."""


def _all_or_some(names: Any) -> Any:
    refuse = isinstance(names, str) and names != "all"
    refuse_unless(not refuse, f'allow: {names!r} is neither a list of names nor "all"')
    return names


def _known_ones(known: Sequence[str]) -> Callable[[Names], Names]:
    def check(names: Names) -> Names:
        for name in () if names == "all" else names:
            refuse_unless(name in known, f"allow: {name!r} is not known; {nearest(name, known)}")
        return names

    return check


class Part(BaseModel):
    model_config = STRICT


class Data(Part):
    """Where the rows are; a job cannot change it."""

    path: str = ""
    """A file of numbers (CSV, Parquet, .npz), and ..."""
    label: str = ""
    """... its column of labels."""
    client: str | None = None
    """The column of the client's name, if the site consists of several clients."""
    classes: int | None = Field(default=None, ge=2)
    """The number of classes of numeric labels; None: they are numbers, or -1 and +1."""
    test: str | None = None
    """A file of test rows, which are not used for training."""
    held_out: float = Field(default=0.0, ge=0, lt=1)
    """Instead of a file: the fraction of the rows that is held out."""
    schema_file: str = Field("", alias="schema")
    """Or: the schema of tables, which names their files."""
    organisation: str = ""
    """The organisation whose rows are this site's, if the tables have several."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Data:
        both = bool(self.path) == bool(self.schema_file)
        refuse_unless(not both, "data: give either path and label, or schema")
        refuse_unless(bool(self.label) == bool(self.path), "data: path and label go together")
        more = [name for name in ("client", "classes", "test", "held_out") if getattr(self, name)]
        refuse_unless(not (more and self.schema_file), f"data: {', '.join(more)}: only with path; a schema has its own")
        alone = self.organisation and not self.schema_file
        refuse_unless(not alone, "data: organisation: only with a schema; a file with path is all this site's")
        return self


class Allow(Part):
    """What a job may request."""

    algorithms: Names = "all"
    measures: Names = "all"
    preparations: Names = "all"
    counts: bool = False
    """The number of rows may be revealed; otherwise a job with unequal weights is refused."""
    minibatches: bool = False
    """Gradients of minibatches, whose rows the coordinator knows; always allowed with differential privacy."""
    code: list[str] = []
    """'module:Class' and '/path/file.py:Class' that a job may name; anything else is never imported."""

    _words = field_validator("algorithms", "measures", "preparations", mode="before")(_all_or_some)
    _measures = field_validator("measures")(_known_ones(MEASURES))
    _preparations = field_validator("preparations")(_known_ones(PREPARATIONS))


SMALL_CELL = 5
"""Cells of tables with fewer people are commonly withheld."""


class Limits(Part):
    """Lower and upper limits."""

    rows: int = Field(default=20, ge=1)
    """The minimum number of rows for any answer."""
    rounds: int = Field(default=1000, ge=1)
    """The maximum number of rounds of a job."""
    bytes: int = Field(default=1_000_000_000, ge=1)
    """The maximum number of bytes that leave per job, over all messages."""
    answers: int = Field(default=2_000, ge=1)
    """The maximum number of answers per job that depend on rows: rounds, measures, summaries."""
    total: int = Field(default=20_000, ge=1)
    """The same over all jobs in the audit file."""
    failures: int = Field(default=20, ge=1)
    """The maximum number of failed computations over all jobs: each reveals whether a number was too large."""
    norm: float = Field(default=100.0, gt=0)
    """The largest norm of a model that a job may query."""
    step: float = Field(default=10.0, gt=0)
    """The largest distance of a model from all earlier ones."""
    weights: float = Field(default=10.0, ge=1, allow_inf_nan=False)
    """The largest ratio between the weights of two clients."""
    partners: int = Field(default=2, ge=1)
    """The minimum number of sites in which two masked jobs may differ, unless their sites are the same."""
    change: int = Field(default=20, ge=1)
    """The minimum number of rows in which the tables of two jobs may differ, unless they are the same; missing values
    count as the job's imputed values."""
    feature: int | None = Field(default=None, ge=1)
    """The minimum number of rows that differ from all others in a feature, such as a rare category: one product of
    columns is the sum of just these rows. None: 5, or `rows` if that is less, if the coordinator can read sums of this
    site alone; 1 under masks between three or more sites, when it reads the sum over all."""

    def fewest_of_feature(self, alone: bool) -> int:
        """`alone`: the coordinator can read sums of this site alone."""
        return self.feature or (min(SMALL_CELL, self.rows) if alone else 1)


class RequiredPrivacy(Part):
    """Differential privacy of the messages of rounds."""

    noise: float = Field(gt=0, allow_inf_nan=False)
    """The minimum noise."""
    epsilon: float = Field(gt=0, allow_inf_nan=False)
    """The maximum epsilon, over all jobs in the audit file."""
    delta: float = Field(default=1e-5, gt=0, lt=1)


class Require(Part):
    """Protection that a job must have."""

    secure_aggregation: bool = False
    fraction_bits: int = Field(default=40, ge=8, le=52)
    """With secure aggregation: the required fraction_bits of a job."""
    sites: int = Field(default=2, ge=2)
    """The minimum number of sites of a job; with secure aggregation, also of every sum and difference of two sums."""
    same_cohort: bool = True
    """With secure aggregation: all rounds of a job are sums over the same sites."""
    recovery: int = Field(default=0, ge=0)
    """With secure aggregation: how many sites must agree that this one dropped out before its masks can be undone;
    always at least a majority, which 0 stands for."""
    privacy: RequiredPrivacy | None = None


class OfFits(Part):
    """What `proxfed fit` may request; "fit" must also be among allow.algorithms."""

    folds: int = Field(default=5, ge=2, le=20)
    """The number of folds, the same for all jobs: two divisions together would single out rows."""
    masked: bool = True
    """Only sums over all sites are revealed; false: a job may request those of this site alone."""
    rows_per_coefficient: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    """The minimum number of rows per coefficient for products of columns: Hessians and Gram matrices."""
    apart: bool = False
    """A job may leave out one organisation at a time; the sums with and without this site differ by its own sum."""
    dominance: float = Field(default=0.5, gt=0, le=1)
    """The largest share of one row in a sum of a loss that grows as e^score: Poisson's and Cox's."""
    measures: bool = False
    """Measures of a model on this site's held-out rows may be revealed, rounded."""
    inference: bool = True
    """The sums over all sites that standard errors and survival curves need may be revealed: rows per class, products
    of gradients, whether sites agree, times at which rows leave the risk set."""
    estimates: bool = False
    """Estimates from this site's rows alone may be revealed, for a forest plot."""


class Files(Part):
    key: str = "site.key"
    audit: str = "audit.jsonl"
    state: str = "state"
    """The folder of running jobs."""


class Site(Part):
    """The whole file."""

    name: str = Field(pattern=NAME)
    data: Data
    allow: Allow = Allow()
    limits: Limits = Limits()
    require: Require = Require()
    fit: OfFits = OfFits()
    ranges: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]] = {}
    partners: dict[str, str] = {}
    files: Files = Files()
    folder: Path = Field(Path(), exclude=True)
    """The folder of the file."""

    @field_validator("partners")
    @classmethod
    def _fingerprints(cls, partners: dict[str, str]) -> dict[str, str]:
        for name, said in partners.items():
            known = FINGERPRINT.fullmatch(said)
            refuse_unless(known is not None, f"partners.{name} = {said!r} is not a fingerprint, as `site init` prints")
        return partners

    @field_validator("ranges")
    @classmethod
    def _from_low_to_high(cls, ranges: dict[str, list[float]]) -> dict[str, list[float]]:
        for name, (low, high) in ranges.items():
            refuse_unless(low <= high, f"ranges.{name} = {[low, high]} must go from a lower to a higher number")
        return ranges

    def path(self, said: str) -> Path:
        """A file that site.toml names."""
        return self.folder / Path(said).expanduser()

    @property
    def audit(self) -> Audit:
        return Audit(self.path(self.files.audit))

    @property
    def key(self) -> SiteKey:
        return SiteKey.read(self.path(self.files.key))


def read_site(path: str | Path) -> Site:
    """From its file."""
    path = Path(path).expanduser()
    return parse_site(read_toml(path), str(path), path.parent)


def parse_site(table: Mapping[str, Any], where: str, folder: Path) -> Site:
    try:
        if "folder" in table:
            raise InputError(f"{where}: unknown key 'folder'")
        return Site(**table, folder=folder)
    except ValidationError as e:
        raise InputError(f"{where}: {sentence(e, dict(table), _known)}") from e


def _known(keys: Sequence[str]) -> Iterable[str]:
    parts: dict[str, type[BaseModel]] = {
        "data": Data,
        "allow": Allow,
        "limits": Limits,
        "require": Require,
        "fit": OfFits,
        "privacy": RequiredPrivacy,
        "files": Files,
    }
    model = next((parts[key] for key in reversed(keys) if key in parts), Site)
    return [field.alias or name for name, field in model.model_fields.items() if name != "folder"]
