"""What a chain sends, and who holds which part of it."""

import pytest
import torch
from torch.nn.functional import one_hot

from privkit.defenses import charge
from privkit.defenses.split_parts import SplitParts, held_parts
from privkit.errors import UsageError
from privkit.settings.resolve import resolve
from privkit.wire.channel import answer_of, holds_all, shared_lower
from tests.defenses.chains import CLASSES, DEFENSES, RUN, TOKENS, clients_of
from tests.small import generator

pytestmark = pytest.mark.usefixtures("closed_forms")


def test_the_wire_shows_what_arrives_and_not_what_the_server_makes_of_it() -> None:
    images, labels = torch.rand(2, 4, 1, 8, 8, generator=generator()), torch.zeros(2, 4, dtype=torch.int64)
    noisy = clients_of("gaussian_noise").release(images, labels, generator(1))
    chained = clients_of("gaussian_noise", "scaling:factor=.5").release(images, labels, generator(1))
    assert torch.equal(chained.arrived.smashed, noisy.release.smashed)
    assert torch.equal(chained.release.smashed, 0.5 * noisy.release.smashed)
    edge = clients_of("dp_sl", "mixup@mixer", "scaling")
    sent = edge.release(images, labels, generator(1))
    seen = answer_of(sent, 0, edge)
    assert seen.view.smashed.shape == (4, 16, 4)
    assert seen.view.mixed == 2
    assert seen.view.weights is not None
    assert torch.equal(sent.release.smashed.flatten(0, 1), 0.2 * seen.view.smashed)
    alone = clients_of("dp_mixsl:site=client@server", "scaling").release(images, labels, generator(1))
    assert alone.arrived.smashed.shape == alone.smashed.shape
    assert (alone.groups.shape, alone.arrived_groups.shape) == ((1, 2), (2, 1))


@pytest.mark.parametrize("name", ["dp_mixsl:group=3,site=client", "dp_cutmixsl:group=3"])
def test_a_server_that_mixes_gets_the_labels_with_the_noise_of_their_clients(name: str) -> None:
    """Its claim covers labels, so that none may arrive as it is; without noise on labels the claim says so."""
    images, labels = torch.rand(4, 5, 1, 8, 8, generator=generator()), torch.arange(5).expand(4, 5) % CLASSES
    for chained in ((), ("scaling",)):
        sent = clients_of(f"{name},sigma_labels=.01@server", *chained, clients=4).release(images, labels, generator(1))
        certificate = sent.receipt.certificate(RUN)
        assert certificate.kind == "differential_privacy"
        assert charge.GIVEN_LABELS not in certificate.assumptions
        arrived = sent.arrived.labels
        assert arrived.shape == (4, 5, CLASSES)
        apart = (arrived - one_hot(labels, CLASSES)).abs()
        assert 0 < apart.min() <= apart.max() < 0.1
    open_ones = clients_of(f"{name},sigma_labels=none@server", clients=4).release(images, labels, generator(1))
    assert charge.GIVEN_LABELS in open_ones.receipt.certificate(RUN).assumptions
    assert torch.equal(open_ones.arrived.labels, labels)


def test_images_and_smashed_data_are_defended_in_one_chain() -> None:
    images, labels = torch.rand(2, 4, 1, 8, 8, generator=generator()), torch.zeros(2, 4, dtype=torch.int64)
    edge = clients_of("blur:factor=2", "nopeek", "gaussian_noise:sigma=2.0", "patch_shuffle")
    sent = edge.release(images, labels, generator(1))
    assert sent.penalty is not None
    certificate = sent.receipt.certificate(RUN)
    assert certificate.kind == "differential_privacy"
    assert {"height", "log10_permutations"} <= certificate.quantities.keys()
    known = edge.client(0)(images[0])
    assert known.shape == (4, 16, 4)
    assert known.abs().max() <= 1
    with pytest.raises(ValueError, match="run it through Clients"):
        edge.defense.apply(images, labels, generator())


@pytest.mark.parametrize("name", [d.name for d in DEFENSES if d.level != "input" and d.name != "blur"])
def test_every_stage_may_follow_one_on_images(name: str) -> None:
    images, labels = torch.rand(2, 4, 1, 8, 8, generator=generator()), torch.zeros(2, 4, dtype=torch.int64)
    edge = clients_of("blur:factor=2", name)
    sent = edge.release(images, labels, generator(1))
    blurred = clients_of("blur:factor=2").release(images, labels, generator(1)).smashed
    if edge.defense.lower_filter((TOKENS, 4), 0) is None:
        assert torch.equal(sent.smashed, blurred)
    alone = clients_of(name).release(images, labels, generator(1)).receipt.certificate(RUN)
    found = sent.receipt.certificate(RUN)
    assert (found.kind, found.epsilon, found.covers) == (alone.kind, alone.epsilon, alone.covers)


def test_masks_and_ratios_multiply_to_the_weights_of_a_release() -> None:
    images, labels = torch.rand(2, 4, 1, 8, 8, generator=generator()), torch.zeros(2, 4, dtype=torch.int64)
    edge = clients_of("random_cutout", "mixup")
    sent = edge.release(images, labels, generator(1))
    weights = sent.release.weights
    assert weights is not None
    assert weights.shape == (1, 2, TOKENS)
    whole = edge.lowers(images)[sent.groups[0]]
    torch.testing.assert_close((weights[0, :, None, :, None] * whole).sum(0), sent.release.smashed[0])


def test_test_images_pass_the_stages_that_are_meant_for_them() -> None:
    images, labels = torch.rand(2, 4, 1, 8, 8, generator=generator()), torch.zeros(2, 4, dtype=torch.int64)
    edge = clients_of("clip:bound=.1", "mixup", "scaling:factor=.5")
    torch.testing.assert_close(edge.infer(images, labels, generator()), 0.5 * edge.lowers(images).clamp(-0.1, 0.1))


def test_a_view_has_the_parts_that_its_adversary_holds() -> None:
    images, labels = torch.rand(2, 4, 1, 8, 8, generator=generator()), torch.zeros(2, 4, dtype=torch.int64)
    edge = clients_of("gaussian_noise", "split_parts:parts=3", "scaling:factor=.5")
    sent = edge.release(images, labels, generator(1))
    whole = answer_of(sent, 0, edge).view
    assert whole.parts == ("part_1", "part_2", "part_3")
    edge.held = ("part_3", "part_1")
    view = answer_of(sent, 0, edge).view
    assert view.parts == ("part_1", "part_3")
    assert torch.equal(view.smashed, whole.smashed[..., [0, 1, 3]])
    known = shared_lower(edge)
    assert known is not None
    assert known(images[0]).shape == (4, 16, 3)
    assert not holds_all(edge)


def test_a_holder_of_places_sees_zeros_in_the_others() -> None:
    images, labels = torch.rand(2, 4, 1, 8, 8, generator=generator()), torch.zeros(2, 4, dtype=torch.int64)
    edge = clients_of("mixup", "split_parts:parts=3,by=places@mixer", "scaling:factor=.5")
    sent = edge.release(images, labels, generator(1))
    whole = answer_of(sent, 0, edge).view
    edge.held = ("part_3", "part_1")
    view = answer_of(sent, 0, edge).view
    elsewhere = slice(6, 11)  # the second of 6, 5 and 5 places
    assert torch.equal(view.smashed[:, :6], whole.smashed[:, :6])
    assert torch.equal(view.smashed[:, 11:], whole.smashed[:, 11:])
    assert whole.smashed[:, elsewhere].abs().min() > 0
    assert not view.smashed[:, elsewhere].any()
    known = shared_lower(edge)
    assert known is not None
    assert torch.equal(known(images[0])[:, elsewhere], torch.zeros(4, 5, 4))


def test_maps_are_cut_by_rows_and_vectors_have_no_places() -> None:
    cut = SplitParts(parts=2, by="places")
    maps = torch.rand(3, 2, 4, 5, generator=generator())
    assert torch.equal(held_parts(maps, cut, ("part_1",)), maps * torch.tensor([1, 1, 0, 0]).view(4, 1))
    assert torch.equal(held_parts(maps, SplitParts(), ("part_2",)), maps[:, 1:])
    with pytest.raises(ValueError, match=r"vectors have no places, got shape \[1, 2, 6\]; use split_parts:by=channels"):
        cut.apply(torch.zeros(1, 2, 6), torch.zeros(1, 2), generator())
    with pytest.raises(ValueError, match=r"parts=5 needs as many places, .* use fewer parts"):
        SplitParts(parts=5, by="places").apply(torch.zeros(1, 2, 4, 6), torch.zeros(1, 2), generator())


def test_parts_that_nobody_holds_are_refused() -> None:
    with pytest.raises(UsageError, match="no defense here splits its release, so nobody holds a part"):
        resolve({"defense": "gaussian_noise", "parts": ["part_1"]})
    with pytest.raises(UsageError, match=r"unknown part of split_parts 'part_3'; did you mean 'part_"):
        resolve({"defense": "split_parts", "parts": ["part_3"]})
    with pytest.raises(UsageError, match="put split_parts behind it"):
        resolve({"defense": "split_parts+gaussian_noise"})
    with pytest.raises(UsageError, match=">= 2, got 1; one part is the whole release"):
        resolve({"defense": "split_parts:parts=1"})
    config = resolve({"defense": "gaussian_noise+split_parts", "parts": "part_2"})
    assert config.held == ("part_2",)
    assert "parts" not in resolve({"defense": "gaussian_noise+split_parts"}).answers()
