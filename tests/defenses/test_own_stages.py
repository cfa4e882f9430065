"""A user's own stage is charged by its receipt and its effects, and refused where its releases contradict them."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from privkit.accountants.spec.mixing import FixedRatio
from privkit.accountants.spec.parts import Mixup
from privkit.defenses.base import Defense, Release
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.chain import Chain
from privkit.defenses.charge import Noised
from privkit.defenses.compile import run
from privkit.defenses.denoising import Masking
from privkit.defenses.measured import contradiction, exceeds_charge
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.own_receipts import IMAGE, refuted
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.defenses.receipts import Permuted
from privkit.defenses.residual import unlike
from privkit.parts.registry import load
from tests.defenses.made_stages import ACROSS, Own, draw
from tests.small import built, generator

SHAPE = (2, 4, 16, 4)


def moved(stages: tuple[Defense, ...], seed: int, tries: int = 60) -> float:
    """The largest change of what the noise is added to, by a search that knows nothing of the one in the product."""
    *before, last = stages
    assert isinstance(last, Own)
    dice, most = np.random.default_rng(seed), 0.0
    for number in range(tries):
        z = torch.tensor(10 ** dice.uniform(-2, 3) * dice.standard_normal(SHAPE))
        if number % 3 == 1:
            z = z * torch.tensor(dice.random((2, 4, 1, 1)) < 0.3)
        other = z.clone()
        other[0, 1] = torch.tensor(10 ** dice.uniform(-2, 4) * dice.standard_normal(SHAPE[2:]))
        if number % 5 == 0:
            other[0, 1] = -z[0, 1] * 100
        pair = []
        for data in (z, other):
            draws = generator(number)
            for stage in before:
                data = stage.apply(data, torch.zeros(2, 4), draws)[0].smashed
            pair.append(last.quiet(data))
        most = max(most, (pair[0] - pair[1]).flatten().norm(p=1 if last.law == "laplace" else 2).item())
    return most


def charged(stage: Own) -> float:
    z = torch.zeros(SHAPE)
    receipt = stage.apply(z, torch.zeros(2, 4), generator())[1]
    return receipt.clip.sensitivity("replace_one", "l1" if stage.law == "laplace" else "l2")  # type: ignore[no-any-return]


def accepted(stages: tuple[Defense, ...]) -> bool:
    if len(stages) == 1:
        return not contradiction(stages)
    try:
        Chain(stages=stages)
    except ValueError:
        return False
    return True


def campaign(seeds: range) -> tuple[int, int, int]:
    """Accepted above their charge, honest stages refused, and accepted ones."""
    above = alarms = total = 0
    for seed in seeds:
        own = draw(seed)
        stages: tuple[Defense, ...] = (own,)
        kind = seed % 4
        if kind == 1:
            stages = (BatchShuffle(keep=(seed % 5) / 5), own)
        elif kind == 2:
            stages = (PatchShuffle(), own)
        elif kind == 3:
            stages = (own, Masking())
        taken = accepted(stages)
        before = stages if kind != 3 else stages[:1]
        truth = moved(before, seed)
        false = truth > charged(own) * (1 + 2e-3) or own.noise not in ("right",)
        above += taken and false
        total += taken
        honest = (
            kind == 0
            and own.noise == "right"
            and own.claimed >= own.size
            and not set(own.maps) & set(ACROSS)
            and own.bound != "batch ball"
            and own.declared != ("maps",)
        )
        alarms += honest and not taken
    return above, alarms, total


class FewRows(Own):
    """It adds its noise to all rows of a message but one in the middle of it."""

    def apply(self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None) -> Any:
        release, receipt = super().apply(smashed, labels, generator)
        made = release.smashed.clone()
        if made.shape[1] > 20:
            made[:, 20] = self.quiet(smashed)[:, 20]
        return replace(release, smashed=made), receipt


@pytest.mark.slow
def test_noise_is_measured_in_every_row_of_a_batch_of_the_runs_size() -> None:
    assert refuted(FewRows(), (24,), IMAGE) == ""
    assert "row 20 got 0.000 times the declared Gaussian noise" in refuted(FewRows(), (24,), IMAGE, 50)
    assert refuted(Own(law="laplace", bound="clamp"), (24,), IMAGE, 50) == ""


@pytest.mark.slow
def test_no_random_own_stage_is_accepted_above_its_charge() -> None:
    above, alarms, total = campaign(range(32))
    assert (above, alarms) == (0, 0)
    assert total > 2


@pytest.mark.slow
def test_none_of_a_thousand() -> None:
    above, alarms, total = campaign(range(1000, 2000))
    assert (above, alarms) == (0, 0)
    assert total > 150


@dataclass(frozen=True, kw_only=True)
class OwnShuffle(Defense):
    """Permutes tokens; says nothing of the batch unless it is told to."""

    name: ClassVar[str] = "own_shuffle"
    effects: ClassVar[Any] = frozenset({"permutes"})
    fault: str = ""

    def apply(self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None) -> Any:
        release, receipt = PatchShuffle().apply(smashed, labels, generator)
        if self.fault == "another order":
            return Release(smashed=smashed.flip(2), labels=labels), receipt
        if self.fault == "always the same order":
            return PatchShuffle().apply(smashed, labels, Generator().manual_seed(1))
        if self.fault == "the last tokens stay":
            source = torch.arange(receipt.source.numel()).view_as(receipt.source).clone()
            half = smashed.shape[2] // 2
            source[..., :half] = source[..., :half].gather(
                2, torch.rand(*source.shape[:2], half, generator=generator).argsort(2)
            )
            return Release(smashed=smashed.flatten(0, 2)[source], labels=labels), Permuted(source=source)
        if self.fault == "no token leaves its image":
            return release, replace(receipt, kept=1)
        return release, receipt


class DeclaredShuffle(OwnShuffle):
    over_batch: ClassVar[bool] = False


def test_equal_tokens_give_no_further_orders_where_the_receipt_leaves_the_tokens_out() -> None:
    class Silent(PatchShuffle):
        def apply(self, *given: Any) -> Any:
            release, receipt = super().apply(*given)
            return release, replace(receipt, tokens=None)

    tokens = torch.rand(1, 2, 16, 4, generator=generator())
    tokens[0, 1, 4:] = 0.0  # 12 black patches
    given = Release(smashed=tokens, labels=torch.zeros(1, 2))
    usual, silent = (run((stage,), given, generator())[1][0].receipt for stage in (PatchShuffle(), Silent()))
    assert usual.certificate().quantities == silent.certificate().quantities
    assert silent.log10_alike == pytest.approx(usual.log10_alike)
    assert silent.log10_alike > 8


def test_a_shuffle_that_allows_position_embeddings_hides_no_order() -> None:
    class Placed(PatchShuffle):
        position_embedding: ClassVar[bool] = True  # type: ignore[misc]

        def apply(self, *given: Any) -> Any:
            release, receipt = super().apply(*given)
            return release, replace(receipt, hides_order=True)

    images, labels = torch.rand(1, 2, 1, 8, 8, generator=generator()), torch.zeros(1, 2, dtype=torch.int64)
    made = [built(stage)[0].release(images, labels, generator()).receipt for stage in (PatchShuffle(), Placed())]
    assert [receipt.certificate().kind for receipt in made] == ["permutation_count", "nothing"]
    assert "carries the position embedding" in made[1].certificate().statement


def test_what_a_shuffle_leaves_open_counts_as_unsafe() -> None:
    by_image = GaussianNoise(clip_by="image")
    with pytest.raises(ValueError, match="own_shuffle may spread one image over its batch, so gaussian_noise"):
        Chain(stages=(OwnShuffle(), by_image))
    for shuffle in (DeclaredShuffle(), PatchShuffle()):
        assert Chain(stages=(shuffle, by_image)).name == f"{shuffle.name}+gaussian_noise"
    assert Chain(stages=(OwnShuffle(), GaussianNoise())).name == "own_shuffle+gaussian_noise"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("another order", "is not the one that it applied"),
        ("always the same order", "does not draw all orders equally often"),
        ("the last tokens stay", "does not draw all orders equally often"),
        ("no token leaves its image", "leaves 1.000 of the tokens in their own image"),
    ],
)
def test_a_shuffle_that_is_not_the_one_on_its_receipt(fault: str, said: str) -> None:
    assert contradiction((DeclaredShuffle(),)) == ""
    assert said in contradiction((DeclaredShuffle(fault=fault),))


@pytest.mark.slow
def test_norms_of_rows_behind_a_batch_shuffle_are_refused_as_the_built_in_ones_are() -> None:
    for own in (Own(), Own(declared=("noises", "clips")), Own(declared=("noises", "maps"), maps=("unit",))):
        assert contradiction((own,)) == ""  # alone its receipt is honest
        with pytest.raises(ValueError, match="own would bound or change a row and not a record"):
            Chain(stages=(BatchShuffle(keep=0.0), own))
        assert "and a change of" in exceeds_charge((BatchShuffle(keep=0.0), own))


def test_a_map_that_is_declared_to_be_none_is_measured_behind_a_shuffle() -> None:
    with pytest.raises(ValueError, match="own behind batch_shuffle is charged for a change of at most"):
        Chain(stages=(BatchShuffle(keep=0.0), Own(maps=("unit",), bound="clamp", size=0.01, claimed=0.01)))


@pytest.mark.slow(but=5)
@pytest.mark.parametrize(
    "kind",
    [
        k
        for k in (
            "half",
            "shared by coordinates",
            "shared by rows",
            "on half of them",
            "uniform",
            "of the data",
            "none",
        )
    ],
)
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_noise_that_is_not_the_one_on_its_receipt(kind: str, law: str) -> None:
    own = Own(bound="clamp", law=law)
    assert contradiction((own,)) == ""
    assert "the noise of own is not what its receipt says" in contradiction((replace(own, noise=kind),))


def test_honest_noise_raises_no_alarm() -> None:
    for seed in range(150):
        dice = np.random.default_rng(seed)
        assert unlike(dice.normal(scale=0.3, size=(1000, 24)) / 0.3, "gaussian") == ""
        assert unlike(dice.laplace(scale=5.0, size=(1000, 24)) / 5.0, "laplace") == ""


class Ahead(Own):
    """Its options are a receipt's."""

    change: ClassVar[Any] = staticmethod(lambda release, receipt: (release, receipt))

    def apply(self, *given: Any, **named: Any) -> Any:
        return type(self).change(*super().apply(*given, **named))


class Sure(Noised):
    """A receipt with a certificate of its own."""


def other(**fields: Any) -> Any:
    return staticmethod(lambda release, receipt: (release, replace(receipt, **fields)))


def weighed(release: Release, receipt: Noised) -> Any:
    seen = (release.smashed.flatten(2).mean(2) > 0).float().unsqueeze(1)
    return replace(release, weights=seen), receipt


@pytest.mark.parametrize(
    ("change", "fields", "said"),
    [
        (other(mixing=Mixup(ratio=FixedRatio.equal(2))), {}, "credits mixing with ratios that it draws itself"),
        (
            staticmethod(lambda release, receipt: (release, Sure(**vars(receipt)))),
            {},
            "makes its own certificate",
        ),
        (other(), {"place": "server"}, "noise that a server adds to what it holds proves nothing"),
        (staticmethod(weighed), {"sigma": 1e-9}, "publishes weights that depend on the data"),
        (other(), {"declared": ("maps",)}, "add 'noises', by which chains are checked"),
        (other(), {"maps": ("centered",)}, "replacing one record changes other rows"),
        (other(), {"maps": ("centered",), "declared": None}, "and a change of"),
    ],
)
def test_receipts_that_their_releases_refute(change: Any, fields: dict[str, Any], said: str) -> None:
    class Lie(Ahead):
        place = fields.get("place", "client")

    Lie.change = change
    assert said in contradiction((Lie(**{k: v for k, v in fields.items() if k != "place"}),))


class Answers(load("privkit.defenses.grad_perturb:GradPerturb")):  # type: ignore[misc]
    """Noise on gradients, with a fault."""

    fault: ClassVar[str] = ""

    def on_gradient(self, gradient: Tensor, generator: Generator) -> Tensor:
        if self.fault == "unbounded":
            return gradient + self.noise * torch.randn(gradient.shape, generator=generator)
        if self.fault == "quiet":
            return super().on_gradient(gradient, generator) / 3  # type: ignore[no-any-return]
        return super().on_gradient(gradient, generator)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("fault", "said"), [("", ""), ("unbounded", "gradients that move by at most 2"), ("quiet", "the noise of")]
)
def test_noise_on_gradients_is_measured_too(fault: str, said: str) -> None:
    lie = type("Lie", (Answers,), {"fault": fault, "__module__": __name__})(clip=1.0, noise=0.5)
    found = contradiction((lie,))
    assert said in found
    assert bool(found) == bool(fault)


def test_a_stage_that_takes_no_usual_shape_is_measured_on_its_own() -> None:
    class Odd(Own):
        def apply(self, smashed: Tensor, *given: Any, **named: Any) -> Any:
            if smashed.shape[2:] != (7, 3):
                raise ValueError("seven tokens of three")
            return super().apply(smashed, *given, **named)

    assert contradiction((Odd(),), (7, 3)) == ""
    assert "none" not in contradiction((Odd(noise="none"),), (7, 3))[:4]
    assert "is not what its receipt says" in contradiction((Odd(noise="none"),), (7, 3))
    assert "so none of its claims can be measured" in contradiction((Odd(),), (8, 3))
