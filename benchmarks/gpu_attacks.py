"""The parts of `benchmarks/gpu.py` that run attacks: white-box inversion, FSHA, and attacks that train for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from statistics import median
from time import monotonic
from typing import Any

import fsha
import torch
from fsha_clients import digits
from gpu_units import Enough, Memory, Setting, Stopwatch, Unit, Values, goal
from torch import Generator

import attacks
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.hijack.fsha import FSHA, ROUNDS_AN_EPOCH
from privkit.attacks.inversion.sdar import SDAR
from privkit.domains.base import Batch
from privkit.domains.images.domain import Images
from privkit.parts.registry import parse
from privkit.training import Clients
from privkit.wire.channel import black_box_query, record_rounds


def white_box(setting: Setting) -> Iterator[Unit]:
    """(e) Time the white-box attack on many images at once, and in a loop over the images."""

    def run(images: int, rounds: int, looped: int) -> Values:
        lower = attacks.client(setting.device)
        with torch.no_grad():
            drawn = torch.rand(images, *attacks.SHAPE, generator=Generator().manual_seed(0))
            smashed = lower(drawn.to(setting.device))
        for warm in (smashed, smashed[:1]):
            attacks.milliseconds(lower, warm, len(warm))
        together = median(attacks.milliseconds(lower, smashed, images) for _ in range(rounds))
        apart = median(attacks.milliseconds(lower, smashed[:looped], 1) for _ in range(rounds))
        ratio = apart / together
        return {
            "ms_together": together,
            "ms_apart": apart,
            "ratio": ratio,
            "goals": [goal(f"white box, {images} images: times faster than the loop", ratio, least=20)],
        }

    for images in (2,) if setting.tiny else (64, 256, 1_024):
        yield f"{images} images", partial(run, images, 1 if setting.tiny else 5, 1 if setting.tiny else 8)


def hijack(setting: Setting) -> Iterator[Unit]:
    """(f) Run FSHA with networks of full width until it reaches the published error, for at most 10,000 rounds."""
    width, blocks, epochs, every, batch = (2, 1, 1, 1, 2) if setting.tiny else (64, 6, 100, 10, 64)
    victims, published = 500, 0.0193

    def run() -> Values:
        data = [part.to(setting.device) for part in digits(setting.data_root)]
        data = [part[:60] for part in data] if setting.tiny else data
        truth = data[0][:victims]
        given = fsha.Options(part="mnist", batch=batch, victims=victims, device=str(setting.device), client_width=width)
        memory, error, done = Memory(epochs + 1), float("inf"), 0
        while done < epochs and error > published:
            began, done = monotonic(), done + every
            attack = FSHA(epochs=done, width=width, blocks=blocks)
            guess = fsha.attacked(given, 0, attack, data, session=memory)
            error = 4 * (guess - truth).square().mean().item()
            if setting.left < 1.5 * (monotonic() - began):
                break
        goals = [goal(f"FSHA on MNIST: error after {done * ROUNDS_AN_EPOCH:,} rounds", error, most=published)]
        return {
            "data": "mnist" if setting.data_root else "5,000 digits",
            "rounds": done * ROUNDS_AN_EPOCH,
            "mse": error,
            "ms_a_round": 1e3 * memory.epoch_seconds() / ROUNDS_AN_EPOCH,
            "goals": goals if setting.data_root else [],
        }

    yield f"level 1, width {width}, {'mnist' if setting.data_root else 'digits'}", run


def long_attacks(setting: Setting) -> Iterator[Unit]:
    """(g) Seconds per epoch of `jigsaw:pairs=joint`, SDAR and the black box, at the papers' sizes."""
    epochs = 1 if setting.tiny else 3
    wide, small = ((1, 8, 8), (1, 8, 8)) if setting.tiny else ((3, 224, 224), (3, 32, 32))
    large = "vit_micro" if setting.tiny else "t2t_vit:width=512,depth=24,heads=8"
    narrow = "vit_micro" if setting.tiny else "resnet20_tanh"
    own, few, batch = (40, 10, 10) if setting.tiny else (5_000, 200, 50)

    def run(attack: Any, model: str, defense: str, shape: tuple[int, int, int]) -> Values:
        domain, spec, device = Images(shape=shape), parse("defenses", defense).spec, setting.device
        split = parse("models", model).spec.build(domain, 10, positions=spec.position_embedding, seed=0)
        edge = Clients.build(split.lower, spec, domain, classes=10, seed=0).to(device)
        draws, numbers = Generator().manual_seed(0), torch.arange(own + few)
        everything = Batch(x=torch.rand(own + few, *shape, generator=draws), y=numbers % 10, ids=numbers).to(device)
        auxiliary, attacked = everything[:own], everything[own:]
        watch = Stopwatch(epochs)
        observation = ImageObservation(
            image_shape=shape,
            batch_size=batch,
            views=record_rounds(edge, attacked, batch_size=batch, seed=0).views,
            auxiliary=auxiliary.x,
            auxiliary_labels=auxiliary.y,
            query=black_box_query(edge),
            upper=split.upper.to(device).eval(),
        )
        with suppress(Enough):
            attack.run(observation, Generator().manual_seed(0), watch)
        setting.synchronize()
        seconds = watch.epoch_seconds()
        return {
            "own_images": own,
            "epoch_seconds": seconds,
            "epochs": watch.total,
            "hours": seconds * watch.total / 3600,
        }

    solver = parse("attacks", "jigsaw:epochs=1,kicks=1" if setting.tiny else "jigsaw:pairs=joint").spec
    decoder = parse("attacks", f"black_box:epochs={2 if setting.tiny else 50}").spec
    yield "joint solver of patch shuffling", partial(run, solver, large, "patch_shuffle", wide)
    yield "SDAR", partial(run, SDAR(batch=4, epochs=1) if setting.tiny else SDAR(batch=128), narrow, "none", small)
    yield "black box of batch shuffling", partial(run, decoder, large, "batch_shuffle", wide)
