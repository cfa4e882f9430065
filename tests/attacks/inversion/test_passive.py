"""FORA and PCAT: where a passive server with own images must win, where it must fail, and what it does not read."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AttackDiverged, NotApplicable, View
from privkit.attacks.goals.reconstruct import ImageAttack
from privkit.attacks.inversion.fora import FORA, FORATraining
from privkit.attacks.inversion.pcat import PCAT, PCATTraining
from privkit.attacks.inversion.simulator_training import AttackData, mk_mmd
from tests.attacks.inversion.passive import FLOOR, case, check_gradients, error, run, split, trained
from tests.attacks.sessions import Killed, Session

QUICK: list[Any] = [FORA(epochs=2, width=4), FORA(epochs=2, width=4, recipe="released"), PCAT(epochs=2, width=4)]
BOTH: list[Any] = [QUICK[0], QUICK[2]]


def named(attack: Any) -> str:
    return f"{attack.name} {getattr(attack, 'recipe', '')}".strip()


@pytest.mark.parametrize(
    ("attack", "kind"),
    [
        (PCAT(epochs=8), "tokens"),
        pytest.param(FORA(epochs=16), "maps", marks=pytest.mark.slow),
        pytest.param(FORA(epochs=8), "tokens", marks=pytest.mark.slow),
        pytest.param(PCAT(epochs=8), "maps", marks=pytest.mark.slow),
        pytest.param(PCAT(epochs=8), "vectors", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_wins_on_an_undefended_client(attack: Any, kind: str) -> None:
    """A third below the mean image without a query; the untrained start is above it."""
    views, knowledge = case(kind, own=600)
    won = run(attack, views, knowledge)
    assert error(won) < 0.67 * FLOOR
    assert error(run(replace(attack, epochs=0), views, knowledge)) > FLOOR
    assert won.curve[-1] < 0.5 * won.curve[0]


@pytest.mark.slow
@pytest.mark.parametrize("attack", BOTH, ids=named)
def test_noise_tells_nothing(attack: Any) -> None:
    """Releases that hold no image: no better than the mean image."""
    views, knowledge = case(own=400)
    noise = [
        replace(v, labels=None, smashed=torch.rand(v.smashed.shape, generator=Generator().manual_seed(i)))
        for i, v in enumerate(views)
    ]
    attack = replace(attack, epochs=6)
    assert sum(error(run(attack, noise, knowledge, seed=seed)) for seed in range(3)) / 3 > 0.97 * FLOOR


@pytest.mark.parametrize("attack", QUICK, ids=named)
def test_deterministic_by_generator_and_resumed_bit_for_bit(attack: Any) -> None:
    views, knowledge = case()
    knowledge, state = replace(knowledge, upper_history=[trained("maps")[1]]), torch.random.get_rng_state()
    killed = Session(dies_after=1)
    with pytest.raises(Killed):
        run(attack, views, knowledge, killed)
    torch.random.set_rng_state(state)
    straight, resumed = run(attack, views, knowledge), run(attack, views, knowledge, Session(state=killed.state))
    assert torch.equal(resumed.images, straight.images)
    assert resumed.curve == straight.curve
    assert not torch.equal(run(attack, views, knowledge, seed=1).images, straight.images)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("attack", BOTH, ids=named)
def test_a_divergence_stops_it_with_the_last_good_state_kept(attack: Any) -> None:
    views, knowledge = case()
    session = Session()
    run(replace(attack, epochs=1), views, knowledge, session)
    spoiled = replace(knowledge, imitate=lambda sent, draws: sent * float("nan"))
    with pytest.raises(AttackDiverged, match=f"{attack.name}: the losses of epoch 2 add up to nan"):
        run(attack, views, spoiled, session)
    assert len(session.state["curve"]) == 1


@pytest.mark.parametrize("attack", BOTH, ids=named)
def test_the_clients_defense_is_imitated_on_whole_rounds(attack: ImageAttack) -> None:
    views, knowledge = case()
    sizes = set[int]()

    def noise(smashed: Tensor, draws: Generator) -> Tensor:
        sizes.add(len(smashed) % knowledge.batch_size)
        return smashed + torch.randn(smashed.shape, generator=draws)

    imitated = run(attack, views, replace(knowledge, imitate=noise))
    assert sizes == {0}
    assert not torch.equal(imitated.images, run(attack, views, knowledge).images)


def test_fora_reads_neither_labels_nor_segments() -> None:
    views, knowledge = case()
    lower, upper = deepcopy(trained("maps"))
    for weight in [*lower.parameters(), *upper.parameters()]:
        weight.data.fill_(float("nan"))
    bare = replace(knowledge, upper=None, auxiliary_labels=None)
    unlabeled = [replace(view, labels=None) for view in views]
    full = replace(knowledge, upper=upper, lower=lower)
    assert torch.equal(run(QUICK[0], views, full).images, run(QUICK[0], unlabeled, bare).images)


def test_the_discrepancy_and_the_simulators_loss_are_those_of_the_authors_release() -> None:
    """Figures of `MultipleKernelMaximumMeanDiscrepancy` and of the simulator's loss at a = .8 in the authors' code.

    Its discriminator is low where rows look recorded, ours is high. Source: github.com/X1aoyangXu/FORA at 92830f2,
    FORA/utils.py, `pseudo_training`, run on these inputs in float64.
    """
    theirs = {
        (4, 3): (0.5389332806041023, 0.5311466244832819),
        (6, 2, 4, 4): (1.374900486118281, 1.1999203888946246),
        (5, 9, 3): (4.016694739834012, 3.31335579186721),
    }
    views, knowledge = case()
    training = FORATraining(FORA(width=2), AttackData.of(FORA(), replace(knowledge, views=views)), 0)
    for shape, (discrepancy, loss) in theirs.items():
        steps = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
        recorded, simulated = torch.sin(steps).view(shape), (torch.cos(0.7 * steps) + 0.3).view(shape)
        scores = torch.linspace(-1, 2, shape[0], dtype=torch.float64)
        apart = mk_mmd(recorded, simulated)
        assert apart.item() == pytest.approx(discrepancy, rel=1e-6)
        assert training._objective(scores.mean(), apart).item() == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("recipe", ["strong", "released"])
def test_a_step_of_fora_gives_every_part_the_gradient_of_its_own_loss(recipe: Any) -> None:
    """The simulator's gradient is put together from two; here its loss is written out and differentiated."""
    views, knowledge = case("tokens")
    attack = FORA(width=4, recipe=recipe)
    training = FORATraining(attack, AttackData.of(attack, replace(knowledge, views=views)), 0)
    rows = torch.arange(8)
    p = deepcopy(training.parts)
    images, real = training.given.images[rows], training.given.rows[rows]
    made = p["simulator"](images)
    score = p["releases"](made, None)
    fooled = nn.functional.softplus(-score).mean() if recipe == "strong" else -score.mean()
    of = deepcopy(training)
    losses = {
        "simulator": 0.2 * fooled + 0.8 * mk_mmd(real, made),
        "decoder": nn.functional.mse_loss(of._decode(made.detach(), None), images),
    }
    total = training._learn_from(rows, rows, Generator().manual_seed(0))
    assert total.isfinite()
    check_gradients(training, losses, {**p, "decoder": of.parts["decoder"]}, rtol=1e-3)


def test_pcat_meets_the_segments_states_in_turn_and_ends_with_the_last() -> None:
    views, knowledge = case()
    attack = PCAT(epochs=5, width=2)
    data = AttackData.of(
        attack, replace(knowledge, views=views, auxiliary=split()[2][:40], auxiliary_labels=split()[3][:40])
    )
    history: list[nn.Module] = [deepcopy(trained("maps")[1]) for _ in range(3)]
    training, met = PCATTraining(attack, data, history, 0), list[int]()
    for number in range(5):
        training.epoch(number)
        met.append(next(i for i, state in enumerate(history) if state is training._upper))
    assert met == [0, 1, 1, 2, 2]


def test_pcat_takes_images_of_the_labels_that_were_recorded() -> None:
    """Label alignment: where only threes crossed, the pseudo-client is trained on threes alone."""
    views, knowledge = case()
    threes = [replace(view, labels=torch.full((200,), 3)) for view in views]
    other = knowledge.auxiliary_labels
    assert other is not None
    assert knowledge.auxiliary is not None
    spoiled = replace(knowledge, auxiliary=torch.where((other == 3).view(-1, 1, 1, 1), knowledge.auxiliary, 0.5))
    aligned = [run(replace(QUICK[2], mmd_weight=0.0), threes, known).images for known in (knowledge, spoiled)]
    assert torch.equal(*aligned)
    free = [replace(view, labels=None) for view in views]
    assert not torch.equal(*(run(QUICK[2], free, known).images for known in (knowledge, spoiled)))


@pytest.mark.parametrize("attack", BOTH, ids=named)
def test_refusals(attack: Any) -> None:
    views, knowledge = case()
    for lacking in sorted(attack.needs):
        with pytest.raises(NotApplicable, match=f"{attack.name} needs {lacking}, "):
            run(attack, views, replace(knowledge, **{lacking: None}))  # type: ignore[arg-type]
    few = replace(knowledge, auxiliary=split()[2][:9], auxiliary_labels=split()[3][:9])
    for message, seen, knows in (
        ("each row holds 2 images, and the adversary does not know which", [replace(views[0], mixed=2)], knowledge),
        ("views of one form", [views[0], View(round=1, smashed=torch.rand(2, 8, 5, 5))], knowledge),
        (f"{attack.name} holds out a tenth of its images: it needs 10, got 9", views, few),
    ):
        with pytest.raises(NotApplicable, match=message):
            run(attack, seen, knows)
    for bad in ({"epochs": -1}, {"learning_rate": 0.0}, {"width": 0}, {"batch": 1}, {"mmd_weight": -0.1}):
        with pytest.raises(ValueError, match="must be"):
            replace(attack, **bad)
    with pytest.raises(ValueError, match="budget's"):
        run(replace(attack, epochs=None), views, knowledge)
