"""A user's own stage is charged by its receipt and its effects, and refused where its releases contradict them."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from privkit.accountants.spec.mixing import FixedRatio
from privkit.accountants.spec.parts import UNMIXED, Mixup, Noise
from privkit.accountants.spec.sensitivity import Ball, Clamp
from privkit.defenses import noise
from privkit.defenses.base import ONE_RELEASE, Defense, Release
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.chain import Chain
from privkit.defenses.charge import Noised
from privkit.defenses.compile import StageReceipt, compiled
from privkit.defenses.denoising import Masking
from privkit.defenses.measured import contradiction, exceeds_charge
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.own_receipts import IMAGE, refuted
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.defenses.receipts import Nothing, Permuted
from privkit.defenses.residual import unlike
from privkit.parts.registry import load, parse
from tests.defenses.made_stages import ACROSS, Own, draw
from tests.small import generator

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


def test_noise_is_measured_in_every_row_of_a_batch_of_the_runs_size() -> None:
    assert refuted(FewRows(), (24,), IMAGE) == ""
    assert "row 20 got 0.000 times the declared Gaussian noise" in refuted(FewRows(), (24,), IMAGE, 50)
    assert refuted(Own(law="laplace", bound="clamp"), (24,), IMAGE, 50) == ""


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


def test_what_a_shuffle_leaves_open_counts_as_unsafe() -> None:
    by_image = GaussianNoise(clip_by="image")
    with pytest.raises(ValueError, match="own_shuffle may spread one image over its batch, so gaussian_noise"):
        Chain(stages=(OwnShuffle(), by_image))
    assert Chain(stages=(DeclaredShuffle(), by_image)).name == "own_shuffle+gaussian_noise"
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


def test_norms_of_rows_behind_a_batch_shuffle_are_refused_as_the_built_in_ones_are() -> None:
    for own in (Own(), Own(declared=("noises", "clips")), Own(declared=("noises", "maps"), maps=("unit",))):
        assert contradiction((own,)) == ""  # alone its receipt is honest
        with pytest.raises(ValueError, match="own would bound or change a row and not a record"):
            Chain(stages=(BatchShuffle(keep=0.0), own))
        assert "and a change of" in exceeds_charge((BatchShuffle(keep=0.0), own))


def test_a_map_that_is_declared_to_be_none_is_measured_behind_a_shuffle() -> None:
    with pytest.raises(ValueError, match="own behind batch_shuffle is charged for a change of at most"):
        Chain(stages=(BatchShuffle(keep=0.0), Own(maps=("unit",), bound="clamp", size=0.01, claimed=0.01)))


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
        assert unlike(dice.normal(scale=0.3, size=(1000, 24)), "gaussian", 0.3) == ""
        assert unlike(dice.laplace(scale=5.0, size=(1000, 24)), "laplace", 5.0) == ""


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
        (other(mixing=Mixup(ratio=FixedRatio.equal(2))), {}, "credits mixing whose ratios it draws by itself"),
        (
            staticmethod(lambda release, receipt: (release, Sure(**vars(receipt)))),
            {},
            "makes its certificate by itself",
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
    assert "so that no claim of it can be measured" in contradiction((Odd(),), (8, 3))


def stage(made: Any, **fields: Any) -> Defense:
    """A stage whose release and receipt are made by a function of (smashed, labels, generator)."""

    class Made(Defense):
        name: ClassVar[str] = "made"
        effects: ClassVar[Any] = fields.get("effects", frozenset({"noises"}))
        over_batch: ClassVar[bool] = False
        level = fields.get("level", "smashed")

        def apply(self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None) -> Any:
            return made(smashed, labels, generator)

    return Made()


def noisy(z: Tensor, generator: Generator, receipt: Any = None, added: Tensor | None = None, **fields: Any) -> Any:
    """A ball of radius 1 with Gaussian noise of scale 1, or what is given instead."""
    drawn = torch.randn(z.shape, generator=generator, dtype=z.dtype) if added is None else added
    receipt = receipt or Noised(clip=Ball(radius=1.0), noise=Noise(smashed=1.0), mixing=UNMIXED)
    return Release(smashed=z + drawn, labels=fields.get("labels", torch.zeros(z.shape[:2])), weights=None), receipt


def drawn(z: Tensor, generator: Generator, *shape: int) -> Tensor:
    return torch.randn(shape or z.shape, generator=generator, dtype=z.dtype)


def ball(z: Tensor) -> Tensor:
    return noise.shrink(z, 1.0)


def zero_sum(z: Tensor, g: Generator) -> Tensor:
    n = drawn(z, g)
    return (n - n.mean(1, keepdim=True)) * (z.shape[1] / (z.shape[1] - 1)) ** 0.5


def prototypes(z: Tensor, y: Tensor) -> Tensor:
    same = (y.unsqueeze(2) == y.unsqueeze(1)).to(z.dtype)
    return torch.einsum("mij,mj...->mi...", same, z) / 1.5


LAPLACE = Noised(
    clip=Clamp(low=-1 / 64, high=1 / 64, dimensions=64), noise=Noise(law="laplace", smashed=1.0), mixing=UNMIXED
)
MISTAKES: dict[str, tuple[Any, str]] = {
    "noise that all records share": (
        lambda z, y, g: noisy(ball(z), g, added=drawn(z, g, len(z), 1, *z.shape[2:]).expand_as(z), labels=y),
        "quietest direction",
    ),
    "noise that sums to zero over the batch": (
        lambda z, y, g: noisy(ball(z), g, added=zero_sum(z, g), labels=y),
        "quietest direction",
    ),
    "noise of opposite signs": (
        lambda z, y, g: noisy(ball(z), g, added=torch.cat([h := drawn(z[:, :2], g), -h], 1)[:, : z.shape[1]], labels=y),
        "quietest direction",
    ),
    "clamped noise": (
        lambda z, y, g: noisy(ball(z), g, added=drawn(z, g).clamp(-3, 3), labels=y),
        "the noise of made is not what its receipt says",
    ),
    "rounded noise": (lambda z, y, g: noisy(ball(z), g, added=(100 * drawn(z, g)).round() / 100, labels=y), "repeat"),
    "no noise on some records": (
        lambda z, y, g: noisy(
            ball(z), g, added=drawn(z, g) * (torch.rand(*z.shape[:2], 1, 1, generator=g) > 0.05), labels=y
        ),
        "the noise of made is not what its receipt says",
    ),
    "noise in evaluation alone": (
        lambda z, y, g: noisy(ball(z), g, added=drawn(z, g) * (not z.requires_grad), labels=y),
        "the noise of made is not what its receipt says",
    ),
    "the last record as reference": (
        lambda z, y, g: noisy(ball(z) - ball(z)[:, -1:], g, labels=y),
        "changes other rows",
    ),
    "labels made of the data": (
        lambda z, y, g: noisy(ball(z), g, labels=(z.flatten(2).sum(2) > 0).long()),
        "makes labels from the smashed data",
    ),
    "a Laplace charge that is true of the sum alone": (
        lambda z, y, g: noisy(
            z / z.flatten(2).abs().sum(2).clamp_min(1).view(*z.shape[:2], *[1] * (z.ndim - 2)),
            g,
            LAPLACE,
            noise.laplace(0 * z, 1.0, g),
            labels=y,
        ),
        "of one number of at most 0.03125",
    ),
    "a chain inside": (
        lambda z, y, g: (
            replace(
                (made := Chain(stages=(parse("defenses", "clip").spec, GaussianNoise())).apply(z, y, g))[0],
                smashed=made[0].smashed + z,
            ),
            made[1],
        ),
        "makes its certificate by itself (ChainReceipt)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_plausible_mistakes_are_found(mistake: str) -> None:
    made, said = MISTAKES[mistake]
    assert said in contradiction((stage(made),))


@pytest.mark.parametrize("effects", [frozenset({"noises"}), None])
def test_class_means_are_found_where_labels_meet(effects: Any) -> None:
    own = stage(lambda z, y, g: noisy(prototypes(ball(z), y), g, labels=y), effects=effects)
    assert contradiction((own,)) != ""


def test_a_row_that_sums_a_clients_records_is_charged_too_little_for_a_client() -> None:
    """One record moves it by 2, and all records of a message by 2·B, where a client is charged for 2·√B."""

    def summed(z: Tensor, y: Tensor, g: Generator) -> Any:
        total = torch.cat([ball(z).sum(1, keepdim=True), 0 * z[:, 1:]], 1)
        return noisy(total, g, labels=y)

    assert "is charged for a change of at most 2 when one record is replaced" in contradiction(
        (stage(summed, effects=None),)
    )


@pytest.mark.parametrize(
    "order",
    [
        lambda g: (torch.arange(16) + torch.randint(16, (1,), generator=g)) % 16,
        lambda g: (torch.randperm(4, generator=g).view(4, 1) * 4 + torch.randperm(4, generator=g)).flatten(),
    ],
    ids=["rolled", "rows and columns"],
)
def test_a_shuffle_of_few_orders_is_found(order: Any) -> None:
    def few(z: Tensor, y: Tensor, g: Generator) -> Any:
        m, b, t, _ = z.shape
        own = torch.stack([order(g) for _ in range(m * b)]) + t * torch.arange(m * b).unsqueeze(1)
        source = own.view(m, b, t)
        return Release(smashed=z.flatten(0, 2)[source], labels=y), Permuted(source=source)

    assert "all orders equally often" in contradiction((stage(few, effects=frozenset({"permutes"})),))


def test_a_map_that_marks_places_takes_the_count_of_a_later_shuffle_away() -> None:
    def marked(z: Tensor, y: Tensor, g: Generator) -> Any:
        return Release(smashed=z + torch.arange(z.shape[2]).view(-1, 1), labels=y), Nothing(reason="a test")

    with pytest.raises(ValueError, match="treats the places of tokens differently"):
        Chain(stages=(stage(marked, effects=frozenset({"maps"})), PatchShuffle()))


def test_a_bound_of_images_does_not_hold_behind_the_lower_segment() -> None:
    def clipped(z: Tensor, y: Tensor, g: Generator) -> Any:
        clip = Clamp(low=-0.1, high=0.1, dimensions=z[0, 0].numel())
        return Release(smashed=z.clamp(-0.1, 0.1), labels=y), Nothing(reason="a test", bound=clip)

    images = stage(clipped, effects=frozenset({"clips"}), level="input")
    steps = (
        StageReceipt(stage=images, receipt=images.apply(torch.rand(1, 2, 3, 8, 8), torch.zeros(1, 2), generator())[1]),
    )
    last = GaussianNoise(clip=None)
    receipt = last.apply(torch.rand(1, 2, 16, 4), torch.zeros(1, 2), generator())[1]
    assert compiled((*steps, StageReceipt(stage=last, receipt=receipt)), ONE_RELEASE).kind == "nothing"


@pytest.mark.parametrize("allowed", [lambda z: bool((z.abs() <= 1).all()), lambda z: bool((z >= 0).all())])
def test_a_stage_that_checks_its_data_is_measured_on_those_that_it_takes(allowed: Any) -> None:
    def checked(z: Tensor, y: Tensor, g: Generator) -> Any:
        if not allowed(z):
            raise ValueError("cut behind a bounded layer")
        clip = Clamp(low=-1, high=1, dimensions=z[0, 0].numel())
        return noisy(z.clamp(-1, 1), g, Noised(clip=clip, noise=Noise(smashed=1.0), mixing=UNMIXED), labels=y)

    assert contradiction((stage(checked),)) == ""
