"""What users import: from `proxfed` what the first page of the README needs, and from modules what `__all__` says."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import proxfed
import proxfed.fit.solve  # which must not hide the function
from proxfed.engine.allocator import tune_process

ROOT = Path(proxfed.__file__).parent
MODULES = [
    "algorithms", "compressors", "data", "epochs", "errors", "files", "fit", "hooks", "keyed_random", "participation",
    "problems", "regularisers", "schedules", "sklearn", "tables", "testing", "topologies", "types",
]  # fmt: skip


def test_the_root_has_bases_regularisers_topologies_and_fit() -> None:
    bases = {"Smooth", "Problem", "Star", "Graph", "Regulariser", "Local", "Measure"}
    common = {"L1", "ElasticNet", "GroupLasso", "MCP", "Ring", "Complete", "ErdosRenyi", "Pledge", "fit"}
    assert bases | common <= {*proxfed.__all__}
    assert proxfed.fit is import_module("proxfed.fit.consortium").fit


def test_the_readme_imports_from_the_root_alone() -> None:
    imports = [line for line in (ROOT.parents[1] / "README.md").read_text().splitlines() if "import" in line.split()]
    assert [line for line in imports if line.startswith("from proxfed.")] == []


def test_a_star_import_hides_nothing_of_others() -> None:
    assert not {"path", "tune_process"} & {*proxfed.__all__}
    assert not hasattr(proxfed, "path")
    assert callable(tune_process)


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module_says_what_it_offers(name: str) -> None:
    module = import_module(f"proxfed.{name}")
    assert len({*module.__all__}) == len(module.__all__) > 0
    assert all(hasattr(module, one) for one in module.__all__)
