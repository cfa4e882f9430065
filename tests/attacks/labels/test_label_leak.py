"""Label leakage and gradient matching win where labels are planted, and find nothing where there are none."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, View
from privkit.attacks.goals.labels import LabelObservation
from privkit.attacks.labels.gradient_matching import GradientMatching, label_gradients
from privkit.attacks.labels.label_leak import LabelLeak
from privkit.attacks.returned import weight_gradients
from privkit.attacks.scores.leak import opposed, per_batch_auc, pooled_auc

SHAPE = (1, 4, 4)
BARE = LabelObservation(image_shape=SHAPE, batch_size=50)


def planted(strength: float, seed: int = 0, rounds: int = 8) -> tuple[list[View], Tensor, Tensor]:
    """Rounds of 50 gradients [50, 4, 3]; positives (a third) are longer by the strength, and each round has a scale."""
    draws = Generator().manual_seed(seed)
    labels = (torch.rand(rounds, 50, generator=draws) < 1 / 3).long()
    noise = torch.randn(rounds, 50, 4, 3, generator=draws)
    scale = 2.0 ** -torch.arange(rounds).view(-1, 1, 1, 1)
    length = torch.exp(strength * labels)[..., None, None]
    views = [View(round=n, smashed=torch.zeros(50, 4, 3), cut_gradient=g) for n, g in enumerate(noise * length * scale)]
    return views, labels.flatten(), torch.arange(rounds).repeat_interleave(50)


def opposite(seed: int = 0, rounds: int = 6) -> tuple[list[View], Tensor]:
    """Gradients of equal length whose direction tells the label."""
    draws = Generator().manual_seed(seed)
    labels = (torch.rand(rounds, 50, generator=draws) < 0.4).long()
    direction = torch.randn(12, generator=draws)
    rows = (2 * labels - 1).unsqueeze(2) * direction + 0.7 * torch.randn(rounds, 50, 12, generator=draws)
    rows = nn.functional.normalize(rows, dim=2)
    return [View(round=n, smashed=torch.zeros(50, 12), cut_gradient=g) for n, g in enumerate(rows)], labels.flatten()


def scored(attack: LabelLeak, views: list[View], knowledge: LabelObservation = BARE) -> Tensor:
    found = attack.run(replace(knowledge, views=views), Generator().manual_seed(0))
    assert torch.equal(found.examples, torch.arange(sum(len(view.smashed) for view in views)))
    return found.values


def test_the_norm_finds_what_is_planted_in_it() -> None:
    views, labels, rounds = planted(3.0)
    scores = scored(LabelLeak(), views)
    assert per_batch_auc(scores.numpy(), labels.numpy(), rounds.numpy()).auc.value > 0.995
    assert pooled_auc(scores.numpy(), labels.numpy()).auc.value < 0.95  # rounds have scales of their own


def test_the_norm_and_the_cosine_find_nothing_where_nothing_is() -> None:
    views, labels, _ = planted(0.0)
    known = LabelObservation(image_shape=SHAPE, batch_size=50, known_rows=torch.arange(40), known_labels=labels[:40])
    for attack in (LabelLeak(), LabelLeak(score="cosine"), LabelLeak(score="cosine", reference="labeled")):
        scores = scored(attack, views, known)[40:].numpy()
        assert pooled_auc(scores, labels[40:].numpy()).direction == "none"


def test_the_norms_area_is_that_of_norms_computed_by_hand() -> None:
    views, labels, _ = planted(0.5)
    stacked = torch.cat([v.cut_gradient for v in views if v.cut_gradient is not None])
    by_hand = [float(np.sqrt((g.numpy() ** 2).sum())) for g in stacked]
    expected = roc_auc_score(labels.numpy(), by_hand)
    found = pooled_auc(scored(LabelLeak(), views).numpy(), labels.numpy())
    assert found.auc.value == pytest.approx(expected, abs=1e-12)
    assert found.auc.low < expected < found.auc.high


def test_a_direction_is_found_from_a_few_known_rows_and_from_the_majority() -> None:
    views, labels = opposite()
    known = LabelObservation(image_shape=SHAPE, batch_size=50, known_rows=torch.arange(5), known_labels=labels[:5])
    scores = scored(LabelLeak(score="cosine", reference="labeled"), views, known)
    assert pooled_auc(scores[5:].numpy(), labels[5:].numpy()).auc.value > 0.99
    mean = scored(LabelLeak(score="cosine"), views)
    found = pooled_auc(mean.numpy(), labels.numpy())
    assert found.auc.value < 0.1  # negatives are the majority, and the mean points their way
    assert found.direction == "lower"
    assert pooled_auc(scored(LabelLeak(), views).numpy(), labels.numpy()).direction == "none"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_balanced_rounds_whose_majority_changes_are_read_in_one_direction(seed: int) -> None:
    draws = Generator().manual_seed(seed)
    labels = torch.rand(8, 50, generator=draws) < torch.tensor([0.3, 0.7] * 4).unsqueeze(1)
    direction = torch.randn(12, generator=draws)
    gradients = torch.where(labels.unsqueeze(2), 1, -1) * direction + 0.7 * torch.randn(8, 50, 12, generator=draws)
    views = [View(round=n, smashed=torch.zeros(50, 12), cut_gradient=g) for n, g in enumerate(gradients)]
    apart = torch.cat([scored(LabelLeak(score="cosine"), [view]) for view in views])
    linked, truth = scored(LabelLeak(score="cosine"), views), labels.flatten().numpy()
    assert pooled_auc(apart.numpy(), truth).advantage < 0.3  # each round by itself points to its own majority
    assert pooled_auc(linked.numpy(), truth).advantage > 0.49
    rounds = torch.arange(8).repeat_interleave(50).numpy()
    assert "opposite directions" in opposed(apart.numpy(), truth, rounds)
    assert not opposed(linked.numpy(), truth, rounds)


def test_the_own_part_of_an_averaged_gradient_is_taken_away() -> None:
    """A gradient that is the mean of two clients': who knows its own label reads the other's."""
    draws = Generator().manual_seed(0)
    labels = (torch.rand(2, 300, generator=draws) < 0.5).long()
    direction = torch.randn(12, generator=draws)
    parts = (2 * labels - 1).unsqueeze(2) * direction + 0.5 * torch.randn(2, 300, 12, generator=draws)
    scale = torch.tensor([1.0, 10.0]).repeat_interleave(150).unsqueeze(1)  # of the rounds
    views = [
        View(round=n, smashed=torch.zeros(150, 12), cut_gradient=g)
        for n, g in enumerate((parts.mean(0) * scale).split(150))
    ]
    knowledge = {
        False: replace(BARE, known_rows=torch.arange(300), known_labels=labels[0]),
        True: replace(BARE, own_labels=labels[0]),
    }
    peer, areas = labels[1].numpy(), []
    for less_own in (False, True):
        attack = LabelLeak(score="cosine", reference="labeled", less_own=less_own)
        areas.append(pooled_auc(scored(attack, views, knowledge[less_own]).numpy(), peer).auc.value)
    assert areas[1] > 0.99 > 0.95 > areas[0]
    with pytest.raises(NotApplicable, match="own label of every row"):
        LabelLeak(less_own=True).run(replace(BARE, views=views), Generator())
    with pytest.raises(ValueError, match="needs reference=labeled"):
        LabelLeak(less_own=True, score="cosine")


def test_one_known_kind_is_enough_and_the_positive_label_counts() -> None:
    views, labels = opposite()
    rows = torch.nonzero(labels == 0).flatten()[:3]
    known = LabelObservation(image_shape=SHAPE, batch_size=50, known_rows=rows, known_labels=labels[rows])
    scores = scored(LabelLeak(score="cosine", reference="labeled"), views, known)
    assert pooled_auc(scores.numpy(), labels.numpy()).auc.value > 0.95
    turned = scored(LabelLeak(score="cosine", reference="labeled", positive=0), views, known)
    assert torch.allclose(turned, -scores, atol=1e-6)


def test_rounds_without_a_gradient_are_left_out_and_rows_keep_their_numbers() -> None:
    views, _, _ = planted(1.0)
    views[1] = View(round=1, smashed=views[1].smashed)
    found = LabelLeak().run(replace(BARE, views=views), Generator())
    assert torch.equal(found.examples, torch.cat([torch.arange(50), torch.arange(100, 400)]))


def test_attacks_draw_nothing_and_repeat_bit_for_bit() -> None:
    views, _, _ = planted(1.0)
    state = torch.get_rng_state()
    for attack in (LabelLeak(), LabelLeak(score="cosine")):
        assert torch.equal(scored(attack, views), scored(attack, views))
    assert torch.equal(torch.get_rng_state(), state)


def lower() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten())


def test_the_lower_segments_gradient_is_each_examples_own() -> None:
    segment, images = lower(), torch.rand(6, *SHAPE, generator=Generator().manual_seed(0))
    arrived = torch.randn(6, 12, generator=Generator().manual_seed(1))
    found = weight_gradients(segment, images, arrived)
    for row in range(6):
        segment.zero_grad()
        segment(images[row : row + 1]).backward(arrived[row : row + 1])
        own = torch.cat([p.grad.flatten() for p in segment.parameters() if p.grad is not None])
        assert torch.allclose(found[row], own, atol=1e-6)
    views = [View(round=0, smashed=torch.zeros(6, 12), cut_gradient=arrived)]
    knowledge = LabelObservation(image_shape=SHAPE, batch_size=6, lower=segment, auxiliary=images)
    assert torch.equal(scored(LabelLeak(at="lower"), views, knowledge), found.norm(dim=1))
    moved = [{name: value + number for name, value in segment.state_dict().items()} for number in range(2)]
    halves = [View(round=n, smashed=torch.zeros(3, 12), cut_gradient=part) for n, part in enumerate(arrived.split(3))]
    scores = scored(LabelLeak(at="lower"), halves, replace(knowledge, lower_weights=moved))
    again = weight_gradients(segment, images[3:], arrived[3:], moved[1])
    assert torch.allclose(scores, torch.cat([found[:3], again]).norm(dim=1))
    assert not torch.allclose(again, found[3:])


def test_what_is_missing_is_said() -> None:
    none = [View(round=0, smashed=torch.zeros(2, 12))]
    views = [View(round=0, smashed=torch.zeros(2, 12), cut_gradient=torch.ones(2, 12))]
    with pytest.raises(NotApplicable, match="no view holds one"):
        LabelLeak().run(replace(BARE, views=none), Generator())
    with pytest.raises(NotApplicable, match="known labels"):
        LabelLeak(score="cosine", reference="labeled").run(replace(BARE, views=views), Generator())
    with pytest.raises(NotApplicable, match="own images"):
        LabelLeak(at="lower").run(replace(BARE, views=views), Generator())
    few = LabelObservation(image_shape=SHAPE, batch_size=2, lower=lower(), auxiliary=torch.zeros(1, *SHAPE))
    with pytest.raises(NotApplicable, match="each of the 2 rows, got 1"):
        LabelLeak(at="lower").run(replace(few, views=views), Generator())
    empty = LabelObservation(image_shape=SHAPE, batch_size=2, lower=nn.Flatten(), auxiliary=torch.zeros(2, *SHAPE))
    with pytest.raises(NotApplicable, match="no weights"):
        LabelLeak(at="lower").run(replace(empty, views=views), Generator())
    with pytest.raises(NotApplicable, match="one size"):
        LabelLeak().run(
            replace(BARE, views=[*views, View(round=1, smashed=torch.zeros(2, 3), cut_gradient=torch.ones(2, 3))]),
            Generator(),
        )
    far = LabelObservation(
        image_shape=SHAPE, batch_size=2, known_rows=torch.tensor([9]), known_labels=torch.tensor([1])
    )
    with pytest.raises(NotApplicable, match="no gradient came back for any"):
        LabelLeak(score="cosine", reference="labeled").run(replace(far, views=views), Generator())


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"score": "angle"}, "one of norm, cosine"), ({"at": "top"}, "one of cut, lower"), ({"positive": -1}, ">= 0")],
)
def test_bad_specifications_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LabelLeak(**fields)  # type: ignore[arg-type]


def test_known_labels_need_rows() -> None:
    with pytest.raises(ValueError, match="go together"):
        LabelObservation(image_shape=SHAPE, batch_size=2, known_rows=torch.arange(2))
    with pytest.raises(ValueError, match="K >= 1"):
        LabelObservation(
            image_shape=SHAPE, batch_size=2, known_rows=torch.arange(2), known_labels=torch.zeros(3, dtype=torch.int64)
        )


def upper(seed: int, classes: int = 10) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, classes))


def sent_back(server: nn.Module, seed: int = 0, classes: int = 10, noise: float = 0.0) -> tuple[list[View], Tensor]:
    """Two rounds of 40 rows with the gradient that the server sends back."""
    draws, views, labels = Generator().manual_seed(seed), [], []
    for number in range(2):
        z = torch.randn(40, 4, 3, generator=draws).requires_grad_()
        y = torch.randint(0, classes, (40,), generator=draws)
        nn.functional.cross_entropy(server(z), y).backward()
        assert z.grad is not None
        gradient = z.grad + noise * torch.randn(z.shape, generator=draws)
        views.append(View(round=number, smashed=z.detach(), cut_gradient=gradient))
        labels.append(y)
    return views, torch.cat(labels)


def knows(surrogate: nn.Module) -> LabelObservation:
    return LabelObservation(image_shape=SHAPE, batch_size=40, upper=surrogate)


@pytest.mark.parametrize("distance", ["mse", "cosine"])
def test_the_servers_own_weights_tell_every_label(distance: str) -> None:
    server = upper(0)
    views, labels = sent_back(server)
    attack = GradientMatching(distance=distance, positive=3)  # type: ignore[arg-type]
    found, _ = attack.distances(replace(knows(server), views=views))
    assert torch.equal(found.argmin(1), labels)
    scores = attack.run(replace(knows(server), views=views), Generator()).values.numpy()
    assert pooled_auc(scores, (labels == 3).numpy()).auc.value == 1.0


def test_another_surrogate_or_a_drowned_gradient_is_chance() -> None:
    views, labels = sent_back(upper(0), classes=2)
    hits = (GradientMatching().distances(replace(knows(upper(5)), views=views))[0].argmin(1) == labels).float().mean()
    assert hits < 0.3
    server = upper(0, classes=2)
    views, labels = sent_back(server, classes=2, noise=100.0)
    scores = GradientMatching().run(replace(knows(server), views=views), Generator()).values.numpy()
    assert pooled_auc(scores, labels.numpy()).direction == "none"


def test_candidates_are_the_gradients_of_their_losses() -> None:
    server = upper(0, classes=3)
    z = torch.randn(5, 4, 3, generator=Generator().manual_seed(0))
    found = label_gradients(server, z)
    for label in range(3):
        at = z.clone().requires_grad_()
        nn.functional.cross_entropy(server(at), torch.full((5,), label), reduction="sum").backward()
        assert at.grad is not None
        assert torch.allclose(found[label], at.grad.flatten(1), atol=1e-6)


def test_messages_of_their_own_scale_are_told_their_size() -> None:
    server = upper(0)
    views, labels = sent_back(server)
    one = [
        View(round=0, smashed=v.smashed, cut_gradient=40 * v.cut_gradient) for v in views if v.cut_gradient is not None
    ]
    found, _ = GradientMatching(message=1).distances(replace(knows(server), views=one))
    assert torch.equal(found.argmin(1), labels)


def test_matching_says_what_it_lacks() -> None:
    views, _ = sent_back(upper(0))
    with pytest.raises(NotApplicable, match="surrogate of it"):
        GradientMatching().run(replace(BARE, views=views), Generator())
    with pytest.raises(NotApplicable, match="no view holds one"):
        GradientMatching().run(
            replace(knows(upper(0)), views=[View(round=0, smashed=torch.zeros(2, 4, 3))]), Generator()
        )
    mixed = [View(round=0, smashed=v.smashed, mixed=2, cut_gradient=v.cut_gradient) for v in views]
    with pytest.raises(NotApplicable, match="mixed rows"):
        GradientMatching().run(replace(knows(upper(0)), views=mixed), Generator())
    with pytest.raises(NotApplicable, match=r"positive=10 is none of the labels 0\.\.9"):
        GradientMatching(positive=10).run(replace(knows(upper(0)), views=views), Generator())
    with pytest.raises(NotApplicable, match="cannot take"):
        GradientMatching().run(replace(knows(nn.Linear(5, 2)), views=views), Generator())
    with pytest.raises(NotApplicable, match="L >= 2"):
        GradientMatching().run(replace(knows(nn.Sequential(nn.Flatten(), nn.Linear(12, 1))), views=views), Generator())
