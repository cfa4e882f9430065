"""A vertical split: several parties hold different columns of the same records, and the server joins their outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from privkit.constraints import Checked, Count
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.domains.tables.domain import Tables
from privkit.errors import UsageError
from privkit.models.base import SplitModel
from privkit.models.tables import Columns
from privkit.models.tokens import Centered
from privkit.torch_utils.seeded import seeded

Ranges = tuple[tuple[int, int], ...]  # the columns of one party, as pairs (first, end) with the end excluded


class Parties(nn.Module):
    """The parties' segments as one module: each reads its party's columns of a record; outputs are concatenated.
    `ranges` holds each party's columns, as pairs (first, end) with the end excluded.
    """

    def __init__(self, ranges: Sequence[Ranges], segments: Sequence[nn.Module]) -> None:
        super().__init__()
        self.ranges, self.segments = tuple(ranges), nn.ModuleList(segments)

    def forward(self, records: Tensor) -> Tensor:
        """Records [N, ..., columns] -> outputs [N, parties·width], party after party."""
        columns = [torch.cat([records[..., a:b] for a, b in own], -1) for own in self.ranges]
        return torch.cat([segment(part) for segment, part in zip(self.segments, columns, strict=True)], -1)

    def of(self, records: Tensor, numbers: Collection[int]) -> Tensor:
        """Copy records, with 0 in all columns except those of the parties `numbers`, counted from 0.

        >>> parties = Parties([((0, 2),), ((2, 4),)], [nn.Identity(), nn.Identity()])
        >>> parties.of(torch.ones(1, 4), [1])
        tensor([[0., 0., 1., 1.]])
        """
        known = torch.zeros_like(records)
        for a, b in (columns for number in numbers for columns in self.ranges[number]):
            known[..., a:b] = records[..., a:b]
        return known


def parties_of(lower: nn.Module) -> Parties | None:
    """The `Parties` inside a lower segment; None if there are none."""
    return next((part for part in lower.modules() if isinstance(part, Parties)), None)


class Join(nn.Module):
    """Joins the parties' outputs [N, parties·width]: leaves them concatenated, or adds them up to [N, width]."""

    def __init__(self, parties: int, aggregate: str) -> None:
        super().__init__()
        self.parties, self.aggregate = parties, aggregate

    def forward(self, sent: Tensor) -> Tensor:
        return sent if self.aggregate == "concatenate" else sent.unflatten(-1, (self.parties, -1)).sum(-2)


def _strip(channels: int, width: int) -> list[nn.Module]:
    """The three layers of a party for its strip of an image; the network can be cut behind each of them."""
    return [
        nn.Sequential(Centered(), nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)),
        nn.Sequential(nn.Flatten(), nn.Linear(32 * 16, width)),
    ]


def _shifted(strips: Sequence[Sequence[nn.Module]], maps: tuple[int, ...], cut: int) -> Parties:
    """Build each party's layers behind the cut, for the server: they read the party's vector as maps [C, H, W]."""
    size = prod(maps)
    ranges = [((size * number, size * (number + 1)),) for number in range(len(strips))]
    return Parties(ranges, [nn.Sequential(nn.Unflatten(1, maps), *strip[cut:]) for strip in strips])


@dataclass(frozen=True, kw_only=True)
class Vertical(Checked):
    """Vertical split learning: one segment per party; the server joins the parties' outputs and classifies them.

    Images are cut into strips from left to right, tables into runs of columns (dense and categorical ones together). If
    a table names its parties (`party_files`), each party holds the columns of its file. The smashed data are
    vectors, [N, parties·width] with cut=3. If the defense is `split_parts:parts=P` for P parties, `--parts part_1`
    audits the first party: its columns, its segment and its gradients.

    Attributes:
        parties: number of parties that hold columns; the server's side holds the labels.
        width: size of the vector to which each party's columns are mapped.
        hidden: units of the server's hidden layer.
        aggregate: how the server joins the outputs: "concatenate" or "sum"; in both cases it sees each party's output.
        cut: for images, the last layer that each party computes, 1 to 3: the first or second convolution, or the linear
            layer. The server computes the remaining layers before it joins the outputs, so the whole network is the
            same for each cut. With 1 or 2, a party sends its feature maps as one vector.

    Source: Vepakomma et al. 2018, "Split learning for health", §2, vertically partitioned data; for `cut`, "Revisiting
    label inference attacks in vertical federated learning" (arXiv 2603.18680), which proposes fewer layers at the
    parties as a defense of labels.

    >>> split = VERTICAL.build(Images(shape=(1, 8, 8)), 10, positions=True, seed=0)
    >>> split.lower(torch.rand(3, 1, 8, 8)).shape
    torch.Size([3, 64])
    """

    domain: ClassVar[str] = "any"
    quick_attacks: ClassVar[tuple[str, ...]] = ("ridge", "release_clustering")

    parties: Annotated[int, Ge(2), "one party is not a vertical split"] = 2
    width: Count = 32
    hidden: Count = 64
    aggregate: Literal["concatenate", "sum"] = "concatenate"
    cut: Annotated[int, Ge(1), Le(3)] = 3

    def build(self, domain: Domain, classes: int, *, positions: bool, seed: int) -> SplitModel:
        with seeded(torch.device("cpu"), seed):
            front: list[nn.Module] = []
            if isinstance(domain, Images):
                ranges, lowers, front = self._of_images(domain)
            elif isinstance(domain, Tables):
                ranges, lowers = self._of_table(domain)
            else:
                raise UsageError(f"vertical splits images and table rows, and these records are {domain.records}")
            joined = self.width * (self.parties if self.aggregate == "concatenate" else 1)
            upper = nn.Sequential(
                *front,
                Join(self.parties, self.aggregate),
                nn.ReLU(),
                nn.Linear(joined, self.hidden),
                nn.ReLU(),
                nn.Linear(self.hidden, classes),
            )
        return SplitModel(lower=Parties(ranges, lowers), upper=upper, hides_places=False)

    def _of_images(self, domain: Images) -> tuple[list[Ranges], list[nn.Module], list[nn.Module]]:
        channels, height, side = domain.shape
        runs = self._runs(side, "columns of pixels")
        if self.cut == 1 and side % self.parties:
            raise UsageError(
                f"cut=1 sends maps as wide as the strips, and parties={self.parties} cannot share {side} columns of "
                "pixels evenly; use cut=2, or a number of parties that divides them"
            )
        strips = [_strip(channels, self.width) for _ in runs]
        if self.cut == 3:
            return [(run,) for run in runs], [nn.Sequential(*strip) for strip in strips], []
        lowers: list[nn.Module] = [nn.Sequential(*strip[: self.cut], nn.Flatten()) for strip in strips]
        sides = (4, 4) if self.cut == 2 else (height, side // self.parties)
        return [(run,) for run in runs], lowers, [_shifted(strips, (16 * self.cut, *sides), self.cut)]

    def _of_table(self, domain: Tables) -> tuple[list[Ranges], list[nn.Module]]:
        if self.cut != 3:
            raise UsageError(f"cut={self.cut} is of a strip's layers, and columns of a table have one; leave cut out")
        dense, sizes = len(domain.dense), domain.sizes
        if domain.parties:
            held = self._held(domain.parties)
        else:
            held = [(run,) for run in self._runs(dense + len(sizes), "columns")]
        lowers: list[nn.Module] = []
        for ranges in held:
            own = [column for start, stop in ranges for column in range(start, stop)]
            columns = Columns(sum(c < dense for c in own), tuple(sizes[c - dense] for c in own if c >= dense), 8)
            lowers.append(nn.Sequential(columns, nn.Linear(columns.features, self.width)))
        return held, lowers

    def _held(self, parties: Sequence[int]) -> list[Ranges]:
        """The runs of neighboring columns that each party holds, given the party number of each column."""
        if (holders := max(parties) + 1) != self.parties:
            cure = f"use parties={holders}" if holders > 1 else "use another model, or give another party columns"
            raise UsageError(f"parties={self.parties} need as many holders of columns, not {holders}; {cure}")
        held: list[Ranges] = [()] * holders
        stop = 0
        for party, run in groupby(parties):
            start, stop = stop, stop + len(list(run))
            held[party] += ((start, stop),)
        return held

    def _runs(self, count: int, of: str) -> list[tuple[int, int]]:
        """Split `count` columns into one run per party; the first runs can have one column more than the others."""
        if count < self.parties:
            raise UsageError(f"parties={self.parties} need as many {of}, and a record has {count}")
        return [(int(part[0]), int(part[-1]) + 1) for part in torch.arange(count).tensor_split(self.parties)]


VERTICAL = Vertical()  # two parties, each with half of the columns
