"""The edge: the clients' lower segments, their defense and, where a defense asks for them, its helpers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from privkit.defenses.base import Defense, Receipt, Release
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.out_of_memory import ran_out
from privkit.seeds import derive
from privkit.torch_utils.seeded import seeded
from privkit.training.protocol import SplitProtocol
from privkit.training.stacked import Stacked


def frozen_block(dim: int, seed: int) -> nn.Module:
    """The extra transformer block that runs at the edge after the shuffle; its weights are public and never trained.

    T2T-ViT's block: MLP ratio 3, heads of 64 channels (at least one head).

    Args:
        dim: token size.
        seed: of the weights.

    Source: Yao et al., patch shuffling, §IV-B ("the model weights of the additional transformer block are fixed").
    """
    from timm.models.vision_transformer import Block

    heads = max(h for h in range(1, max(1, dim // 64) + 1) if dim % h == 0)
    with seeded(torch.device("cpu"), seed):
        return Block(dim, heads, mlp_ratio=3.0, qkv_bias=True).requires_grad_(False)


@dataclass(frozen=True, kw_only=True)
class ClientForward:
    """One round's forward pass on the clients' side.

    Attributes:
        smashed: [n, B, ...], what the lower segments gave; [M, B, ...] where images were mixed before them.
        labels: int64 [n, B], the clients' own.
        release: what the server gets, or has after it applied the defense itself, M messages.
        receipt: what the defense did.
        groups: int64 [M, k], the client on each seat of each message, −1 on an empty seat.
        penalty: [M'], the defense's own term of each client's loss, or None.
    """

    smashed: Tensor
    labels: Tensor
    release: Release
    receipt: Receipt
    groups: Tensor
    penalty: Tensor | None

    def arrived(self, defense: Defense) -> ClientForward:
        """What the server gets to see: each client's own message, where it applies the defense to itself."""
        if defense.applied_by != "server":
            return self
        smashed = self.smashed
        if self.release.apart is not None:
            seats = self.groups.flatten()
            seat_of = seats.argsort()[len(seats) - len(smashed) :]  # empty seats, -1, come first
            smashed = self.release.apart.flatten(0, 1)[seat_of].to(smashed.dtype)
        return replace(
            self,
            release=Release(smashed=smashed, labels=self.labels),
            groups=torch.arange(len(smashed), device=smashed.device).unsqueeze(1),
        )


class Grouping(Protocol):
    """Draws the mixing groups of a round."""

    def __call__(self, group: int, number: int, generator: Generator) -> Tensor:
        """Groups int64 [M, k]; see `SplitProtocol.groups`."""
        ...


class Clients(nn.Module):
    """Everything on the clients' side.

    Args:
        lowers: the lower segments, stacked.
        defense: applied to what they give, or to the images before them.
        protocol: who sends in a round, and who is mixed with whom.
        classes: number of labels.
        block: the frozen block, or None.
        companion: a network of the defense's that each client trains beside the task, stacked, or None.
        seed: of the ratios that a mixing defense draws once.
    """

    def __init__(
        self,
        lowers: Stacked,
        defense: Defense,
        protocol: SplitProtocol,
        classes: int,
        block: nn.Module | None = None,
        companion: Stacked | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.lowers, self.block, self.companion = lowers, block, companion
        self.defense, self.protocol, self.classes, self.seed = defense, protocol, classes, seed

    @classmethod
    def build(
        cls,
        lower: nn.Module,
        defense: Defense,
        domain: Domain,
        *,
        classes: int,
        seed: int,
        protocol: SplitProtocol | None = None,
    ) -> Clients:
        """Copy the lower segment for every client and add what the defense asks for.

        Args:
            lower: one client's lower segment; all clients start with its weights.
            defense: the defense.
            domain: what a record is.
            classes: number of labels.
            seed: of the frozen block, the companion, and ratios that are drawn once.
            protocol: None for one client.

        Raises:
            UsageError: if the group cannot be filled, the defense cannot take what the lower segment gives, or the
                segment fails on images of the dataset's shape.
        """
        protocol = protocol or SplitProtocol()
        protocol.check_group(defense.name, defense.group)
        if defense.group > 1 and protocol.gradient != "unicast" and not defense.keeps_positions:
            raise UsageError(
                f"{defense.name} moves tokens, so that one gradient for all members fits none; use gradient=unicast"
            )
        if defense.drawn == "once" and defense.group > 1 and protocol.grouping != "fixed":
            raise UsageError(
                f"{defense.name} draws ratios once, so that every client keeps its own and groups must stay together, "
                f"but the protocol has grouping={protocol.grouping}; use grouping=fixed, or drawn=every_round"
            )
        if domain.name != "images" and (defense.images_only or defense.level == "input"):
            raise UsageError(
                f"{defense.name} works on images themselves, and these records are {domain.records}; choose a defense "
                "on smashed data"
            )
        training = lower.training
        with torch.no_grad():  # in eval mode, so that a look at the shape draws nothing and moves no running mean
            shape = tuple(lower.eval()(domain.zeros(1)).shape[1:])
        lower.train(training)
        lowers = Stacked(lower, protocol.active)
        block = companion = None
        if defense.frozen_block:
            if len(shape) != 2:
                raise ValueError(f"frozen_block needs tokens [N, T, D], got shape {[1, *shape]}; cut elsewhere")
            block = frozen_block(shape[-1], seed)
        if isinstance(domain, Images) and (own := defense.companion(shape, domain.shape, seed)) is not None:
            companion = Stacked(own, protocol.active)
        edge = cls(lowers, defense, protocol, classes, block, companion, seed)
        edge._probe(domain)
        return edge

    @torch.no_grad()
    def _probe(self, domain: Domain) -> None:
        """Refuse, before any training, segments that cannot be stacked and shapes that the defense cannot take."""
        if self.lowers.copies == 1 and self.defense.group == 1:
            return
        training = self.training
        self.eval()
        each = self.defense.smallest_batch
        records = domain.zeros(self.protocol.active * each).unflatten(0, (-1, each))
        try:
            with seeded(torch.device("cpu"), 0):
                self.lowers.settle(records)
                labels = torch.zeros(records.shape[:2], dtype=torch.int64)
                self.release(records, labels, Generator().manual_seed(0))
        except (ValueError, UsageError) as error:
            raise UsageError(str(error)) from None
        except Exception as error:
            if ran_out(error):
                raise
            reason = " ".join(str(error).split())[:200]
            raise UsageError(
                f"the lower segment fails for {self.lowers.copies} clients, together and one after another: "
                f"{type(error).__name__}: {reason}"
            ) from None
        self.train(training)

    def release(self, images: Tensor, labels: Tensor, generator: Generator, number: int = 0) -> ClientForward:
        """What leaves the clients in one round, differentiable in the lower segments' weights.

        Args:
            images: [n, B, C, H, W] in [0, 1], the batch of every client that sends.
            labels: int64 [n, B].
            generator: the only source of randomness of groups and defense.
            number: of the round, 0-based.
        """
        defense, own = self.defense, labels
        groups = torch.arange(len(images), device=images.device).unsqueeze(1)
        present = None
        if defense.group > 1:
            groups = self.protocol.groups(defense.group, number, generator)
            present = groups >= 0
        if defense.soft_labels:
            labels = nn.functional.one_hot(labels, self.classes).float()
        penalty = None
        if defense.level == "input":
            if defense.group > 1 and self.lowers.by_record is not None:
                raise UsageError(
                    f"{defense.name} mixes images of several clients before one lower segment, so that training cannot "
                    "be private; use level=smashed, or leave out private=true"
                )
            release, receipt = self._defended(_seated(images, groups), _seated(labels, groups), generator, present)
            smashed = self.lowers(release.smashed, groups[:, 0] if defense.group > 1 else None)
            release = replace(release, smashed=smashed)
        else:
            smashed = self.lowers(images)
            penalty = defense.penalty(images, smashed, None if self.companion is None else self._companion)
            if penalty is not None and self.lowers.by_record is not None:
                raise UsageError(
                    f"{defense.name} adds a loss over whole batches, of which no record's part is known, so that "
                    "training cannot be private; leave out private=true, or choose another defense"
                )
            release, receipt = self._defended(_seated(smashed, groups), _seated(labels, groups), generator, present)
        if self.block is not None:
            m, b = release.smashed.shape[:2]
            release = replace(release, smashed=self.block(release.smashed.flatten(0, 1)).unflatten(0, (m, b)))
        return ClientForward(
            smashed=smashed, labels=own, release=release, receipt=receipt, groups=groups, penalty=penalty
        )

    def _defended(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None
    ) -> tuple[Release, Receipt]:
        """The defense's round, with the coins of what it draws once."""
        kept = {}
        if self.defense.drawn == "once":
            kept = {"kept": Generator(smashed.device).manual_seed(derive(self.seed, "ratios"))}
        return self.defense.apply(smashed, labels, generator, present, **kept)

    def _companion(self, smashed: Tensor) -> Tensor:
        """Every client's own companion on its own part of [n·B, ...]."""
        assert self.companion is not None
        return self.companion(smashed.unflatten(0, (self.companion.copies, -1))).flatten(0, 1)

    def infer(self, images: Tensor, labels: Tensor, generator: Generator) -> Tensor:
        """What the server gets of test images, [n, B, ...]; without the defense where that defends training only."""
        if self.defense.at_inference and self.defense.group == 1:
            return self.release(images, labels, generator).release.smashed
        return self.lowers(images)

    @torch.no_grad()
    def fitted(self, upper: nn.Module, domain: Domain, seed: int) -> nn.Module:
        """The upper segment, behind the defense's adapter where the release is shaped unlike the smashed data."""
        training = self.training
        self.eval()
        with seeded(torch.device("cpu"), 0):
            shape = tuple(self.lowers.copy(0)(domain.zeros(1)).shape[1:])
        self.train(training)
        adapter = self.defense.adapter(shape, seed)
        return upper if adapter is None else nn.Sequential(adapter, upper)

    def client(self, number: int) -> nn.Module:
        """One client without its coins, as one module on records [N, ...].

        The lower segment, what the defense does to every image alone in front of it or behind it, and the frozen block.
        """
        parts = [self.lowers.copy(number)]
        if type(self.defense).public_transform is not Defense.public_transform and self.defense.applied_by != "server":
            parts.insert(0 if self.defense.level == "input" else 1, PublicTransform(self.defense))
        if self.block is not None:
            parts.append(self.block)
        return parts[0] if len(parts) == 1 else nn.Sequential(*parts)


class PublicTransform(nn.Module):
    """A defense's public part."""

    def __init__(self, defense: Defense) -> None:
        super().__init__()
        self.defense = defense

    def forward(self, smashed: Tensor) -> Tensor:
        """[N, ...] -> [N, ...]."""
        return self.defense.public_transform(smashed)


def _seated(values: Tensor, groups: Tensor) -> Tensor:
    """[n, ...] by groups [M, k] -> [M, k, ...]; unchanged where nobody is mixed. Empty seats hold somebody's values."""
    return values if groups.shape[1] == 1 else values[groups.clamp(min=0)]
