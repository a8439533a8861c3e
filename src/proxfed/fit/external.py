"""External validation: a model judged on tables of organisations that it was not fitted to."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from proxfed.errors import require
from proxfed.fit.judge import Judgement, judge
from proxfed.fit.model_file import Model
from proxfed.problems.named_losses import find_loss
from proxfed.tables.schema import Schema
from proxfed.tables.table import Table, read_tables


def validate(
    model: Model,
    tables: str | Path | Schema,
    directory: str | Path | None = None,
    *,
    repetitions: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> Judgement:
    """Every measure, with its interval, for each organisation of the tables and over all of them.

    The tables are prepared as those of the model were; their schema must be the model's, but for where the rows are.
    """
    found = read_tables(tables, directory)
    check_schema(model, found.schema)
    each = found.tables
    labels = np.concatenate([labels_of(model, table) for table in each])
    scores = np.concatenate([model.scores(table) for table in each])
    sizes, names = [len(table) for table in each], [table.organisation for table in each]
    loss = find_loss(model.loss)
    return judge(loss, scores, labels, sizes, names, repetitions=repetitions, level=level, seed=seed)


def check_schema(model: Model, schema: Schema) -> None:
    """Refused if the tables are not described as the model's own were; where the rows are does not matter."""
    ours = model.prepare.schema
    apart = ours.differences(schema.expanded(ours.columns))
    lines = "".join(f"\n  {line}" for line in apart)
    require(not apart, f"{schema.table.name}: its schema is not that of the model:{lines}")


def labels_of(model: Model, table: Table) -> np.ndarray:
    """As measures take them: two classes as -1 and +1, times with a minus where censored."""
    labels = table.labels
    require(labels is not None, f"{table.organisation}: has no target, so that predictions cannot be judged")
    assert labels is not None
    if table.events is not None:
        return np.copysign(labels, table.events - 0.5)
    return 2.0 * labels - 1.0 if model.loss["name"] == "logistic" else labels
