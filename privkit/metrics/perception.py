"""The metrics that a user's own feature network adds to every reconstruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privkit.attacks.scores.image import Values
from privkit.errors import UsageError
from privkit.metrics.feature_networks import FeatureNetwork, feature_network
from privkit.metrics.perceptual import f_sim, f_sim_floors, identity, lpips, lpips_weights

_TRUNKS = ("alex", "vgg", "squeeze")
_PACKAGES = {"embedded": ("efficientnet_lite_pytorch",), "dlib": ("dlib",)}
"""Packages that compute a kind of network, beside torch, torchvision and timm."""


@dataclass(frozen=True, kw_only=True)
class Perception:
    """What reconstructions are looked at with, beside pixels.

    Attributes:
        network: for F-SIM and identification, or None.
        trunk: of LPIPS, or "".
    """

    network: FeatureNetwork | None = None
    trunk: str = ""

    @classmethod
    def of(cls, names: Sequence[str], device: torch.device) -> Perception:
        """Load what a user named.

        Args:
            names: at most one feature network (see `feature_network`) and one "lpips:alex", "lpips:vgg" or
                "lpips:squeeze".
            device: where it computes.

        Raises:
            UsageError: for two of a kind, or an unknown name.
            DataError: if weights or packages cannot be had.

        >>> Perception.of([], torch.device("cpu")).labels
        ()
        """
        check_names(names)
        trunks = [name.partition(":")[2] for name in names if name.startswith("lpips:")]
        networks = [feature_network(name, device) for name in names if not name.startswith("lpips:")]
        return cls(network=networks[0] if networks else None, trunk=trunks[0] if trunks else "")

    @property
    def labels(self) -> tuple[str, ...]:
        """Names with their weights' hash or version, for the row."""
        names = [] if self.network is None else [self.network.label]
        return tuple(names + ([f"lpips:{self.trunk} 0.1"] if self.trunk else []))

    def contents(self) -> dict[str, str]:
        """What was named -> the hash of its weights.

        Raises:
            DataError: if LPIPS or its weights cannot be had.
        """
        hashes = {}
        if self.network is not None:
            name, digest = self.network.label.rsplit(" ", 1)
            hashes[name] = digest
        if self.trunk:
            hashes[f"lpips:{self.trunk}"] = lpips_weights(self.trunk)
        return hashes

    def packages(self) -> set[str]:
        """Packages that compute the metrics, beside torch."""
        kind = "" if self.network is None else self.network.label.partition(":")[0]
        return set(_PACKAGES.get(kind, ())) | ({"lpips"} if self.trunk else set())

    def scores(self, truth: Tensor, guess: Tensor) -> dict[str, Values]:
        """Metric -> one value an image.

        Args:
            truth: [N, C, H, W] in [0, 1].
            guess: the same shape.
        """
        values: dict[str, Values] = {}
        if self.network is not None:
            values |= {"f_sim": f_sim(truth, guess, self.network), "identified": identity(truth, guess, self.network)}
        if self.trunk:
            values["lpips"] = lpips(truth, guess, self.trunk)
        return values

    def floors(self, truth: Tensor, labels: Tensor) -> str:
        """F-SIM of different originals, in words; nothing without a network."""
        if self.network is None:
            return ""
        floors = f_sim_floors(truth, labels, self.network)
        shown = ", ".join(f"{value:.3f} of {name.replace('_', ' ')}" for name, value in floors.items())
        return f"F-SIM of two different originals: {shown}"


def check_names(names: Sequence[str]) -> None:
    """Refuse two networks of a kind.

    Raises:
        UsageError: with what is allowed.
    """
    trunks = [name for name in names if name.startswith("lpips:")]
    if len(trunks) > 1 or len(names) - len(trunks) > 1:
        raise UsageError(f"features takes one network and one lpips:TRUNK at most, got {', '.join(names)}")
    if trunks and trunks[0].partition(":")[2] not in _TRUNKS:
        raise UsageError(f"the trunk of LPIPS must be {', '.join(_TRUNKS)}, got {trunks[0]!r}")
