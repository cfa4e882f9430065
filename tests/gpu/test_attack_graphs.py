"""What an attack's step differentiates compiles in one graph; `exceptions.csv` lists what does not, with reasons."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from privkit.attacks.base import QueryResult, View
from privkit.attacks.hijack.fsha_networks import hijacking_networks as hijacking
from privkit.attacks.hijack.gan import gradient_penalty
from privkit.attacks.inversion.decoders import DECODERS, build_decoder
from privkit.attacks.inversion.image_fit import ImageFit, Method, PlaceModel, Problem
from privkit.attacks.inversion.known_lower import fresh
from privkit.attacks.inversion.mixed_releases import exercise, per_member
from privkit.attacks.inversion.pcat import PCAT, PCATTraining
from privkit.attacks.inversion.sara import Completion, completion_loss
from privkit.attacks.inversion.simulator_networks import Discriminator, Simulator, SimulatorDecoder
from privkit.attacks.inversion.simulator_training import AttackData
from privkit.attacks.inversion.unsplit import Alternation, UnsplitRecipe
from privkit.attacks.labels.exploit import ExPLoit, _Matching
from privkit.attacks.labels.gradient_matching import label_gradients
from privkit.attacks.labels.model_completion import ModelCompletion, _Completion
from privkit.attacks.order.drag_reorder import Predicted, place_loss
from privkit.attacks.order.own_tokens import OwnTokens
from privkit.attacks.order.piece_network import (
    MessageNetwork,
    PieceNetwork,
    message_loss,
    own_prior,
    piece_loss,
)
from privkit.attacks.order.piece_solver import PieceDecoder
from privkit.attacks.patches import Geometry, patchify
from privkit.models.vit import VIT_MICRO
from tests.gpu.exceptions import exceptions
from tests.small import IMAGES, SHAPE, generator

Step = Callable[[], Tensor]
ROWS, TOKENS, WIDTH, CLASSES = 4, 16, 12, 3


def own() -> OwnTokens:
    """Tokens of an adversary's own images, in order."""
    tokens = torch.rand(ROWS, TOKENS, WIDTH, generator=generator())
    patches = patchify(torch.rand(ROWS, *SHAPE, generator=generator(1)), 2)
    return OwnTokens(tokens=tokens, patches=patches, keep=1.0, in_order=False)


def decoder_of(known: OwnTokens) -> PieceDecoder:
    return PieceDecoder.fitted(known.tokens, known.patches, Geometry.of(known.tokens, SHAPE))


def decoding(name: str) -> Step:
    released = torch.rand(ROWS, TOKENS, WIDTH, generator=generator())
    images = torch.rand(ROWS, *SHAPE, generator=generator(1))
    torch.manual_seed(0)
    decoder = build_decoder(name, released, SHAPE, width=None if name == "released" else 16)  # type: ignore[arg-type]
    return partial(decoder.objective, released, images)


def white_box() -> Step:
    lower = VIT_MICRO.build(IMAGES, 10, positions=True, seed=0).lower.eval().requires_grad_(False)
    images = torch.rand(ROWS, *SHAPE, generator=generator())
    method = Method(epochs=1, learning_rate=0.1, decay=True, bounds="sigmoid", temperature=0.0, order="known")
    problem = Problem(smashed=lower(images), start=torch.full_like(images, 0.5), unit=torch.ones(()))
    fit = ImageFit(lower, problem, method, (0.1, 0.1), 0)
    return lambda: fit._objective().sum()


def hijack(penalty: bool = False) -> Step:
    released = torch.rand(ROWS, 8, 4, 4, generator=generator())
    images = torch.rand(ROWS, 3, 16, 16, generator=generator(1))
    torch.manual_seed(0)
    networks = hijacking((8, 4, 4), (3, 16, 16), 4, blocks=1)
    if penalty:
        return lambda: gradient_penalty(networks.discriminator, released)
    return lambda: networks.decoder(networks.pilot(images)).sum() + networks.discriminator(released).sum()


def simulated() -> Step:
    """What SDAR, FORA and PCAT share."""
    released = torch.rand(ROWS, TOKENS, WIDTH, generator=generator())
    images = torch.rand(ROWS, *SHAPE, generator=generator(1))
    torch.manual_seed(0)
    simulator, decoder = Simulator(released, SHAPE, width=4), SimulatorDecoder(released, SHAPE, width=4)
    judge = Discriminator(released, SHAPE, width=4, classes=0)
    return lambda: decoder(simulator(images)).sum() + judge(simulator(images), None).sum()


def pcat() -> Step:
    images = torch.rand(ROWS, *SHAPE, generator=generator(1))
    torch.manual_seed(0)
    upper = nn.Sequential(nn.Flatten(), nn.Linear(TOKENS * WIDTH, CLASSES)).requires_grad_(False)
    data = AttackData(
        rows=torch.rand(ROWS, TOKENS, WIDTH, generator=generator()),
        images=images,
        own_labels=torch.arange(ROWS) % CLASSES,
        upper=upper,
        classes=CLASSES,
    )
    training, recorded = PCATTraining(PCAT(width=4), data, [upper], 0), torch.arange(ROWS)

    def step() -> Tensor:
        sent = training.parts["simulator"](images)
        return training.pretense(recorded, sent, recorded) + training.error(recorded, sent.detach())

    return step


def unsplit() -> Step:
    lower = VIT_MICRO.build(IMAGES, 10, positions=True, seed=0).lower.eval()
    with torch.no_grad():
        part = View(round=0, smashed=lower(torch.rand(ROWS, *SHAPE, generator=generator())))
    recipe = UnsplitRecipe(steps=1, learning_rate=0.03, total_variation=0.1, l2=0.1)
    training = Alternation(fresh(lower, 1), [part], SHAPE, recipe, 0)
    images, unit = training.images[0], torch.ones(())
    return lambda: training._objective(part, images, unit).sum() + training._error(part, images.detach()).mean()


def unmix() -> Step:
    """The decoder of solved mixtures, which is told how much is known of each cell."""
    images = torch.rand(ROWS, *SHAPE, generator=generator(1))
    explained = torch.rand(ROWS, 1, TOKENS, generator=generator(2))
    view = View(round=0, smashed=torch.rand(ROWS, TOKENS, WIDTH, generator=generator()), weights=explained)
    torch.manual_seed(0)
    decoder = build_decoder("mae", per_member(view), SHAPE, width=16)
    answer = QueryResult(view=view, members=torch.arange(ROWS).unsqueeze(1))
    return lambda: decoder.objective(*exercise(answer, images))


def jigsaw(joint: bool) -> Step:
    decoder, tokens = decoder_of(own()), own().tokens
    torch.manual_seed(0)
    network = PieceNetwork(WIDTH + decoder.geometry.patch_dim, TOKENS, 16, joint)

    def step() -> Tensor:
        pieces = decoder.features(tokens)
        scores, pairs = network(pieces, decoder.edges(tokens))
        return piece_loss(scores, pairs, decoder.twins(pieces) if joint else None)

    return step


def message() -> Step:
    """Two messages of two images each."""
    pieces, image = own().tokens.unflatten(0, (2, 2)), torch.arange(2).repeat_interleave(TOKENS).expand(2, -1)
    torch.manual_seed(0)
    network = MessageNetwork(WIDTH, 16)
    return lambda: message_loss(network(pieces, own_prior(2, 0.5)), image)


def places() -> Step:
    tokens = own().tokens
    return lambda: PlaceModel.fit(tokens).costs(tokens).mean()


def predicted() -> Predicted:
    torch.manual_seed(0)
    predictor = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, TOKENS))
    return Predicted(own=own(), decoder=decoder_of(own()), predictor=predictor)


def sara() -> Step:
    learned, rows = predicted(), torch.arange(ROWS)
    absent = torch.rand(ROWS, TOKENS, generator=generator()) < 0.5
    return partial(completion_loss, Completion(learned.decoder.geometry), learned, learned.own.tokens, rows, absent)


def exploit() -> Step:
    released, received = torch.rand(2, ROWS, WIDTH, generator=generator())
    first, shares = torch.rand(ROWS, CLASSES, generator=generator(1)), torch.full((CLASSES,), 1 / CLASSES)
    training, rows = _Matching(ExPLoit(hidden=8), released, received, first, shares, generator()), torch.arange(ROWS)
    return lambda: training.losses(rows)[0]


def completion() -> Step:
    records, known = torch.rand(8, WIDTH, generator=generator()), (torch.arange(CLASSES), torch.arange(CLASSES))
    training = _Completion(ModelCompletion(), nn.Identity(), records, known, CLASSES, generator())
    return partial(training.loss, torch.arange(CLASSES), training.others, torch.arange(8).flip(0), 0.75, 10.0)


def matched_gradients() -> Step:
    released = torch.rand(ROWS, WIDTH, generator=generator())
    upper = nn.Linear(WIDTH, CLASSES).requires_grad_(False)
    return lambda: label_gradients(upper, released).square().sum()


STEPS: dict[str, Callable[[], Step]] = {
    **{f"black_box, {name}": partial(decoding, name) for name in DECODERS},
    "white_box": white_box,
    "fsha": hijack,
    "sdar": simulated,
    "pcat": pcat,
    "unsplit": unsplit,
    "unmix": unmix,
    "jigsaw, pieces": partial(jigsaw, joint=False),
    "jigsaw, joint places": partial(jigsaw, joint=True),
    "jigsaw, message": message,
    "white_box, places": places,
    "drag_reorder": lambda: partial(place_loss, predicted(), own().tokens),
    "exploit": exploit,
    "model_completion": completion,
    "sara": sara,
}
UNTRAINED = {"white_box, places"}
"""Fitted without gradients."""


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", sorted(STEPS, key=lambda name: str(name).startswith("black_box")))
def test_a_step_compiles_in_one_graph(name: str) -> None:
    step = STEPS[name]()
    torch._dynamo.reset()
    torch.manual_seed(0)
    value = torch.compile(step, backend="eager", fullgraph=True)()
    torch.manual_seed(0)
    assert value.item() == pytest.approx(step().item(), rel=1e-5)
    assert value.requires_grad == (name not in UNTRAINED)
    if value.requires_grad:
        value.backward()


def test_the_gradient_penalty_does_not_compile_as_the_list_says() -> None:
    assert "fsha's gradient penalty" in exceptions("not compiled")
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"grad"):
        torch.compile(hijack(penalty=True), backend="aot_eager", fullgraph=True)().backward()


@pytest.mark.skipif(
    not hasattr(torch._dynamo.config, "trace_autograd_ops"),
    reason=f"the compiler of torch {torch.__version__} has no switch for a gradient within a step",
)
def test_a_gradient_within_a_step_compiles_with_a_switch_as_the_list_says() -> None:
    assert "gradient_matching" in exceptions("compiled with a switch")
    step = matched_gradients()
    torch._dynamo.reset()
    with pytest.raises(Exception, match="trace_autograd_ops"):
        torch.compile(step, backend="eager", fullgraph=True)()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        assert torch.equal(torch.compile(step, backend="eager", fullgraph=True)(), step())
