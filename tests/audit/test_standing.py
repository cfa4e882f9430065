"""What a run measures before it repeats a claim: proven, declared, or contradicted."""

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.audit.standing import (
    declaration_check,
    held_against_its_releases,
    remarks_on_network,
    rests_on_rows,
    rows_that_meet,
)
from privkit.defenses.base import Defense, Release, ReleaseCount
from privkit.defenses.chain import Chain
from privkit.defenses.clip import Clip
from privkit.defenses.denoising import Scaling
from privkit.defenses.dp_cutmixsl import DpCutMixSl
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.domains.images.domain import Images
from privkit.laws.models import fitting
from privkit.models import MODELS
from privkit.models.imported import FromFunction
from privkit.parts.registry import parse
from privkit.shared.certificate import Certificate
from privkit.training.clients import Clients
from tests.defenses.chains import Patches
from tests.defenses.made_stages import Own
from tests.models.test_records import CARS, WORDS
from tests.small import generator

LARGE = ("vit_base", "patch_splitnn", "albert", "resnet50")
RECORDS = torch.rand(12, 1, 8, 8, generator=generator())


class Raw(GaussianNoise):
    """It returns the receipt of a noise that it does not add."""

    name: ClassVar[str] = "raw"

    def apply(self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None) -> Any:
        return Release(smashed=smashed, labels=labels), super().apply(smashed, labels, generator)[1]


class OwnScaling(Scaling):
    """A server's own stage."""


class Meeting(Patches):
    """A lower segment in which records of a batch meet."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images - images.mean(0))


class Led(Patches):
    """In batches of more than 8, each row also holds the first record."""

    def forward(self, images: Tensor) -> Tensor:
        made = super().forward(images)
        return made + 3 * made[:1] if len(made) > 8 else made


class Distant(Patches):
    """Each row also holds the record four rows before it, and one number hides the size of all others."""

    def forward(self, images: Tensor) -> Tensor:
        made = super().forward(images)
        made = made + made.roll(4, 0)
        made[:, 0, 0] = 1e7
        return made


def claimed(
    defense: Defense,
    lower: nn.Module | None = None,
    records: Tensor = RECORDS,
    batch: int = 4,
    own_network: bool = False,
    **often: Any,
) -> tuple[Certificate, Certificate]:
    """A run's certificate before and after it was held against its releases."""
    edge = Clients.build(lower or Patches(), defense, Images(shape=(1, 8, 8)), classes=3, seed=0).eval()
    receipt = edge.release(RECORDS[None, :4], torch.zeros(1, 4, dtype=torch.int64), generator()).receipt
    before = receipt.certificate(ReleaseCount(**often))
    return before, held_against_its_releases(before, edge, records, batch=batch, own_network=own_network)


@pytest.mark.parametrize(
    "defense", [GaussianNoise(sigma=30.0), PatchShuffle(), Chain(stages=(Clip(), GaussianNoise()))]
)
def test_privkits_own_stages_are_proven_as_before(defense: Defense) -> None:
    before, after = claimed(defense)
    assert after == before
    assert after.standing == "proven"
    assert after.kind != "nothing"


@pytest.mark.parametrize("defense", [Own(sigma=30.0), Chain(stages=(Own(sigma=30.0), Scaling()))])
def test_an_own_stage_is_declared_with_what_was_measured(defense: Defense) -> None:
    before, after = claimed(defense)
    assert after == before.declared(after.assumptions[-1])
    assert after.standing == "declared"
    assert after.epsilon == before.epsilon < 1
    assert "what own did is declared by its receipt" in after.assumptions[-1]


def test_what_a_server_does_to_a_release_leaves_it_proven() -> None:
    assert claimed(Chain(stages=(GaussianNoise(), OwnScaling())))[1].standing == "proven"


@pytest.mark.parametrize(
    ("defense", "said"),
    [
        (Raw(sigma=60.0), "the noise of raw is not what its receipt says"),
        (Own(maps=("centered",)), "replacing one record changes other rows"),
        (Own(size=1.0, claimed=0.5), "is charged for a change of at most 1 "),
    ],
)
def test_a_receipt_that_its_release_contradicts_proves_nothing(defense: Defense, said: str) -> None:
    before, after = claimed(defense)
    assert before.kind == "differential_privacy"
    assert (after.kind, after.epsilon, after.lower) == ("nothing", float("inf"), None)
    assert said in after.statement
    (check,) = declaration_check(after)
    assert (check.passed, check.decisive) == (False, True)
    assert said in check.detail


def test_only_what_is_declared_has_a_check() -> None:
    assert declaration_check(claimed(GaussianNoise())[1]) == declaration_check(None) == ()
    (check,) = declaration_check(claimed(Own(sigma=30.0))[1])
    assert (check.name, check.passed) == ("declaration_stands", True)


def test_a_lower_segment_in_which_records_meet_has_no_epsilon_of_a_record() -> None:
    before, after = claimed(GaussianNoise(), Meeting())
    assert before.kind == "differential_privacy"
    assert "carries records into 4 other rows of a batch of 4" in after.statement
    of_client = claimed(GaussianNoise(), Meeting(), lower_model="trained", batch_size=4)[1]
    assert (of_client.unit, of_client.standing) == ("client", "proven")


@pytest.mark.parametrize(
    ("lower", "batch", "met"),
    [
        (Led(), 8, ""),
        (Led(), 9, "into 8 other rows"),
        (Led(), 50, "into 49 other rows"),
        (Distant(), 8, "into 8"),
    ],
)
def test_records_must_be_apart_in_batches_of_the_trainings_size(lower: nn.Module, batch: int, met: str) -> None:
    after = claimed(GaussianNoise(), lower, batch=batch)[1]
    assert met in after.statement
    assert (after.kind == "nothing") == bool(met)


@pytest.mark.parametrize("records", [RECORDS[:1], RECORDS[:1].repeat(9, 1, 1, 1)])
def test_what_too_few_records_leave_open_is_no_claim(records: Tensor) -> None:
    after = claimed(GaussianNoise(), Meeting(), records)[1]
    assert after.kind == "nothing"
    assert "too few different records to tell" in after.statement
    assert claimed(GaussianNoise(), Meeting(), RECORDS[:3])[1].kind == "nothing"
    assert claimed(GaussianNoise(), records=RECORDS[:2])[1].standing == "proven"
    assert claimed(GaussianNoise(), records=records, batch=1)[1].standing == "proven"


def test_a_claim_for_one_record_that_rests_on_a_users_own_network_is_declared() -> None:
    before, after = claimed(GaussianNoise(), own_network=True, batch=50)
    assert after.standing == "declared"
    assert (after.kind, after.epsilon) == (before.kind, before.epsilon)
    assert "replaced records of a batch of 50, and no other row changed" in after.assumptions[-1]
    orders = claimed(PatchShuffle(), own_network=True)[1]
    assert (orders.kind, orders.standing) == ("permutation_count", "declared")
    of_client = claimed(GaussianNoise(), own_network=True, lower_model="trained", batch_size=4)[1]
    assert (of_client.unit, of_client.standing) == ("client", "proven")


def test_noise_on_the_records_themselves_hides_them_whatever_network_follows() -> None:
    claim = claimed(GaussianNoise())[0]
    noise: dict[str, Any] = {"group": 1, "sigma": 1.0, "sigma_labels": None, "bound": 1.0}
    assert rests_on_rows(claim, DpCutMixSl(**noise))
    assert not rests_on_rows(claim, DpCutMixSl(level="input", **noise))


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Large networks take long, and ALBERT is a package of its own."""
    return [pytest.mark.slow] * (name in LARGE) + [pytest.mark.needs("albert")] * (name == "albert")


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in sorted({*MODELS} - {"hf"})])
def test_privkits_own_networks_keep_records_apart(name: str) -> None:
    spec: Any = parse("models", name).spec
    domain: Any = {"tokens": WORDS, "tables": CARS}.get(spec.domain) or fitting(spec)
    lower = spec.build(domain, 2, positions=True, seed=0).lower
    edge = Clients.build(lower, Clip(), domain, classes=2, seed=0)
    assert rows_that_meet(edge, domain.random(5, generator()), 5) == 0


class Tossed(Patches):
    """The records of a batch in a random order."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images)[torch.randperm(len(images))]


@pytest.mark.parametrize(
    ("lower", "said"),
    [(Patches, ""), (Tossed, "draws random numbers and moves or mixes the records of a batch; so does the "),
     (Meeting, "the lower segment of mine:Net moves or mixes the records of a batch; so does the undefended")],
)  # fmt: skip
def test_a_segment_that_defends_by_itself_is_named(lower: Any, said: str) -> None:
    model = SimpleNamespace(label="mine:Net", spec=FromFunction(function="mine:Net"))
    config: Any = SimpleNamespace(model=model, training=SimpleNamespace(batch_size=4))
    edge = Clients.build(lower(), Clip(), Images(shape=(1, 8, 8)), classes=2, seed=0)
    told = remarks_on_network(config, edge, RECORDS)
    assert said in told[0] if said else told == []
    config.model.spec = parse("models", "vit_micro").spec
    assert remarks_on_network(config, edge, RECORDS) == []
