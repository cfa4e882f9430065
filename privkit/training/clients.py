"""The clients' side: lower segments, their defense, and the networks that the defense adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from privkit.defenses.base import Defense, Receipt, Release
from privkit.defenses.chain import stages_of
from privkit.defenses.compile import StageReceipt, receipt_of, run, sites_of
from privkit.defenses.denoising import denoisers
from privkit.defenses.receipts import Permuted
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.errors import UsageError, one_line
from privkit.models.base import sent_by
from privkit.shared.seeds import derive
from privkit.torch_utils.behind import Behind
from privkit.torch_utils.out_of_memory import ran_out
from privkit.torch_utils.precision import short_by_default
from privkit.torch_utils.seeded import seeded
from privkit.training.known_form import known_forms
from privkit.training.losses import own_loss
from privkit.training.protocol import SplitProtocol
from privkit.training.spec import Precision
from privkit.training.stacked import Filtered, Stacked


def frozen_block(dim: int, seed: int) -> nn.Module:
    """The transformer block that clients run on tokens [..., dim] after a shuffle; its weights are public and fixed.

    It is T2T-ViT's block: MLP ratio 3, and the largest number of heads with 64 channels or more each, at least one.

    Source: Yao et al., patch shuffling, §IV-B ("the model weights of the additional transformer block are fixed").
    """
    from privkit.models.tokens import Block

    heads = max(h for h in range(1, max(1, dim // 64) + 1) if dim % h == 0)
    with seeded(torch.device("cpu"), seed):
        return Block(dim, heads, mlp_ratio=3.0).requires_grad_(False)


@dataclass(frozen=True, kw_only=True)
class ClientForward:
    """Holds the results of one round's forward pass on the clients' side, for n clients with batches of B records.

    A message is the batch of smashed data that the server gets at once, from one client or mixed from k clients. A
    server's stage is a step of the defense that the server runs, such as mixing.

    Attributes:
        smashed: output of the lower segments, [n, B, ...], or [M, B, ...] for M messages if images were mixed before
            the segments.
        labels: the clients' labels, int64 [n, B], or [n, B, L] if each record has L labels.
        release: the M messages with labels as the server uses them, after the server's stages.
        receipt: what the defense did in this round, and what it proves about the release.
        groups: indices of the clients mixed into each message, int64 [M, k], filled with −1 if there are fewer than k.
        penalty: the defense's term in the clients' loss, one number per batch of `smashed`; None if it adds no term.
        arrived: the messages as they arrive, before the server's stages; equal to `release` without such stages.
        arrived_groups: the clients mixed into each message of `arrived`, as in `groups`.
    """

    smashed: Tensor
    labels: Tensor
    release: Release
    receipt: Receipt
    groups: Tensor
    penalty: Tensor | None
    arrived: Release
    arrived_groups: Tensor

    def seen(self) -> ClientForward:
        """Return the same round with the messages before the server's stages, i.e. `arrived`, in place of `release`."""
        return replace(self, release=self.arrived, groups=self.arrived_groups)


class Clients(nn.Module):
    """Computes everything on the clients' side of the cut: the lower segments and the defense. `build` makes one.

    Args:
        lowers: the lower segments (layers up to the cut) of all clients that send in a round, as stacked copies.
        defense: defense on the segments' output, or on the images before the segments.
        protocol: the protocol, which decides which clients send in a round and which of them are mixed.
        classes: number of classes, or of 0/1 labels per record.
        block: the frozen transformer block that clients run after a shuffle; None if they run no block.
        companion: stacked networks that clients train only for the defense, such as a simulated attacker, or None.
        seed: the seed for mixing ratios that a defense draws once per run.

    Attributes:
        held: names of the parts of the smashed data (such as one party's) that the adversary gets; empty for all parts.
        precision: precision of products and convolutions: "float32", "bfloat16" or "auto", see `TrainingSpec`.
        counts_orders: whether a shuffle's certificate may rely on the number of possible orders; False if tokens reveal
            their positions.
        other_tokens: number ≥ 0 of a record's tokens that represent no patch, such as a class token.
        predicts: what the model predicts: "labels" of records, or the next tokens of "texts".
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
        self.held: tuple[str, ...] = ()
        self.precision: Precision = "auto"
        self.counts_orders, self.other_tokens = True, 0
        self.predicts: Literal["labels", "texts"] = "labels"

    def mixed_precision(self, device: torch.device) -> torch.autocast:
        """A context for products in the chosen `precision` on `device`; weights and losses stay float32."""
        short = self.precision == "bfloat16" or (self.precision == "auto" and short_by_default(device))
        return torch.autocast(device.type, torch.bfloat16, enabled=short)

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
        block: nn.Module | None = None,
    ) -> Clients:
        """Copy the lower segment for every client and add the networks that the defense needs.

        Args:
            lower: one client's lower segment (the layers up to the cut); all clients start with its weights.
            defense: the defense of every round, or a chain of defenses.
            domain: description of a record; the segment is tested on records of zeros.
            classes: number of classes, or of 0/1 labels per record.
            seed: seed of the frozen block, the defense's networks, and mixing ratios that are drawn once.
            protocol: the protocol; None for one client with one server.
            block: a transformer block that clients run, frozen, after a shuffle: the model's first block above the cut
                (`models.tokens.first_block`). A defense with frozen_block="first" needs it; with "auto" it is optional.

        Raises:
            UsageError: if the defense does not suit the protocol, the records or the segment's output, or if the
                segments of several clients fail together and one after another.
            ValueError: if the defense needs a frozen block, and `block` is missing or the output is not [N, T, D].
        """
        protocol = protocol or SplitProtocol()
        protocol.check_group(defense.name, defense.group, defense.drawn)
        if defense.group > 1 and protocol.gradient != "unicast" and not defense.keeps_positions:
            raise UsageError(
                f"{defense.name} moves tokens, so that one gradient for all members fits none; use gradient=unicast"
            )
        if protocol.updates == "message" and defense.group > 1 and defense.noise_fields:
            raise UsageError(
                f"updates=message sends {defense.group} messages of every record in a round, and no bound was derived "
                f"for the noise of {defense.name} in them; use updates=round"
            )
        if protocol.labels == "kept":
            _check_kept_labels(defense)
        if domain.name != "images" and (defense.images_only or defense.level == "input"):
            raise UsageError(
                f"{defense.name} works on images themselves, and these records are {domain.records}; choose a defense "
                "on smashed data"
            )
        training = lower.training
        with torch.no_grad():  # in eval mode, so that this call draws nothing and changes no running mean
            shape = tuple(sent_by(lower.eval(), domain.zeros(1)).shape[1:])
        lower.train(training)
        filter = defense.lower_filter(shape, seed)
        copies = protocol.active
        lowers = Stacked(lower, copies) if filter is None else Filtered(lower, filter, copies)
        companion = None
        if defense.frozen_block == "first" and block is None:
            raise ValueError("frozen_block=first needs the model's first block as `block`")
        if block is not None or defense.frozen_block is True:
            if len(shape) != 2:
                raise ValueError(f"frozen_block needs tokens [N, T, D], got shape {[1, *shape]}; cut elsewhere")
            block = block or frozen_block(shape[-1], seed)
        if isinstance(domain, Images) and (own := defense.companion(shape, domain.shape, seed)) is not None:
            companion = Stacked(own, protocol.active)
        clients = cls(lowers, defense, protocol, classes, block, companion, seed)
        clients._probe(domain)
        return clients

    @torch.no_grad()
    def _probe(self, domain: Domain) -> None:
        """Raise `UsageError` for segments that cannot be stacked, and for outputs that the defense cannot take."""
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
            raise UsageError(
                f"the lower segment fails for {self.lowers.copies} clients, together and one after another: "
                f"{one_line(error)}"
            ) from None
        self.train(training)

    def release(
        self,
        images: Tensor,
        labels: Tensor,
        generator: Generator,
        number: int = 0,
        lowers: Callable[[Tensor, Tensor | None], Tensor] | None = None,
        groups: Tensor | None = None,
    ) -> ClientForward:
        """Compute the forward pass of n clients in one round, differentiable in the lower segments' weights.

        Args:
            images: the batch of every client that sends, [n, B, C, H, W] in [0, 1].
            labels: labels, int64 [n, B], or 0 and 1 in [n, B, L] if each record has L labels.
            generator: the only source of randomness for groups and defense.
            number: the round's number, 0-based.
            lowers: a function that replaces the call of the stacked segments: (images [M, B, ...], the index of the
                client whose segment runs each batch, or None for batch i at client i) -> smashed data.
            groups: indices of the clients whose records are mixed, int64 [M, k]; None draws the round's groups.
        """
        groups = self.groups(number, generator) if groups is None else groups
        return self._forward(stages_of(self.defense), images, labels, generator, groups, lowers or self.lowers)

    def groups(self, number: int, generator: Generator) -> Tensor:
        """Form the mixing groups of round `number` (0-based): the indices of the clients mixed into each of M messages,
        int64 [M, k], as in `SplitProtocol.groups`; without mixing, k is 1.
        """
        if self.defense.group > 1:
            return self.protocol.groups(self.defense.group, number, generator)
        return torch.arange(self.protocol.active, device=generator.device).unsqueeze(1)

    def _forward(
        self,
        stages: Sequence[Defense],
        images: Tensor,
        labels: Tensor,
        generator: Generator,
        groups: Tensor,
        lowers: Callable[[Tensor, Tensor | None], Tensor],
    ) -> ClientForward:
        """Run the defense's steps on images, the lower segments, the steps on smashed data, and the server's steps."""
        sites, own = sites_of(stages), labels
        if soft := [stage.name for stage in stages if stage.soft_labels]:
            if labels.ndim > 2:
                raise UsageError(
                    f"{soft[0]} reads one label per record, and these records have several, or predict their own text; "
                    "choose a defense that leaves labels as they are"
                )
            labels = nn.functional.one_hot(labels, self.classes).float()
        made = Release(smashed=images, labels=labels)
        made, steps = self._run(sites.images, made, generator, groups)
        mixing = [stage.name for stage in sites.images if stage.group > 1]
        if mixing and self.lowers.by_record is not None:
            raise UsageError(
                f"{mixing[0]} mixes images of several clients before one lower segment, so that training cannot be "
                "private; use level=smashed, or leave out private=true"
            )
        smashed = lowers(made.smashed, groups[:, 0] if mixing else None)
        learned = smashed
        if isinstance(self.lowers, Filtered) and self.lowers.by_record is None:
            learned = self.lowers.filter_alone()
        penalty = self.defense.penalty(images, learned, None if self.companion is None else self._companion)
        if penalty is not None and self.lowers.by_record is not None:
            raise UsageError(
                f"{self.defense.name} adds a loss over whole batches, of which no record's part is known, so that "
                "training cannot be private; leave out private=true, or choose another defense"
            )
        made, more = self._run(sites.smashed, replace(made, smashed=smashed), generator, groups)
        if self.block is not None:
            m, b = made.smashed.shape[:2]
            made = replace(made, smashed=self.block(made.smashed.flatten(0, 1)).unflatten(0, (m, b)))
        before = replace(made, apart=None, apart_labels=None) if sites.server else made
        release, last = self._run(sites.server, before, generator, groups)
        mixed = any(stage.group > 1 for stage in (*sites.images, *sites.smashed))
        arrived_groups = groups if mixed else torch.arange(len(made.smashed), device=images.device).unsqueeze(1)
        arrived = made if made.labels is not labels else replace(made, labels=own)
        if sites.server and release.apart is not None:  # clients added noise, then the server mixed
            seats = groups.flatten()
            seat_of = seats.argsort()[len(seats) - len(made.smashed) :]  # empty places, -1, come first
            arrived = replace(arrived, smashed=release.apart.flatten(0, 1)[seat_of].to(made.smashed.dtype))
            if release.apart_labels is not None:
                arrived = replace(arrived, labels=release.apart_labels.flatten(0, 1)[seat_of])
        return ClientForward(
            smashed=smashed,
            labels=own,
            release=release,
            receipt=receipt_of((*steps, *map(self._borne_out, more), *last)),
            groups=groups,
            penalty=penalty,
            arrived=arrived if sites.server else release,
            arrived_groups=arrived_groups if sites.server else groups,
        )

    def _borne_out(self, step: StageReceipt) -> StageReceipt:
        """The receipt of one defense step; a shuffle claims a hidden order only if tokens hide their positions."""
        receipt = step.receipt
        if not isinstance(receipt, Permuted) or not receipt.hides_order:
            return step
        shown = True if self.counts_orders else None
        if self.defense.position_embedding:  # the model then embeds positions, whatever a user's own receipt says
            shown = False
        return replace(step, receipt=replace(receipt, hides_order=shown, other_tokens=self.other_tokens))

    def _run(
        self, stages: Sequence[Defense], made: Release, generator: Generator, groups: Tensor
    ) -> tuple[Release, tuple[StageReceipt, ...]]:
        once = any(stage.drawn == "once" for stage in stages)
        kept = Generator(made.smashed.device).manual_seed(derive(self.seed, "ratios")) if once else None
        return run(stages, made, generator, groups, kept)

    def _companion(self, smashed: Tensor) -> Tensor:
        """Apply each client's companion network (see `Defense.companion`) to the client's records in [n·B, ...]."""
        assert self.companion is not None
        guess: Tensor = self.companion(smashed.unflatten(0, (self.companion.copies, -1)))
        return guess.flatten(0, 1)

    def infer(self, images: Tensor, labels: Tensor, generator: Generator, *, noise_free: bool = False) -> Tensor:
        """Compute the defended smashed data [n, B, ...] of test images [n, B, C, H, W], B for each of n clients.

        Steps of the defense that mix clients or act in training only are left out. `noise_free` also leaves out noise,
        and steps that remove noise. The defense draws from `generator`.
        """
        stages = [stage for stage in stages_of(self.defense) if stage.at_inference and stage.group == 1]
        if noise_free:
            stages = [stage.noiseless() if stage.noise_fields else stage for stage in stages if not stage.denoises]
        if not stages:
            smashed: Tensor = self.lowers(images)
            return smashed
        alone = torch.arange(len(images), device=images.device).unsqueeze(1)
        return self._forward(stages, images, labels, generator, alone, self.lowers).release.smashed

    @torch.no_grad()
    def smashed_shape(self, domain: Domain) -> tuple[int, ...]:
        """Return the shape of one record's output of a lower segment, for records of `domain`, before the defense."""
        device = next(iter(self.parameters()), torch.zeros(())).device
        with seeded(device, 0):
            return tuple(self.lowers.copy(0).eval()(domain.zeros(1).to(device)).shape[1:])

    @torch.no_grad()
    def fitted(self, upper: nn.Module, domain: Domain, seed: int) -> nn.Module:
        """Add the defense's layers before and behind the server's segment `upper`, and return the whole.

        In front come an adapter with weights from `seed`, if the defense changes the shape of smashed data, and steps
        that remove noise. Behind come steps that act on logits. Raises `UsageError` if a step does not suit `upper`.
        """
        shape = self.smashed_shape(domain)
        adapter, head = self.defense.adapter(shape, seed), self.defense.head()
        if head is not None and own_loss(upper) is not None:
            raise UsageError(
                f"{self.defense.name} acts on logits, but the server's segment has a loss of its own; use variant=exact"
            )
        front = [*filter(None, [adapter]), *denoisers(stages_of(self.defense), upper)]
        parts = [*front, upper, *filter(None, [head])]
        return parts[0] if len(parts) == 1 else nn.Sequential(*parts)

    def client(self, number: int) -> nn.Module:
        """Make one module, for N records [N, ...], of the deterministic layers of client `number` (0-based): the lower
        segment, the deterministic parts of the defense around it (`known_forms`), and the frozen block.
        """
        sites = sites_of(stages_of(self.defense))
        front, behind = (known_forms(site, self.classes) for site in (sites.images, sites.smashed))
        parts = [*front, self.lowers.copy(number), *behind]
        if self.block is not None:
            return Behind(*parts, self.block)
        return parts[0] if len(parts) == 1 else nn.Sequential(*parts)

    def behind_lower(self, upper: nn.Module) -> nn.Module:
        """Make one module of the deterministic layers behind a lower segment: defense, frozen block and `upper`."""
        behind = known_forms(sites_of(stages_of(self.defense)).smashed, self.classes)
        parts = [*behind, *filter(None, [self.block])]
        return nn.Sequential(*parts, upper) if parts else upper


def _check_kept_labels(defense: Defense) -> None:
    """Raise `UsageError` for defense stages on the server's logits, loss or gradients, which labels=kept forbids."""
    for stage in stages_of(defense):
        if stage.head() is not None or type(stage).label_term is not Defense.label_term:
            raise UsageError(f"{stage.name} acts on the server's logits or loss, and with labels=kept it has neither")
        if stage.noise_fields and "answers" in (stage.effects or ()):
            raise UsageError(
                f"{stage.name} was accounted for a server that holds the labels; no bound was derived for gradients "
                "that clients send up with labels=kept"
            )
