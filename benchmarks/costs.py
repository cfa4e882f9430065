"""Count a client's costs: computation as in patch shuffling's Table VI, and payloads as in both CutMix papers.

    python benchmarks/run.py costs > costs.md

Everything is counted, nothing is timed, so two runs on one machine print the same numbers. The output begins with the
device on which memory was measured.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from privkit.defenses.adversarial import Adversarial
from privkit.defenses.cutmix import RandomCutMix
from privkit.defenses.cutout import RandomCutout
from privkit.domains.images.domain import Images
from privkit.metrics.cost import costs_of, sent_share
from privkit.models import ModelSpec
from privkit.models.convolutional import VGG16
from privkit.models.pit import PIT_TINY
from privkit.models.t2t import T2tVit
from privkit.models.vit import VIT_TINY6, Vit
from privkit.shared.costs import Costs

CLIENTS, BATCH, SEED_BYTES = 10, 128, 8
"""Clients n and batch size B of both CutMix papers; bytes of the masks' seed, per client and round."""

SHAPES = {"CIFAR-10": (3, 32, 32), "CelebA": (3, 224, 224)}
MODELS: dict[str, ModelSpec] = {"ViT-Tiny": VIT_TINY6, "PiT-Tiny": PIT_TINY, "VGG-16": VGG16}
GROUPS, KEPT, CONCENTRATIONS = (2, 3, 4, 5), (1.0, 0.75, 0.5, 0.25), (0.5, 2.0, 8.0)
PAPER = {"SL / Transform": (3.10, 0.97), "Adv": (81.63, 2.43), "PS / BS": (3.10, 0.97), "PS+": (1.18, 1.01)}
"""Method -> its numbers in the paper's Table VI: "Macc Clients (M)" and "Mem Clients (G)"."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `costs`.

    Attributes:
        device: device on which peak memory is measured (default: cpu).
    """

    device: str = "cpu"


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    head = list(head)
    print("\n| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(str(value) for value in row) + " |")


def edge(spec: ModelSpec, dataset: str, device: torch.device) -> tuple[nn.Module, torch.Tensor, tuple[int, ...]]:
    """Lower segment, one image and the shape of its smashed data."""
    shape = SHAPES[dataset]
    lower = spec.build(Images(shape=shape), 10, positions=True, seed=0).lower.to(device)
    image = torch.zeros(1, *shape, device=device)
    with torch.no_grad():
        return lower, image, tuple(lower.eval()(image).shape[1:])


def efficiency(device: torch.device) -> None:
    """Print Table VI of patch shuffling: one image of 224×224, T2T-ViT-24 cut after its tokens, frozen client."""
    backbone = T2tVit(width=512, depth=24, heads=8)
    t2t, image, smashed = edge(backbone, "CelebA", device)
    with_block, *_ = edge(replace(backbone, cut="block1"), "CelebA", device)
    embedding, *_ = edge(Vit(width=512, depth=24, heads=8, patch=16, cut="embedding"), "CelebA", device)
    attacker = Adversarial().companion(smashed, SHAPES["CelebA"], seed=0).to(device)
    methods: dict[str, tuple[Costs, str]] = {
        "SL / Transform": (costs_of(t2t, image, trained=False), "tokens-to-token"),
        "Adv": (
            costs_of(t2t, image, trained=True, companion=attacker),
            "the same, trained, with a simulated attacker",
        ),
        "PS / BS": (costs_of(t2t, image, trained=False), "tokens-to-token; the shuffle multiplies nothing"),
        "PS / BS, frozen block": (
            costs_of(with_block, image, trained=False),
            "tokens-to-token and a transformer block",
        ),
        "PS+": (costs_of(embedding, image, trained=False), "patch embedding of ViT; the FFT counts no MACs"),
    }
    rows = []
    for name, (cost, runs) in methods.items():
        paper = PAPER.get(name, ("", ""))
        rows.append(
            [
                name,
                runs,
                f"{cost.client_macs / 1e6:.2f}",
                f"{cost.client_training_macs / 1e6:.2f}",
                f"{cost.peak_memory / 2**20:.1f}",
                f"{cost.client_parameters / 1e6:.2f}",
                *paper,
            ]
        )
    print("\n## Client costs, one image of 224×224 (patch shuffling, Table VI)")
    head = ["Method", "At the edge", "MACs forward (M)", "MACs training (M)", "Peak memory (MiB)", "Parameters (M)"]
    table([*head, "Paper: Macc (M)", "Paper: Mem (G)"], rows)
    print("""
The counts are of the whole image; weights at the edge are fixed but for Adv's. The paper counts multiplications and
additions and does not say over what: its 1.18 M equals 2·768², which one of 196 patches costs in ViT-B's embedding.""")


def mixed_share(group: int) -> float:
    """Mean share of its smashed data that a client sends, if a message is divided among k clients (CutMixSL §4)."""
    return -(-CLIENTS // group) / CLIENTS


def mib(cost: Costs, way: int) -> str:
    """MiB that one client uploads (`way` 0) or downloads (1) in a round, as text."""
    return f"{cost.a_round(BATCH)[way] / 2**20:.3f}"


def payload(device: torch.device) -> None:
    """Print uploads by k and by Cutout's kept share, and downloads (CutMixSL Fig. 7, DP-CutMixSL Figs. 3a and 11c)."""
    draws = torch.Generator(device).manual_seed(0)
    by_k, by_share, down = [], [], []
    for name, spec in MODELS.items():
        lower, image, smashed = edge(spec, "CIFAR-10", device)
        patch = 1 if len(smashed) == 3 else None
        thin = (smashed[0], 1) if patch is None else (1, *smashed[1:])  # masks do not depend on channels
        probe = torch.zeros(1000, 1, *thin, device=device)
        at = partial(costs_of, lower, image, trained=True)
        shape = "×".join(map(str, smashed))
        ways = [at(kept=mixed_share(k), seed_bytes=SEED_BYTES) for k in GROUPS]
        by_k.append([name, shape, mib(at(), 0), *(mib(cost, 0) for cost in ways)])
        cutouts = [RandomCutout(payload=kept, patch=patch).apply(probe, probe, draws)[0] for kept in KEPT]
        travelling = [at(kept=sent_share(cutout.weights), seed_bytes=SEED_BYTES) for cutout in cutouts]
        by_share.append([name, shape, *(mib(cost, 0) for cost in travelling)])
        two = mixed_share(2)
        routes = [at(kept=two, gradient=route, seed_bytes=SEED_BYTES) for route in ("unicast", "broadcast", "average")]
        fed = at(kept=two, gradient="average", seed_bytes=SEED_BYTES, averaged_every=1)
        down.append([name, mib(at(), 1), *(mib(cost, 1) for cost in routes), mib(fed, 0), mib(fed, 1)])
    print(f"\n## Payload up, MiB a client and round: mean over {CLIENTS} clients, B={BATCH}, float32, without labels")
    table(["Model", "Smashed data", "PSL, Mixup", *(f"CutMix k={k}" for k in GROUPS)], by_k)
    print("\n## Payload up with Random Cutout, MiB a client and round, by the share that is kept")
    table(["Model", "Smashed data", *(f"{kept:.0%}" for kept in KEPT)], by_share)
    print("\n## Payload down, MiB a client and round, 2-way CutMix; CutMixSFL with the weights it averages each round")
    table(["Model", "PSL", "unicast", "broadcast", "SplitAvg", "CutMixSFL up", "CutMixSFL down"], down)


def shares(device: torch.device) -> None:
    """Print mean and standard deviation of the share that one client sends in a round of Random CutMix."""
    draws, rounds, tokens = torch.Generator(device).manual_seed(0), 10_000, 64
    rows = []
    for k in GROUPS:
        row: list[object] = [k, f"{1 / k:.4f}"]
        smashed, labels = torch.zeros(rounds, k, 1, tokens, 1), torch.zeros(rounds, k, 1, 10)
        labels[..., 0] = 1
        for concentration in CONCENTRATIONS:
            release, _ = RandomCutMix(group=k, concentration=concentration).apply(
                smashed.to(device), labels.to(device), draws
            )
            assert release.weights is not None
            own = release.weights[:, 0].double().mean(-1)  # of one client; over its group, the mean is exactly 1/k
            row += [f"{own.mean():.4f} ± {own.std() / rounds**0.5:.4f}", f"{own.std():.3f}"]
        rows.append(row)
    print(f"\n## Share that one client of a full group sends: {rounds:,} rounds of Random CutMix, {tokens} tokens")
    head = [title for a in CONCENTRATIONS for title in (f"α_M={a:g}: mean ± standard error", "standard deviation")]
    table(["k", "1/k", *head], rows)


def main(options: Options) -> None:
    device = torch.device(options.device)
    print(f"# Costs of a client\n\nDevice {device.type}, torch {torch.__version__}, float32.")
    efficiency(device)
    payload(device)
    shares(device)
