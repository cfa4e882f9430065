"""Time split learning with n clients against centralized training.

    python benchmarks/run.py training                         # ratios for ViT-Tiny with six blocks
    python benchmarks/run.py training --model vgg16 --model pit_tiny
    python benchmarks/run.py training --growth growth.svg     # how the time of a round grows with n, k, N and the batch

A round of privkit's training loop is compared with a hand-written training loop of the uncut timm model: with the same
total batch, precision, optimizer and device. "loop" is split learning as a Python loop over clients. Configurations
take turns, so that a slow minute affects all of them; times are medians over the turns.
"""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from limits import CLASSES, PEAKS, SHAPE, built, card_of, training_round
from torch import Generator, Tensor, nn

from privkit.domains.base import Batch
from privkit.domains.images.domain import Images
from privkit.domains.partition import Iid
from privkit.parts.registry import parse
from privkit.training import Checkpoint, TrainingSpec, train
from privkit.training.graph import Graphed

Work = Callable[[], float | None]
"""Function that runs one epoch. It may return the epoch's seconds; otherwise, the whole call is timed."""
Compiled = Mapping[str, Any] | None
"""Arguments of `nn.Module.compile`; None trains without compilation."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `training`.

    Attributes:
        model: names of models, such as vit_tiny6 (the default), vgg16 or pit_tiny.
        batch: number of images in a round, over all clients.
        steps: number of rounds in a timed turn.
        growth: path of an SVG figure that shows how the time of a round grows; None draws no figure.
    """

    model: tuple[str, ...] | None = None
    clients: tuple[int, ...] = (1, 10, 100)
    batch: int = 200
    steps: int = 3
    turns: int = 5
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    growth: str | None = None


def data(images: int, device: torch.device) -> Batch:
    """Random images: their content does not change the time."""
    draws = Generator().manual_seed(0)
    batch = Batch(
        x=torch.rand(images, *SHAPE, generator=draws),
        y=torch.randint(0, CLASSES, (images,), generator=draws),
        ids=torch.arange(images),
    )
    return batch.to(device)


def uncut(name: str) -> nn.Module:
    """The network without a cut: timm's ViT for `vit…` models, otherwise both segments in sequence."""
    spec = parse("models", name).spec
    split = spec.build(Images(shape=SHAPE), CLASSES, positions=True, seed=0)
    if not name.startswith("vit"):
        return nn.Sequential(split.lower, split.upper)
    from timm.models.vision_transformer import VisionTransformer

    token = spec.pool == "token"
    vit = VisionTransformer(
        img_size=32,
        patch_size=spec.patch_for(SHAPE),
        num_classes=CLASSES,
        embed_dim=spec.width,
        depth=spec.depth,
        num_heads=spec.heads,
        class_token=token,
        global_pool=spec.pool,
        no_embed_class=True,
    )

    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = vit

        def forward(self, images: Tensor) -> Tensor:
            return self.vit((images - 0.5) / 0.5)  # type: ignore[no-any-return]

    return Normalized()


def compile_if(compiled: Compiled, *modules: nn.Module) -> None:
    """Compile the modules in place, if `compiled` is not None."""
    for module in modules if compiled is not None else ():
        module.compile(**compiled)


def centralized(name: str, images: Batch, batch: int, compiled: Compiled = None, captured: bool = False) -> Work:
    """Function that runs one epoch of a hand-written loop; if `captured`, its step is one CUDA graph."""
    device = images.x.device
    model = uncut(name).to(device).train()
    compile_if(compiled, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05, fused=True, capturable=captured)

    def step(rows: Tensor) -> tuple[Tensor, ...]:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(images.x[rows])
        loss = nn.functional.cross_entropy(logits.float(), images.y[rows])
        loss.backward()
        optimizer.step()
        return (loss.detach(),)

    taken = Graphed(step) if captured else step

    def epoch() -> None:
        for rows in torch.randperm(len(images), device=device).view(-1, batch):
            taken(rows)

    return epoch


def looped(name: str, images: Batch, batch: int, clients: int) -> Work:
    """Function that runs one epoch of parallel split learning as a Python loop over clients."""
    device, spec = images.x.device, parse("models", name).spec
    splits = [spec.build(Images(shape=SHAPE), CLASSES, positions=True, seed=0) for _ in range(clients)]
    lowers, upper = [split.lower.to(device).train() for split in splits], splits[0].upper.to(device).train()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=2e-3, weight_decay=0.05, fused=True) for m in (*lowers, upper)]

    def epoch() -> None:
        for rows in torch.randperm(len(images), device=device).view(-1, clients, batch // clients):
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            for lower, own in zip(lowers, rows, strict=True):
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    smashed = lower(images.x[own])
                    arrived = smashed.detach().requires_grad_()
                    logits = upper(arrived)
                (nn.functional.cross_entropy(logits.float(), images.y[own]) / clients).backward()
                smashed.backward(arrived.grad)
            for optimizer in optimizers:
                optimizer.step()

    return epoch


def learner(
    name: str, images: Batch, each: int, clients: int, group: int, compiled: Compiled = None
) -> Callable[[int, Callable[[int, int, float], None]], tuple[float, ...]]:
    """privkit's training loop for so many epochs, with a function that hears of every epoch; gives the losses."""
    edge, upper = (side.to(images.x.device) for side in built(name, clients, group))
    shares = Iid().assign(images.y.cpu(), clients, 0)
    compile_if(compiled, edge.lowers, upper)

    def learn(epochs: int, report: Callable[[int, int, float], None]) -> tuple[float, ...]:
        spec, checkpoint = TrainingSpec(batch_size=each), Checkpoint(None, report)
        return train(edge, upper, images, spec, epochs=epochs, seed=0, shares=shares, checkpoint=checkpoint).curve

    return learn


def privkit(
    name: str,
    images: Batch,
    batch: int,
    clients: int,
    group: int = 1,
    compiled: Compiled = None,
    captured: bool = False,
) -> Work:
    """One epoch of privkit's loop; captured, the third of a training, since the first one captures the step."""
    learn = learner(name, images, batch // clients, clients, group, compiled)

    def epoch() -> float | None:
        ended: list[float] = []
        learn(3 if captured else 1, lambda done, total, value: ended.append(perf_counter()))
        return ended[-1] - ended[-2] if captured else None

    return epoch


def in_turns(works: dict[str, Work], device: torch.device, turns: int) -> dict[str, tuple[float, float]]:
    """Median wall and CPU seconds of each work; the works take turns, after one turn to warm up."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for turn in range(turns + 1):
        for name, work in works.items():
            wall, cpu = perf_counter(), process_time()
            own = work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:
                spent = perf_counter() - wall if own is None else own
                times[name].append((spent, process_time() - cpu))
    return {name: (median(w for w, _ in times_), median(c for _, c in times_)) for name, times_ in times.items()}


def ratios(name: str, options: Options, device: torch.device) -> None:
    """Print a Markdown table: time of a round, images per second, and ratios to centralized training."""
    batch, steps = options.batch, options.steps
    images = data(batch * steps, device)
    works: dict[str, Work] = {"centralized": centralized(name, images, batch)}
    for n in options.clients:
        works[f"PSL, n={n}"] = privkit(name, images, batch, n)
        if n > 1:
            works[f"CutMixSL, n={n}, k=2"] = privkit(name, images, batch, n, group=2)
            works[f"loop over clients, n={n}"] = looped(name, images, batch, n)
    seconds = in_turns(works, device, options.turns)
    base, base_cpu = seconds["centralized"]
    print(f"\n{name}, 32×32, batch {batch} over all clients, {steps} rounds a turn, medians of {options.turns} turns\n")
    print("| | ms a round | images/s | × centralized (wall) | × centralized (CPU) |\n| --- | --- | --- | --- | --- |")
    for label, (wall, cpu) in seconds.items():
        ratio = f"{cpu / base_cpu:.3f}" if device.type == "cpu" else "–"
        print(f"| {label} | {1e3 * wall / steps:.0f} | {batch * steps / wall:.0f} | {wall / base:.3f} | {ratio} |")
    if device.type == "cuda" and (card := card_of(torch.cuda.get_device_name())):
        share = training_round(name, 1, 1, batch).flops * steps / base / PEAKS[card][0]
        print(f"\nshare of the {card}'s bf16 peak, centralized: {share:.1%}")


def growth(path: str, options: Options, device: torch.device) -> None:
    """Draw the time of a round by number of clients n, mixed clients k, tokens N and batch size."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    batch = options.batch
    panels: dict[str, dict[int, Work]] = {
        "clients n": {n: privkit("vit_tiny6", data(batch, device), batch, n) for n in (1, 5, 10, 25, 50, 100)},
        "group k (n=20)": {k: privkit("vit_tiny6", data(batch, device), batch, 20, group=k) for k in (1, 2, 5, 10, 20)},
        "tokens N (n=10)": {
            (32 // p) ** 2: privkit(f"vit_tiny6:patch={p}", data(batch, device), batch, 10) for p in (16, 8, 4)
        },
        "batch over all clients (n=10)": {
            b: privkit("vit_tiny6", data(b, device), b, 10) for b in (batch // 4, batch // 2, batch, 2 * batch)
        },
    }
    figure, axes = pyplot.subplots(1, len(panels), figsize=(13, 3), layout="constrained")
    for axis, (label, works) in zip(axes, panels.items(), strict=True):
        seconds = in_turns({str(x): work for x, work in works.items()}, device, options.turns)
        milliseconds = [1e3 * wall for wall, _ in seconds.values()]
        print(f"{label}: " + ", ".join(f"{x}: {ms:.0f} ms" for x, ms in zip(works, milliseconds, strict=True)))
        axis.plot(list(works), milliseconds, "o-")
        axis.set(xlabel=label, ylim=(0, None))
    axes[0].set_ylabel("ms a round")
    figure.savefig(path, metadata={"Date": None})


def main(options: Options) -> None:
    """Print a table for each model, or draw the picture of `--growth`."""
    device = torch.device(options.device)
    where = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{platform.processor() or 'CPU'}, {torch.get_num_threads()} threads"
    )
    print(f"torch {torch.__version__}, {where}")
    if options.growth:
        growth(options.growth, options, device)
        return
    for name in options.model or ["vit_tiny6"]:
        ratios(name, options, device)
