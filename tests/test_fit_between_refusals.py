"""What needs all rows in one place is refused between organisations, in one sentence, before a site is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import proxfed
from proxfed.cli.main import app
from proxfed.errors import InputError
from proxfed.silos.coordinator.fit import fit_between

CLINICS = Path(proxfed.__file__).parents[2] / "examples" / "tables" / "clinics" / "tables.toml"


class Silent:
    """Sites that nobody may ask."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the carrier was asked for {name}")


@pytest.mark.parametrize("asked", [{"nested": True}, {"optimism": 50}, {"stability": 50}], ids=lambda a: next(iter(a)))
def test_a_fit_that_is_made_again_is_refused(asked: dict[str, Any], tmp_path: Path) -> None:
    carrier: Any = Silent()
    with pytest.raises(InputError, match=f"^{next(iter(asked))}: models are fitted again where all tables lie in one"):
        fit_between(CLINICS, carrier, tmp_path / "fit", **asked)
    assert not (tmp_path / "fit").exists()


@pytest.mark.parametrize("option", [("--impute", "5"), ("--random-intercepts",)], ids=lambda o: o[0])
def test_estimates_that_need_rows_are_refused(option: tuple[str, ...], tmp_path: Path) -> None:
    command = ["glm", str(CLINICS), *option, "--carrier", "nvflare", "--loopback", "2", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code != 0
    assert str(result.exception).startswith(f"{option[0]}: ")
    assert str(result.exception).endswith("not between organisations")
    assert not [*tmp_path.iterdir()]
