"""What a site that lies can do to a run, and what the coordinator does about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import InputError, RunError
from proxfed.harness.protection import Protection, Robust
from proxfed.silos.coordinator.robust import centre
from proxfed.silos.protection.eligibility import check_protection
from proxfed.silos.wire.message import Letter, pack, unpack
from test_conformance import SETTINGS

from support.guarded_sites import FEDAVG, SITES, Sites, after, algorithm


class Lying:
    """A carrier over which one site changes what it sends in some rounds."""

    sites = SITES

    def __init__(self, sites: Sites, liar: str, lie: Callable[[torch.Tensor], torch.Tensor], rounds: range) -> None:
        self.honest, self.liar, self.lie, self.rounds = sites, liar, lie, rounds

    def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        answers = {name: self.honest._answer(name)(question) for name, question in questions.items()}
        letter = Letter.decode(answers[self.liar]) if self.liar in answers else None
        if letter is not None and letter.body and letter.round in self.rounds:
            form, body = pack(self.lie(unpack(letter.word("form"), letter.body, (), 6, 1)), ())
            answers[self.liar] = Letter(
                letter.kind, letter.run, letter.round, letter.step, letter.head | {"form": form}, body
            ).encode()
        return answers


def run(folder: Path, lie: Any, table: Any = FEDAVG, protection: Any = None) -> tuple[torch.Tensor, list[str]]:
    sites, said = Sites(folder), list[str]()
    c = sites.coordinator(table, protection, say=said.append)
    c.exchange.carrier = Lying(sites, "oslo", lie, range(2, 3))
    return after(c, 4).model(), said


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e5])
def test_a_message_that_cannot_be_meant_is_left_out_and_its_site_named(bad: float, tmp_path: Path) -> None:
    honest, _ = run(tmp_path / "honest", lambda x: x)
    model, said = run(tmp_path / "lies", lambda x: x + bad)
    assert len(said) == 1
    assert said[0].startswith("round 2: oslo sent numbers that are not finite, or 10000 times larger")
    assert float((model - honest).norm()) < 0.2 * float(honest.norm())


def test_where_no_message_can_be_missing_the_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"round 2: oslo sent numbers .*, and FedComposite cannot do without a message"):
        run(tmp_path, lambda x: x * float("nan"), algorithm("fedcomposite", eta=0.1, tau=3))


def test_a_run_that_diverges_everywhere_blames_nobody(tmp_path: Path) -> None:
    said: list[str] = []
    c = Sites(tmp_path, guarded=False).coordinator(algorithm("fedavg", eta=1e308, K=3), say=said.append)
    after(c, 2)
    assert not torch.isfinite(c.model()).all()
    assert said == []


RULES = [Robust(name="median"), Robust(name="trimmed_mean", trim=1), Robust(name="centred_clipping", radius=0.5)]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(3, 9))
def test_messages_that_are_all_alike_are_what_comes_out(rule: Robust, seed: int, n: int) -> None:
    x = torch.randn(7, generator=torch.Generator().manual_seed(seed)).double()
    assert torch.allclose(centre(x.expand(n, -1), rule), x, rtol=1e-15, atol=0)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(3, 9))
def test_without_trimming_and_with_a_wide_radius_it_is_the_mean(seed: int, n: int) -> None:
    rows = torch.randn(n, 7, generator=torch.Generator().manual_seed(seed)).double()
    for rule in (Robust(name="trimmed_mean", trim=0), Robust(name="centred_clipping", radius=1e3)):
        assert torch.allclose(centre(rows, rule), rows.mean(0), rtol=0, atol=1e-13)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
@given(seed=st.integers(0, 2**32 - 1), size=st.floats(-1e12, 1e12))
def test_one_liar_among_five_moves_it_no_farther_than_the_honest_are_apart(
    rule: Robust, seed: int, size: float
) -> None:
    honest = torch.randn(4, 7, generator=torch.Generator().manual_seed(seed)).double()
    found = centre(torch.cat([honest, torch.full((1, 7), size, dtype=torch.float64)]), rule)
    if rule.name == "centred_clipping":
        spread = (honest[:, None] - honest[None]).norm(dim=-1).max()
        assert float((found - honest.mean(0)).norm()) <= float(spread) + 3 * rule.radius
    else:
        assert (found >= honest.min(0).values - 1e-12).all()
        assert (found <= honest.max(0).values + 1e-12).all()


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_a_liar_within_range_is_outvoted(rule: Robust, tmp_path: Path) -> None:
    """The mean follows it; the others do not."""
    table = {"robust": {k: v for k, v in rule.model_dump().items() if v is not None}}
    honest, _ = run(tmp_path / "honest", lambda x: x, protection=table)
    lie = lambda x: x + 5.0
    robust, _ = run(tmp_path / "robust", lie, protection=table)
    plain, _ = run(tmp_path / "plain", lie)
    mean, _ = run(tmp_path / "mean", lambda x: x)
    assert float((robust - honest).norm()) < 1.0
    assert float((plain - mean).norm()) > 2.0


def test_the_other_sites_refuse_a_model_that_a_liar_moved_far(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"lyon refuses: a model was sent that is 40\.8 away from all those before"):
        run(tmp_path, lambda x: x + 50.0)


def test_it_is_refused_where_messages_cannot_be_compared() -> None:
    robust = Robust(name="median")
    with pytest.raises(InputError, match="with secure_aggregation no message can be compared"):
        check_protection(Protection(robust=robust, secure_aggregation=True), SETTINGS["fedavg"], 5)
    with pytest.raises(InputError, match="DSGT has no server that could compare messages"):
        check_protection(Protection(robust=robust), SETTINGS["dsgt"], 5)
    with pytest.raises(InputError, match="trim = 2 leaves none of 3 messages"):
        centre(torch.zeros(3, 2), Robust(name="trimmed_mean", trim=2))
