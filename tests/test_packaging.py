"""What the project says of its versions in several files agrees."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
CI = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDS = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {extra: [Requirement(line) for line in lines] for extra, lines in PROJECT["optional-dependencies"].items()}


def pinned(file: str) -> dict[str, Version]:
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in lines)}


def workflow_extras() -> list[str]:
    """What the workflow installs for the tests."""
    (listed,) = re.findall(r'extras: \["([\w,]+)"\]', CI)
    return listed.split(",")


def test_the_workflow_tests_all_that_make_setup_installs() -> None:
    """Numba and Optuna among them, whose tests would be skipped without a word."""
    installed = re.findall(r"-e '\.\[([\w,]*)\]'", (ROOT / "Makefile").read_text())[0]
    assert {*installed.split(",")} - {"lint", "release"} <= {*workflow_extras()}


def test_the_workflow_tests_on_linux_and_on_macos() -> None:
    assert {"ubuntu-latest", "macos-latest"} <= {*re.findall(r"os: \[?([\w-]+)", CI)}


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    """Of all that is needed to run the tests."""
    oldest = pinned("constraints-oldest.txt")
    for need in [*NEEDS, *(one for extra in workflow_extras() for one in EXTRAS[extra])]:
        (bound,) = (one.version for one in need.specifier if one.operator == ">=")
        assert oldest[canonicalize_name(need.name)] == Version(bound), need


def test_the_pinned_versions_are_allowed() -> None:
    newest = pinned("constraints.txt")
    for need in [*NEEDS, *(one for extra in EXTRAS.values() for one in extra)]:
        assert newest[canonicalize_name(need.name)] in need.specifier, need
