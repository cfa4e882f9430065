"""Time white-box inversion of many images at once against a loop over the images.

    python benchmarks/run.py attacks

Three ways with the same number of steps are compared: the attack on 64 images of 28×28 in parallel; the attack on one
image at a time; and a minimal loop that has only Adam (amsgrad), the mean squared error and total variation. The client
is a frozen convolution to 8×12×12. Times are CPU time (on a GPU, wall time), as medians over rounds in which the three
ways take turns. The step of FSHA is timed by `benchmarks/run.py fsha --part speed`.
"""

from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter, process_time

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.image_fit import STEPS_AN_EPOCH
from privkit.attacks.inversion.white_box import WhiteBox

IMAGES, SHAPE = 64, (1, 28, 28)
ATTACK = WhiteBox(epochs=1, order="known", start="grey", total_variation=0.1, l2=0.0)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `attacks`.

    Attributes:
        looped: number of images on which the loops are timed.
        rounds: number of timed rounds.
    """

    rounds: int = 5
    looped: int = 8
    device: str = "cpu"


def client(device: torch.device) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 8, 5), nn.MaxPool2d(2)).to(device)


def milliseconds(lower: nn.Module, smashed: Tensor, together: int | None) -> float:
    """Of an image and step, so many images at a time; None for the least that a loop over images can do."""
    attack = replace(ATTACK, parallel=together or 1)
    knowledge = ImageObservation(image_shape=SHAPE, batch_size=together or 1, lower=lower)
    clock = perf_counter if smashed.is_cuda else process_time
    start = clock()
    for part in smashed.split(together or 1):
        if together is None:
            bare(lower, part)
        else:
            attack.run(replace(knowledge, views=[View(round=0, smashed=part)]), Generator().manual_seed(0))
    if smashed.is_cuda:
        torch.cuda.synchronize()
    return 1e3 * (clock() - start) / len(smashed) / STEPS_AN_EPOCH


def bare(lower: nn.Module, target: Tensor) -> None:
    """Fit one image, with nothing but the optimizer and its loss."""
    free = torch.full((1, *SHAPE), 0.5, device=target.device, requires_grad=True)
    optimizer = torch.optim.Adam([free], lr=0.1, amsgrad=True)
    for _ in range(STEPS_AN_EPOCH):
        optimizer.zero_grad()
        smooth = free.diff(dim=2).abs().mean() + free.diff(dim=3).abs().mean()
        ((lower(free) - target).square().mean() + 0.1 * smooth).backward()
        optimizer.step()


def white_box(device: torch.device, rounds: int, looped: int) -> None:
    """Print the times of the three ways per image and step; the loops run on the first `looped` images only."""
    lower = client(device)
    with torch.no_grad():
        smashed = lower(torch.rand(IMAGES, *SHAPE, generator=Generator().manual_seed(0)).to(device))
    ways: tuple[tuple[int, int | None], ...] = ((IMAGES, IMAGES), (looped, 1), (looped, None))
    for count, together in ((IMAGES, IMAGES), (1, 1), (1, None)):
        milliseconds(lower, smashed[:count], together)
    times = [[milliseconds(lower, smashed[:count], together) for count, together in ways] for _ in range(rounds)]
    parallel, loop, least = (median(column) for column in zip(*times, strict=True))
    print(f"white box, {IMAGES} in parallel  {parallel:8.3f} ms an image and step")
    print(f"white box, one by one      {loop:8.3f} ms an image and step   {loop / parallel:.1f} times as much")
    print(f"bare loop, one by one      {least:8.3f} ms an image and step   {least / parallel:.1f} times as much")


def main(options: Options) -> None:
    device = torch.device(options.device)
    print(f"torch {torch.__version__}, {device.type}, {torch.get_num_threads()} threads")
    white_box(device, options.rounds, options.looped)
