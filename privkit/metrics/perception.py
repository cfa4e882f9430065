"""Scores reconstructions by feature networks and by a user's own metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor

from privkit.attacks.scores.image import Values
from privkit.domains.base import Batch
from privkit.metrics.feature_names import check_names, network_kind
from privkit.metrics.feature_networks import FeatureNetwork, feature_network
from privkit.metrics.own import ImageMetric, column
from privkit.metrics.own import values as own_values
from privkit.metrics.perceptual import (
    check_classifier,
    f_sim,
    f_sim_floors,
    identity,
    lpips,
    lpips_weights,
    recognized,
    recognized_floors,
    taught,
)

_PACKAGES = {"embedded": ("efficientnet_lite_pytorch",), "dlib": ("dlib",)}
"""Kind of a feature network -> the packages that compute it, besides torch, torchvision and timm."""


@dataclass(frozen=True, kw_only=True)
class Perception:
    """Networks and the user's own metrics that score reconstructions, in addition to pixel metrics."""

    network: FeatureNetwork | None = None  # feature network for F-SIM and identification; None computes neither
    trunk: str = ""  # trunk of LPIPS: "alex", "vgg" or "squeeze"; "" computes no LPIPS
    classifier: FeatureNetwork | None = None  # recognizes the classes of guesses; None computes no such score
    learns: bool = False  # whether `fitted` trains the classifier
    own: Mapping[str, ImageMetric] = field(default_factory=dict)  # label -> the user's own metric

    @classmethod
    def of(
        cls, names: Sequence[str], device: torch.device, own: Mapping[str, ImageMetric] = MappingProxyType({})
    ) -> Perception:
        """Load the networks that a user named, at most one of each kind, and keep the user's `own` metrics by label.

        Kinds are a feature network (see `feature_network`); "lpips:alex", "lpips:vgg" or "lpips:squeeze"; and
        "classifier" (trained here) or "classifier:PATH", a TorchScript file that maps images [N, 3, H, W] in [0, 1] to
        scores [N, L].
        """
        check_names(names)
        trunks = [name.partition(":")[2] for name in names if name.startswith("lpips:")]
        networks = [feature_network(name, device) for name in names if not network_kind(name)]
        paths = [name.partition(":")[2] for name in names if network_kind(name) == "classifier"]
        given = [feature_network(f"file:{path}", device) for path in paths if path]
        return cls(
            network=networks[0] if networks else None,
            trunk=trunks[0] if trunks else "",
            classifier=replace(given[0], label=given[0].label.replace("file:", "classifier:", 1)) if given else None,
            learns=paths == [""],
            own=own,
        )

    @property
    def directions(self) -> dict[str, bool]:
        """For each of the user's own metrics, by column, whether a higher value means a closer guess."""
        return {column(metric): metric.higher_is_closer for metric in self.own.values()}

    @property
    def recognizes(self) -> bool:
        """Whether a classifier scores the guesses."""
        return self.learns or self.classifier is not None

    def fitted(self, known: Batch, classes: int, seed: int) -> Perception:
        """Return a copy for the images of one seed. Its classifier is trained on `known`, the adversary's images; a
        classifier from a file is only checked. Raises `UsageError` if this classifier has another number of classes, or
        if records have several labels."""
        if self.learns:
            return replace(self, classifier=taught(known, classes, seed))
        if self.classifier is not None:
            check_classifier(self.classifier, known, classes)
        return self

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the networks and of the user's metrics, with the hash or version of a network's weights."""
        names = [one.label for one in (self.network, self.classifier) if one is not None]
        return (*names, *([f"lpips:{self.trunk} 0.1"] if self.trunk else []), *self.own)

    def contents(self) -> dict[str, str]:
        """Hash of each network's weights by name; a classifier trained here is left out, as seed and images fix it."""
        hashes = {}
        for loaded in (self.network, None if self.learns else self.classifier):
            if loaded is not None:
                name, digest = loaded.label.rsplit(" ", 1)
                hashes[name] = digest
        if self.trunk:
            hashes[f"lpips:{self.trunk}"] = lpips_weights(self.trunk)
        return hashes

    def packages(self) -> set[str]:
        """The packages that compute the metrics, besides torch, torchvision and timm."""
        kind = "" if self.network is None else self.network.label.partition(":")[0]
        return set(_PACKAGES.get(kind, ())) | ({"lpips"} if self.trunk else set())

    def scores(self, truth: Tensor, guess: Tensor, labels: Tensor | None = None) -> dict[str, Values]:
        """Values [N] of each metric, for originals and guesses [N, C, H, W] in [0, 1]. The key "recognized" exists only
        if `labels` [N] are given and a classifier is used."""
        values: dict[str, Values] = {}
        if self.network is not None:
            values |= {"f_sim": f_sim(truth, guess, self.network), "identity": identity(truth, guess, self.network)}
        if self.trunk:
            values["lpips"] = lpips(truth, guess, self.trunk)
        if self.classifier is not None and labels is not None:
            values["recognized"] = recognized(labels, guess, self.classifier)
        return values | {column(metric): own_values(metric, truth, guess) for metric in self.own.values()}

    def floors(self, truth: Tensor, labels: Tensor) -> tuple[str, ...]:
        """Sentences with reference values: the F-SIM of different originals, and the share of recognized originals."""
        sentences = []
        if self.network is not None:
            floors = f_sim_floors(truth, labels, self.network)
            shown = ", ".join(f"{value:.3f} of {name.replace('_', ' ')}" for name, value in floors.items())
            sentences.append(f"F-SIM of two different originals: {shown}")
        if self.classifier is not None:
            shares = recognized_floors(truth, labels, self.classifier)
            sentences.append(
                f"recognized: {shares['originals']:.3f} of the originals themselves, and "
                f"{shares['other_originals']:.3f} if each guess is another original"
            )
        return tuple(sentences)
