"""A recorded training is the unrecorded one; what is recorded is what crossed the cut."""

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from privkit.defenses.base import Defense
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.cutmix import RandomCutMix
from privkit.defenses.dp_cutmixsl import DpSl
from privkit.defenses.none import NoDefense
from privkit.defenses.nopeek import NoPeek
from privkit.training import Clients, Round, SplitProtocol, TrainingSpec, split_round, train
from privkit.wire.transcript import RecordedRound, Transcript
from tests.small import SHAPE, built, digits

PAIR = SplitProtocol(clients=2)


def one(
    defense: Defense, protocol: SplitProtocol = PAIR, shares: Tensor | None = None
) -> tuple[Clients, Round, RecordedRound]:
    """One recorded round of four images per client."""
    edge, upper = built(defense, protocol)
    data, transcript = digits(4 * protocol.clients), Transcript()
    images, labels = data.x.view(protocol.clients, 4, *SHAPE), data.y.view(protocol.clients, 4)
    found = transcript(edge, upper, images, labels, Generator().manual_seed(0), shares=shares, number=7)
    return edge, found, transcript.rounds[0]


@pytest.mark.slow(but=4)
@pytest.mark.parametrize(
    ("defense", "protocol"),
    [
        (NoDefense(), SplitProtocol(clients=2, average="round", gradient="average")),
        (RandomCutMix(), PAIR),
        (RandomCutMix(), SplitProtocol(clients=2, gradient="broadcast")),
        (RandomCutMix(level="input"), PAIR),
        (DpSl(), SplitProtocol(clients=2, updates="message")),
        (NoPeek(), PAIR),
        (BatchShuffle(keep=0.4), SplitProtocol(clients=2, lower="handed_on")),
    ],
    ids=lambda value: value.name if isinstance(value, Defense) else "",
)
def test_a_recorded_training_gives_the_same_weights(defense: Defense, protocol: SplitProtocol) -> None:
    spec, data = TrainingSpec(batch_size=8), digits(48)
    plain = train(*built(defense, protocol), data, spec, epochs=2, seed=0)
    transcript = Transcript()
    recorded = train(*built(defense, protocol), data, spec, epochs=2, seed=0, play=transcript)
    for ours, theirs in ((plain.edge, recorded.edge), (plain.upper, recorded.upper)):
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert recorded.curve == plain.curve
    assert [view.round for view in transcript.views] == list(range(len(transcript.rounds)))
    assert len(transcript.rounds) == 6 * (protocol.clients // protocol.active)


def test_only_the_wanted_rounds_are_kept() -> None:
    transcript = Transcript(lambda number: number >= 4)
    train(*built(NoDefense(), PAIR), digits(48), TrainingSpec(batch_size=8), epochs=2, seed=0, play=transcript)
    assert [view.round for view in transcript.views] == [4, 5]


def test_the_transcript_and_split_round_return_the_same() -> None:
    edge, upper = built(RandomCutMix(), PAIR)
    data = digits(8)
    given = (data.x.view(2, 4, *SHAPE), data.y.view(2, 4))
    plain = split_round(edge, upper, *given, Generator().manual_seed(3))
    edge, upper = built(RandomCutMix(), PAIR)
    recorded = Transcript()(edge, upper, *given, Generator().manual_seed(3))
    assert torch.equal(plain.cut_gradient, recorded.cut_gradient)
    assert torch.equal(plain.losses, recorded.losses)
    assert not edge.lowers._forward_hooks


def test_without_a_defense_each_client_gets_its_own_messages_gradient() -> None:
    _, found, kept = one(NoDefense())
    assert kept.view.cut_gradient is not None
    assert torch.equal(kept.view.cut_gradient, found.cut_gradient.flatten(0, 1))
    for client, view in enumerate(kept.received):
        assert view.cut_gradient is not None
        assert view.round == kept.view.round == 7
        assert torch.equal(view.cut_gradient, found.cut_gradient[client])
        assert torch.equal(view.smashed, found.sent.smashed[client])


def test_an_averaged_gradient_is_recorded_as_it_was_sent() -> None:
    shares = torch.tensor([0.75, 0.25])
    _, found, kept = one(NoDefense(), SplitProtocol(clients=2, gradient="average"), shares)
    mean = 0.75 * found.cut_gradient[0] + 0.25 * found.cut_gradient[1]
    assert kept.view.cut_gradient is not None
    assert torch.allclose(kept.view.cut_gradient, mean.repeat(2, 1, 1), atol=1e-9)
    for view in kept.received:
        assert view.cut_gradient is not None
        assert torch.allclose(view.cut_gradient, mean, atol=1e-9)


@pytest.mark.parametrize("way", ["unicast", "broadcast"])
def test_members_of_a_group_get_masked_parts_by_unicast_and_all_of_it_by_broadcast(way: str) -> None:
    _, found, kept = one(RandomCutMix(), SplitProtocol(clients=2, gradient=way))  # type: ignore[arg-type]
    assert kept.view.weights is not None
    assert kept.view.mixed == 2
    for seat, client in enumerate(found.sent.groups[0].tolist()):
        mask = kept.view.weights[:, seat].unsqueeze(2) if way == "unicast" else 1
        got = kept.received[client].cut_gradient
        assert got is not None
        assert torch.allclose(got, mask * found.cut_gradient[0], atol=1e-9)
        assert torch.equal(kept.members[:, seat], client * 4 + torch.arange(4))


def test_images_mixed_before_the_lower_segments_leave_no_client_a_gradient_of_its_own() -> None:
    _, _, kept = one(RandomCutMix(level="input"))
    assert kept.received == ()
    assert kept.view.cut_gradient is not None


def test_hidden_masks_stay_hidden_and_empty_seats_empty() -> None:
    _, _, kept = one(replace(RandomCutMix(), published=False), SplitProtocol(clients=3))
    assert kept.view.weights is None
    assert (kept.members[4:, 1] == -1).all()
    assert (kept.members[:, 0] >= 0).all()


def test_a_frozen_lower_segment_gets_nothing() -> None:
    edge, upper = built(NoDefense(), PAIR)
    edge.lowers.requires_grad_(False)
    data, transcript = digits(8), Transcript()
    transcript(edge, upper, data.x.view(2, 4, *SHAPE), data.y.view(2, 4), Generator().manual_seed(0))
    assert transcript.views[0].cut_gradient is not None
    assert [view.cut_gradient for view in transcript.received(0) + transcript.received(1)] == [None, None]


def test_the_record_outlives_the_round_and_holds_no_graph() -> None:
    edge, found, kept = one(NoDefense())
    before = kept.view.smashed.clone()
    with torch.no_grad():
        found.sent.release.smashed.zero_()
        found.cut_gradient.zero_()
    assert torch.equal(kept.view.smashed, before)
    assert kept.view.cut_gradient is not None
    assert kept.view.cut_gradient.abs().sum() > 0
    assert not kept.view.smashed.requires_grad
    assert edge.lowers.copies == 2
