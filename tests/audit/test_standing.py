"""What a run measures before it repeats a claim: proven, declared, or contradicted."""

from typing import Any, ClassVar

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.audit.standing import declaration_check, held_against_its_releases
from privkit.defenses.base import Defense, Release, ReleaseCount
from privkit.defenses.chain import Chain
from privkit.defenses.clip import Clip
from privkit.defenses.denoising import Scaling
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.domains.images.domain import Images
from privkit.shared.certificate import Certificate
from privkit.training.clients import Clients
from tests.defenses.chains import Patches
from tests.defenses.made_stages import Own
from tests.small import generator

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


def claimed(defense: Defense, lower: nn.Module | None = None, **often: Any) -> tuple[Certificate, Certificate]:
    """A run's certificate before and after it was held against its releases."""
    edge = Clients.build(lower or Patches(), defense, Images(shape=(1, 8, 8)), classes=3, seed=0).eval()
    receipt = edge.release(RECORDS[None, :4], torch.zeros(1, 4, dtype=torch.int64), generator()).receipt
    before = receipt.certificate(ReleaseCount(**often))
    return before, held_against_its_releases(before, edge, RECORDS)


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
    assert "carries one record into 3 other rows" in after.statement
    of_client = claimed(GaussianNoise(), Meeting(), lower_model="trained", batch_size=4)[1]
    assert (of_client.unit, of_client.standing) == ("client", "proven")
