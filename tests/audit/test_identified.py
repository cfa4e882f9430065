"""Identified records, and the guess by the true label: what is computed, what cannot be, and what is compared then."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Generator

from privkit.audit.run import run_audit
from privkit.audit.scoring import (
    ahead,
    by_pattern,
    directions,
    identified,
    identified_by_pattern,
    identified_when_moved,
    repeated,
    scored,
    summarise,
    unidentified,
)
from privkit.audit.seed_data import chances, floor_guesses, no_class_mean
from privkit.domains import Batch, Domain, Images, Tables
from privkit.reports.columns import numbers
from privkit.reports.gate import Gate
from privkit.reports.strongest import grade
from privkit.shared.measures import CLASS_MEAN, FLOORS, Measure
from tests.domains.test_laws import EVERY
from tests.reports.made import made, metric
from tests.small import SMALL, digits


def batch(domain: Domain, count: int, classes: int = 3) -> Batch:
    x, numbers = domain.random(count, Generator().manual_seed(0)), torch.arange(count)
    return Batch(x=x, y=numbers % classes, ids=numbers, domain=domain)


@pytest.mark.parametrize("domain", EVERY.values(), ids=list(EVERY))
def test_the_truth_finds_every_record_and_floors_as_many_as_they_may(domain: Domain) -> None:
    """Random records differ; a constant finds one of them, and the class mean at most one of each class."""
    own, attacked = batch(domain, 60), batch(domain, 30)
    assert identified(domain, attacked.x, attacked.x).mean() == 1
    guesses = floor_guesses(own, attacked, classes=True)
    assert set(guesses) == {floor.name for floor in domain.kind.all_floors}
    scores = {name: scored(domain, attacked.x, guess, 30) for name, guess in guesses.items()}
    floors = chances({name: summarise(found) for name, found in scores.items()}, attacked)
    for name, floor in floors.items():
        found = floor["unaligned"]["identified"]
        if not FLOORS[name].labels:
            assert found.value == pytest.approx(1 / 30)
        assert 0 <= found.value <= found.high + 1e-12
        assert found.high == pytest.approx((3 if FLOORS[name].labels else 1) / 30)


def test_a_guess_by_the_label_alone_finds_no_more_than_one_record_of_each_class() -> None:
    """Over many draws: an own image of the record's class, which is sharper than the class mean."""
    own, attacked = digits(400)[:300], digits(400)[300:]
    shares = []
    for seed in range(20):
        draws = Generator().manual_seed(seed)
        rows = [(own.y == label).nonzero().flatten() for label in range(10)]
        picks = torch.stack([rows[y][torch.randint(len(rows[y]), (), generator=draws)] for y in attacked.y.tolist()])
        shares.append(identified(own.domain, attacked.x, own.x[picks]).mean())
    assert 0.02 < sum(shares) / 20 < 0.1


@pytest.mark.parametrize(("contrast", "found"), [(0.05, True), (-0.05, True), (0.0, False)])
def test_pale_and_inverted_guesses_are_identified_by_pattern_though_not_by_distance(
    contrast: float, found: bool
) -> None:
    own, attacked = digits(400)[:300], digits(400)[300:]
    middle = own.x.mean(0)
    guess = middle + contrast * (attacked.x - middle)
    assert identified(own.domain, attacked.x, guess).mean() < 0.1
    chances = identified_by_pattern(attacked.x, guess, middle)
    assert chances.mean() == pytest.approx(1.0 if found else 0.01)
    assert bool(by_pattern(chances, labels=10)) == found
    assert not by_pattern(chances, labels=0)  # without labels nobody knows what a guess by the label would find


def test_guesses_from_the_label_or_from_noise_are_not_identified_by_pattern() -> None:
    """Over twenty draws: an own image of the record's class, the class mean, and noise."""
    own, attacked = digits(400)[:300], digits(400)[300:]
    rows = [(own.y == label).nonzero().flatten() for label in range(10)]
    means = torch.stack([own.x[rows[y]].mean(0) for y in attacked.y.tolist()])
    for seed in range(20):
        draws = Generator().manual_seed(seed)
        picks = torch.stack([rows[y][torch.randint(len(rows[y]), (), generator=draws)] for y in attacked.y.tolist()])
        for guess in (own.x[picks], means, torch.rand(attacked.x.shape, generator=draws)):
            assert not by_pattern(identified_by_pattern(attacked.x, guess, own.x.mean(0)), labels=10)
            assert not by_pattern(identified_when_moved(attacked.x, guess, own.x.mean(0)), labels=10)


@pytest.mark.parametrize("moved", ["flip", "turn", "shift", "apart"])
def test_mirrored_and_moved_guesses_are_identified_in_another_place(moved: str) -> None:
    """A defense may mirror each image, or not, by a coin; then guesses are in two places."""
    own, attacked = digits(400)[:300], digits(400)[300:]
    middle, mirrored = own.x.mean(0), attacked.x.flip(3)
    coins = torch.rand(len(mirrored), 1, 1, 1, generator=Generator().manual_seed(0)) < 0.5
    guess = {
        "flip": mirrored,
        "turn": attacked.x.rot90(1, (2, 3)),
        "shift": attacked.x.roll((3, -2), (2, 3)),
        "apart": torch.where(coins, mirrored, attacked.x),
    }[moved]
    found = by_pattern(identified_when_moved(attacked.x, guess, middle), 10, "mirrored")
    assert [check.detail for check in found] == [
        "100 of 100 images are identified by correlation: guesses show them mirrored"
    ]


def test_one_attacked_record_has_no_others_to_be_told_from() -> None:
    domain = Images(shape=(1, 8, 8))
    one = batch(domain, 1)
    assert unidentified(domain, one.x).startswith("identified cannot be computed: one attacked record")
    assert "identified" not in scored(domain, one.x, one.x, 1)["unaligned"]
    two = batch(domain, 2)
    assert "identified" in scored(domain, two.x, two.x, 1)["unaligned"]


@pytest.mark.parametrize("domain", EVERY.values(), ids=list(EVERY))
def test_equal_records_are_not_told_apart_and_a_sentence_says_so(domain: Domain) -> None:
    """A gate on identified records was met by exact copies of forty equal images."""
    others = batch(domain, 8)
    same, pair = others[torch.zeros(40, dtype=torch.int64)], others[torch.tensor([0, 0, 1, 2])]
    assert unidentified(domain, same.x).startswith(f"identified cannot be computed: all 40 attacked {domain.records}")
    assert "identified" not in scored(domain, same.x, same.x, 8)["unaligned"]
    assert unidentified(domain, pair.x) == "" == repeated(domain, others.x)
    assert repeated(domain, pair.x) == (
        f"2 of 4 attacked {domain.records} equal another one: no attack identifies more than 0.750 of all"
    )
    assert identified(domain, pair.x, pair.x).mean() == 0.75


def test_nearly_equal_images_are_counted_since_a_good_guess_may_find_the_other() -> None:
    images, draws = digits(400), Generator().manual_seed(0)
    twins = torch.cat([images.x[:20], (images.x[:20] + 0.01 * torch.randn(20, 1, 8, 8, generator=draws)).clamp(0, 1)])
    guess = (twins + 0.1 * torch.randn(twins.shape, generator=draws)).clamp(0, 1)
    assert identified(images.domain, twins, guess).mean() < 0.8
    assert identified(images.domain, twins[:20], guess[:20]).mean() == 1
    assert repeated(images.domain, twins).startswith("40 of 40 attacked images nearly equal another one")
    assert repeated(images.domain, images.x[:100]) == ""


def test_a_measure_without_an_order_of_records_identifies_nobody() -> None:
    kind = SimpleNamespace(measures=(Measure(name="sharpness", higher_is_closer=None),))
    domain = cast(Any, SimpleNamespace(name="sounds", kind=kind, scores=lambda truth, guess: {}))
    assert unidentified(domain, torch.zeros(9, 1)) == (
        "identified cannot be computed: sharpness does not say which of two records is nearer to a guess"
    )
    assert scored(domain, torch.zeros(9, 1), torch.zeros(9, 1), 3) == {"unaligned": {}}


@pytest.mark.parametrize(("blur", "reveals"), [(None, "nothing"), (0.02, "record")])
def test_a_random_own_row_reveals_nothing_although_it_has_many_cells_right(blur: float | None, reveals: str) -> None:
    """In columns where most cells are zero, against rows that are read up to small errors."""
    x = torch.rand(600, 10, generator=Generator().manual_seed(0)) / 2 + 0.5
    x *= torch.rand(600, 10, generator=Generator().manual_seed(1)) > 0.6
    domain = Tables(dense=tuple("abcdefghij"), ranges=((0.0, 1.0),) * 10)
    rows = Batch(x=x, y=(x[:, 0] > 0).long(), ids=torch.arange(600), domain=domain)
    own, attacked = rows[:400], rows[400:500]
    guess = x[500:] if blur is None else (attacked.x + blur).clamp(0, 1)
    guesses = floor_guesses(own, attacked, classes=True)
    scores = {name: scored(domain, attacked.x, one, 50) for name, one in guesses.items()}
    found = scored(domain, attacked.x, guess, 50)
    assert scores["column_mean"]["unaligned"]["cells"].mean() < 0.1 < found["unaligned"]["cells"].mean()
    row = made(
        recovered=summarise(found),
        floors=chances({name: summarise(one) for name, one in scores.items()}, attacked),
        ahead=ahead(found["unaligned"], {name: one["unaligned"] for name, one in scores.items()}, directions()),
        counts={"auxiliary": len(own)},
    )
    assert grade(row) == reveals


def test_a_class_without_own_records_is_guessed_as_all_own_records_are() -> None:
    attacked = batch(Images(shape=(1, 8, 8)), 9)
    own = attacked[attacked.y != 2]
    guesses = floor_guesses(own, attacked, classes=True)
    assert torch.equal(guesses["class_mean"][2], guesses["mean_image"][2])
    assert torch.allclose(guesses["class_mean"][0], own.x[own.y == 0].mean(0))
    assert "class_mean" not in floor_guesses(own, attacked, classes=False)


def test_why_there_is_no_class_mean() -> None:
    own = attacked = batch(Images(shape=(1, 8, 8)), 9)
    several = replace(attacked, y=torch.zeros(9, 4, dtype=torch.int64))
    config = cast(Any, SimpleNamespace(auxiliary="disjoint"))
    assert no_class_mean(config, own, attacked, True) == ""
    assert "(the adversary's own records have no labels)" in no_class_mean(config, own, attacked, False)
    for labeled in (True, False):
        assert "(the adversary has no own images)" in no_class_mean(config, own[:0], attacked, labeled)
    assert "(records have several labels each)" in no_class_mean(config, own, several, True)
    other = cast(Any, SimpleNamespace(auxiliary="tiny_digits"))
    assert "of other classes): guesses are compared with constant ones alone" in no_class_mean(other, own, own, True)


def test_a_gate_may_bound_the_share_that_is_identified() -> None:
    """The upper end counts, and a constant guess finds its one record in any case; the class mean does not count."""
    share = metric(0.15, 0.09, 0.25, worst=1, closer=True)
    floor = {"unaligned": {"identified": metric(0.3, 0.3, 0.3, worst=1, closer=True)}}
    row = made(recovered={"unaligned": {"identified": share}}, floors={"class_mean": floor})
    assert Gate.parse("identified<=.2").failures([row])
    assert Gate.parse("identified<=.25").failures([row]) == []
    assert Gate.parse("identified<=.25").failures([made(recovered=row.recovered, floors={"mean_image": floor})])
    assert numbers(row)["unaligned_identified"] == share


@pytest.mark.usefixtures("no_report", "no_controls")
@pytest.mark.parametrize(("auxiliary", "known"), [("disjoint", None), ("lfw_subset", 10)])
def test_a_row_without_class_mean_says_how_many_labels_its_victims_have(
    auxiliary: str, known: int | None, tmp_path: Path
) -> None:
    given: dict[str, Any] = {**SMALL, "defense": "none", "attack": "mean_image"}
    given |= {"budget": "smoke:private=60,auxiliary=60,test=50,victims=50,epochs=0", "auxiliary": auxiliary}
    (row,) = run_audit(out=tmp_path / "run", **given).rows
    assert (CLASS_MEAN.name in row.floors, row.counts.get("victim_labels")) == (known is None, known)
