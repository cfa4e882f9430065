"""Count the floating-point operations and bytes of a training step, and the least time that the hardware needs for
them.

    python benchmarks/run.py limits              # writes results/gpu/limits.csv, a part of docs/results/gpu.md

Operations of matrix products, convolutions and attention are counted (torch.utils.flop_counter). Bytes are those that
must leave the chip: activations for the backward pass are written and read once; weights are read; gradients are
written and read; and Adam reads and writes weights and both moments. The least time is the larger of two quotients:
operations over the peak rate of NVIDIA's H200, and bytes over its memory bandwidth. Training rounds are counted on
tensors without data, so no GPU is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cells import write_table
from fsha import Options as FshaOptions
from fsha import Victims
from fsha_clients import SHAPE as FSHA_SHAPE
from fsha_clients import client as fsha_client
from fsha_clients import plain
from torch import Generator, Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from privkit.attacks.base import View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.hijack.fsha import FSHA
from privkit.attacks.hijack.fsha_server import Server
from privkit.attacks.inversion.decoders import build_decoder
from privkit.attacks.inversion.image_fit import neighbor_differences
from privkit.attacks.inversion.sdar import SDAR, SDARTraining
from privkit.attacks.inversion.simulator_training import AttackData
from privkit.defenses import NoDefense
from privkit.defenses.cutmix import RandomCutMix
from privkit.domains.images.domain import Images
from privkit.parts.registry import parse
from privkit.training import Clients, SplitProtocol, split_round

TABLE = Path(__file__).parent / "results" / "gpu" / "limits.csv"
PEAKS = {"H200": (989e12, 4.8e12), "H100": (989e12, 3.35e12), "A100": (312e12, 2.039e12)}
"""GPU (SXM card) -> operations per second in dense bfloat16, and bytes per second of its memory.

Source: NVIDIA's datasheets "H200 Tensor Core GPU" (1,979 TFLOPS with sparsity, 4.8 TB/s), "H100" (1,979, 3.35) and
"A100" (312 without sparsity, 2,039 GB/s). Sparsity doubles the figure.
"""
_BYTES_A_WEIGHT = 4 + 2 * 4 + 6 * 4
"""Bytes per float32 weight: forward pass (read), gradient (write, read), Adam (read and write weight, two moments)."""
CLIENTS, TOTAL, SHAPE, CLASSES = 10, 2_000, (3, 32, 32), 10


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `limits`.

    Attributes:
        out: path of the written CSV file.
    """

    out: str = str(TABLE)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Operations and memory traffic of a training step.

    Attributes:
        flops: floating-point operations, two for a multiply-accumulate.
        trained: count of weights that the step changes.
        activations: bytes stored for the backward pass.
    """

    flops: int
    trained: int
    activations: int

    @property
    def moved(self) -> int:
        """Least number of bytes that are read from and written to memory."""
        return 2 * self.activations + _BYTES_A_WEIGHT * self.trained

    def least(self, card: str) -> tuple[float, float]:
        """Least seconds of this card for the operations, and for the moved bytes."""
        operations, memory = PEAKS[card]
        return self.flops / operations, self.moved / memory


def card_of(name: str) -> str | None:
    """The key of `PEAKS` (the table of known GPUs) for a device's name; None for an unknown device.

    >>> card_of("NVIDIA H200"), card_of("Tesla T4")
    ('H200', None)
    """
    return next((card for card in PEAKS if card in name), None)


class Operations(TorchDispatchMode):
    """Counts operations by torch's formulas. Torch's own counter fails if gradients are differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        self.total += formula(*args, **(kwargs or {}), out_val=out) if formula else 0
        return out


def counted(step: Callable[[], object], trained: Iterable[Tensor], given: Iterable[Tensor] = ()) -> Counted:
    """Count the operations and memory traffic of one call of `step`.

    Args:
        step: forward and backward pass.
        trained: weights that the step changes.
        given: weights that the step only reads; they do not count as activations.
    """
    weights = list(trained)
    own = {w.untyped_storage()._cdata for w in (*weights, *given)}
    kept: dict[int, Tensor] = {}

    def keep(value: Tensor) -> Tensor:
        key = value.untyped_storage()._cdata
        if key not in own:
            kept.setdefault(key, value)  # kept, so that no other tensor gets its key
        return value

    with Operations() as operations, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        step()
    return Counted(
        flops=operations.total,
        trained=sum(w.numel() for w in weights),
        activations=sum(value.untyped_storage().nbytes() for value in kept.values()),
    )


def scaled(cost: Counted, rows: int, wanted: int) -> Counted:
    """Cost of the same step on `wanted` rows instead of `rows`, if each row costs the same."""
    flops, activations = (value * wanted // rows for value in (cost.flops, cost.activations))
    return Counted(flops=flops, trained=cost.trained, activations=activations)


@contextmanager
def numberless(*modules: nn.Module) -> Iterator[None]:
    """Context in which all tensors, also those of the modules, have shapes but no numbers."""
    with FakeTensorMode() as mode:
        overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)  # needed for torch 2.6
        try:
            for module in modules:
                module._apply(mode.from_tensor)
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(overwrites)
        yield


def built(model: str, clients: int, group: int) -> tuple[Clients, nn.Module]:
    """Clients and server of PSL, or of CutMixSL with groups of several clients."""
    domain = Images(shape=SHAPE)
    split = parse("models", model).spec.build(domain, CLASSES, positions=True, seed=0)
    defense = NoDefense() if group == 1 else RandomCutMix(group=group, patch=1 if model == "vgg16" else None)
    protocol = SplitProtocol(clients=clients)
    return Clients.build(split.lower, defense, domain, classes=CLASSES, seed=0, protocol=protocol), split.upper


def training_round(model: str, clients: int, group: int, total: int = TOTAL) -> Counted:
    """A round of training in bfloat16."""
    edge, upper = built(model, clients, group)
    edge.precision = "bfloat16"
    each = total // clients
    with numberless(edge, upper):
        images, labels = torch.rand(clients, each, *SHAPE), torch.zeros(clients, each, dtype=torch.int64)
        weights = [*edge.parameters(), *upper.parameters()]
        return counted(lambda: split_round(edge, upper, images, labels, Generator()), weights, [images])


def white_box_step(images: int = 256) -> Counted:
    """Cost of a white-box step on images of 224×224, with the frozen client of the patch-shuffling paper."""
    model = parse("models", "t2t_vit:width=512,depth=24,heads=8").spec
    edge = model.build(Images(shape=(3, 224, 224)), CLASSES, positions=False, seed=0).lower.requires_grad_(False)
    with numberless(edge):
        free = torch.rand(images, 3, 224, 224, requires_grad=True)
        target = torch.rand_like(edge(free.detach()))

        def step() -> None:
            ((edge(free) - target).square().mean() + neighbor_differences(free).sum()).backward()

        return counted(step, [free], edge.parameters())


def decoder_step(images: int = 50) -> Counted:
    """Cost of a training step of the decoder `mae`, for images sent as 196 tokens of 512 numbers."""
    decoder = build_decoder("mae", torch.rand(1, 196, 512), (3, 224, 224))
    with numberless(decoder), torch.autocast("cpu", torch.bfloat16):
        released, wanted = torch.rand(images, 196, 512), torch.rand(images, 3, 224, 224)
        return counted(lambda: decoder.objective(released, wanted).backward(), decoder.parameters())


def fsha_round(rows: int = 2) -> Counted:
    """Cost of a round of FSHA at the authors' size (level 1) with 64 rows; counted for `rows` rows and scaled."""
    images, labels = torch.rand(4 * rows, *FSHA_SHAPE), torch.zeros(4 * rows, dtype=torch.int64)
    given = FshaOptions(part="speed", batch=rows)
    victims = Victims(fsha_client("1", 0), images, labels, images[:1], given, 0, plain)
    view = View(round=0, smashed=victims.lower(images[:rows]).detach())
    known = ImageObservation(image_shape=FSHA_SHAPE, batch_size=rows, auxiliary=images, clients=victims)
    server = Server(FSHA(recipe="released")._settings(), view, victims, known, images, 0)
    weights = [*victims.lower.parameters(), *(w for part in vars(server.networks).values() for w in part.parameters())]
    draws = Generator().manual_seed(0)
    return scaled(counted(lambda: victims.round(lambda seen: server.answer(seen, draws)), weights, [images]), rows, 64)


def sdar_step(rows: int = 2) -> Counted:
    """Cost of a step in which SDAR's networks learn from images of 32×32, sent as 16 maps."""
    images, released = torch.rand(20, *SHAPE), torch.rand(20, 16, 32, 32)
    labels = torch.arange(20) % CLASSES
    upper = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))
    data = AttackData(
        rows=released, images=images, labels=labels, own_labels=labels, classes=CLASSES, upper=upper,
        imitate=None, round_size=rows, lower=None,
    )  # fmt: skip
    training = SDARTraining(SDAR(batch=rows), data, 0)
    some, draws = torch.arange(rows), Generator().manual_seed(0)
    weights = [w for part in training.parts.values() for w in part.parameters()]
    return scaled(counted(lambda: training._learn_from(some, some, draws), weights, [images, released]), rows, 128)


def steps() -> Iterator[tuple[str, int, Counted]]:
    """Name, number of rows (images) and cost of each measured step."""
    for model in ("vit_tiny6", "pit_tiny", "vgg16"):
        yield f"`{model}`, PSL, n={CLIENTS}", TOTAL, training_round(model, CLIENTS, 1)
        yield f"`{model}`, CutMixSL, n={CLIENTS}, k=2", TOTAL, training_round(model, CLIENTS, 2)
    yield "`white_box` through T2T-ViT's edge, 224×224", 256, white_box_step()
    yield "`black_box`, MAE decoder, 196 tokens of 512", 50, decoder_step()
    yield "`fsha`, authors' size, level 1", 64, fsha_round()
    yield "`sdar`, 32×32", 128, sdar_step()


def main(options: Options) -> None:
    """Write and print the table."""
    heading = [
        "step", "rows", "TFLOP", "trained (M)", "activations (GB)", "moved (GB)", "ms by arithmetic", "ms by memory",
        "least ms", "rows/s at most",
    ]  # fmt: skip
    rows = []
    for name, count, cost in steps():
        seconds = cost.least("H200")
        cells = (
            f"{cost.flops / 1e12:.4g}", f"{cost.trained / 1e6:.4g}", f"{cost.activations / 1e9:.3g}",
            f"{cost.moved / 1e9:.3g}", *(f"{1e3 * s:.3g}" for s in seconds), f"{1e3 * max(seconds):.3g}",
            f"{count / max(seconds):,.0f}",
        )  # fmt: skip
        rows.append([name, str(count), *cells])
        print(" | ".join(rows[-1]), flush=True)
    write_table(Path(options.out), heading, rows)
