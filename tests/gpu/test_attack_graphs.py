"""What an attack's step differentiates compiles in one graph; `exceptions.csv` lists what does not, with reasons."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from privkit.attacks.hijack.fsha_networks import build as hijacking
from privkit.attacks.hijack.gan import gradient_penalty
from privkit.attacks.inversion.decoders import DECODERS, build
from privkit.attacks.inversion.image_fit import ImageFit, Method, Problem
from privkit.attacks.inversion.simulator_networks import Decoder, Discriminator, Simulator
from privkit.models import VIT_MICRO
from tests.gpu.exceptions import exceptions
from tests.small import IMAGES, SHAPE, generator

Step = Callable[[], Tensor]
ROWS, TOKENS, WIDTH = 4, 16, 12


def decoding(name: str) -> Step:
    released = torch.rand(ROWS, TOKENS, WIDTH, generator=generator())
    images = torch.rand(ROWS, *SHAPE, generator=generator(1))
    torch.manual_seed(0)
    decoder = build(name, released, SHAPE, width=None if name == "released" else 16)  # type: ignore[arg-type]
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
    simulator, decoder = Simulator(released, SHAPE, width=4), Decoder(released, SHAPE, width=4)
    judge = Discriminator(released, SHAPE, width=4, classes=0)
    return lambda: decoder(simulator(images)).sum() + judge(simulator(images), None).sum()


STEPS: dict[str, Callable[[], Step]] = {
    **{f"black_box, {name}": partial(decoding, name) for name in DECODERS},
    "white_box": white_box,
    "fsha": hijack,
    "sdar": simulated,
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("white_box", "fsha", "sdar") else pytest.mark.slow) for name in STEPS],
)
def test_a_step_compiles_in_one_graph(name: str) -> None:
    step = STEPS[name]()
    torch._dynamo.reset()
    torch.manual_seed(0)
    value = torch.compile(step, backend="eager", fullgraph=True)()
    torch.manual_seed(0)
    assert value.item() == pytest.approx(step().item(), rel=1e-5)
    value.backward()


def test_the_gradient_penalty_does_not_compile_as_the_list_says() -> None:
    assert "fsha's gradient penalty" in exceptions("not compiled")
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"grad"):
        torch.compile(hijack(penalty=True), backend="aot_eager", fullgraph=True)().backward()
