"""Label inference by similarity: records of one label have similar releases and similar gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from privkit.attacks.base import Mounting, NamingAttack, NotApplicable, Scores, Session
from privkit.attacks.goals.labels import Epoch, LabelObservation, one_against_rest
from privkit.attacks.returned import returned_gradients
from privkit.constraints import Count, Whole

_MOST_STEPS = 100
_STARTS = 10  # starts of k-means without seeds
_NAMINGS = 50  # starts of the quadratic assignment


@dataclass(frozen=True, kw_only=True)
class ReleaseClustering(NamingAttack):
    """Infer labels by k-means clusters of gradients or smashed data, one for each label.

    A few records with known labels start each cluster and give it its label. The adversary is passive: a client without
    labels, an eavesdropper on the client's link, or the server of a U-shape (where clients keep the last layer). It
    knows the labels of a few records. With named_by=likeness it knows none, but has its own labeled images: it assumes
    that distances between clusters of releases resemble distances between the images of their labels.

    Attributes:
        positive: the label, an integer ≥ 0, whose records get the highest scores.
        on: "gradient" for the direction of the returned gradient (cosine similarity), "line" for this direction up to
            the sign (the defense `max_norm` does not change the line), or "smashed" for the smashed data (Euclidean
            distance).
        named_by: how clusters get their labels: "labels", by known labels; or "likeness", by the assignment under which
            the sizes of clusters and the distances between their mean releases agree best with the adversary's images
            (quadratic assignment). Two labels with equal shares and similar distances cannot be distinguished.
        labeled: number ≥ 1 of records of each label whose label the adversary knows; not used with named_by=likeness.
        epoch: the attacked epoch of training: a number from 0, or from the end (−1 is the last); "pooled" for all
            together, "every" for each by itself. Gradients reveal labels best in the first epoch, while the server's
            predictions are uncertain; smashed data reveal them best in the last epoch.

    Source: Liu et al. 2024, "Similarity-based label inference attack against training and inference of split learning"
    (arXiv 2203.05222), first published as Liu and Lyu 2022, "Clustering label inference attack against practical split
    learning"; Basu et al. 2002 for k-means with seeds; Dhillon et al. 2003, "Diametrical clustering", for lines. Naming
    by likeness is privkit's own, with the solver of Vogelstein et al. 2015, "Fast approximate quadratic programming for
    graph matching".
    """

    name: ClassVar[str] = "release_clustering"
    uses: ClassVar[frozenset[str]] = frozenset({"label_shares", "releases"})

    positive: Whole = 1
    on: Literal["gradient", "line", "smashed"] = "gradient"
    named_by: Literal["labels", "likeness"] = "labels"
    labeled: Count = 1
    epoch: Epoch = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.named_by == "likeness" and self.on == "line":
            raise ValueError("named_by=likeness starts clusters without labels, which on=line needs; use on=gradient")

    @property
    def needs(self) -> frozenset[str]:
        """Name the required fields: known labels or, with named_by=likeness, the adversary's labeled images."""
        if self.named_by == "likeness":
            return frozenset({"other_images", "other_labels"})
        return frozenset({"known_rows", "known_labels"})

    @property
    def mounting(self) -> Mounting[LabelObservation, Scores]:
        return Mounting(labeled=self.labeled if self.named_by == "labels" else 0, gradients=self.on != "smashed")

    def run(self, observation: LabelObservation, generator: Generator, session: Session | None = None) -> Scores:
        rows, examples = self._rows(observation)
        if self.named_by == "likeness":
            seeds, labels = self._alike(rows, examples, observation, generator)
        else:
            seeds, labels = seeds_among(examples, observation, self.name)
        shares = observation.label_shares
        count = int(labels.max()) + 1 if shares is None else len(shares)
        found = cluster_distances(
            rows, seeds, labels, max(2, count), cosine=self.on != "smashed", signed=self.on != "line"
        )
        return one_against_rest(-found, self.positive, examples)

    def _rows(self, observation: LabelObservation) -> tuple[Tensor, Tensor]:
        if self.on != "smashed":
            rows, _, examples = returned_gradients(self.name, observation.views)
            return rows, examples
        rows = torch.cat([view.smashed.flatten(1).float() for view in observation.views])
        return rows, torch.arange(len(rows), device=rows.device)

    def _alike(
        self, rows: Tensor, examples: Tensor, observation: LabelObservation, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """The index of the row nearest to each cluster's center, and each cluster's label, both int64 [L].

        Labels are assigned so that the sizes of clusters and the distances between them agree best with those of the
        adversary's own images.
        """
        images, labels = observation.other_images, observation.other_labels
        if images is None or labels is None or images.ndim != 4 or labels.ndim != 1:
            raise NotApplicable("release_clustering:named_by=likeness needs images of its own with one label each")
        names, of_own = labels.cpu().unique(return_inverse=True)
        sent = observation.releases
        sent = torch.cat([view.smashed for view in observation.views]) if sent is None else sent
        directions = rows if self.on == "smashed" else nn.functional.normalize(rows, dim=1)
        if len(directions.unique(dim=0)) < len(names):
            raise NotApplicable(f"{len(names)} labels need at least as many different rows")
        amid, of_row = _clusters(directions.double().cpu().numpy(), len(names), generator)
        named = _named(
            _layout(sent[examples].flatten(1).double().cpu().numpy(), of_row, len(names)),
            _layout(images.flatten(1).double().cpu().numpy(), of_own.numpy(), len(names)),
            generator,
        )
        return torch.from_numpy(amid).to(rows.device), names[torch.from_numpy(named)].to(rows.device)


def _clusters(rows: NDArray[np.float64], count: int, generator: Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """k-means without seeds: the row nearest to each center, [L], and the cluster of each row, [N]."""
    from sklearn.cluster import KMeans  # takes a second to load

    seed = int(torch.randint(2**31, (1,), generator=generator))
    fitted = KMeans(count, n_init=_STARTS, random_state=seed).fit(rows)
    return fitted.transform(rows).argmin(0), fitted.labels_


def _layout(rows: NDArray[np.float64], groups: NDArray[Any], count: int) -> NDArray[np.float64]:
    """Describe L groups of rows by the distances between their means and by their sizes, as one matrix [L, L].

    Distances are divided by their mean. The diagonal holds the sizes, divided by the mean size. The mean of few rows
    deviates by chance, which increases its distances; the expected squared deviation is subtracted.
    """
    from scipy.spatial.distance import cdist

    sizes = np.bincount(groups, minlength=count)
    means = np.stack([rows[groups == group].mean(0) for group in range(count)])
    spread = np.bincount(groups, ((rows - means[groups]) ** 2).sum(1), count) / np.maximum(1, sizes - 1) / sizes
    apart = np.sqrt(np.maximum(0, cdist(means, means, "sqeuclidean") - spread[:, None] - spread))
    np.fill_diagonal(apart, 0)
    layout: NDArray[np.float64] = apart / max(apart.sum() / max(1, count * (count - 1)), 1e-300)
    return layout + np.diag(count * sizes / sizes.sum())


def _named(clusters: NDArray[np.float64], labels: NDArray[np.float64], generator: Generator) -> NDArray[Any]:
    """The label of each cluster, [L], by the matching under which the layouts of clusters and labels agree best."""
    from scipy.optimize import quadratic_assignment

    draws = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
    options = {"maximize": True, "P0": "randomized", "rng": draws}
    tried = [quadratic_assignment(clusters, labels, method="faq", options=options) for _ in range(_NAMINGS)]
    best = max(tried, key=lambda one: one.fun).col_ind
    guess = np.stack([np.arange(len(best)), best], 1)
    options = {"maximize": True, "partial_guess": guess, "rng": draws}
    named: NDArray[Any] = quadratic_assignment(clusters, labels, method="2opt", options=options).col_ind
    return named


def seeds_among(examples: Tensor, observation: LabelObservation, attack: str) -> tuple[Tensor, Tensor]:
    """Find the rows with known labels among `examples`: their positions and their labels, both int64 [K]. Raises
    `NotApplicable` for fewer than two different labels."""
    known, labels = observation.known_rows, observation.known_labels
    if known is None or labels is None:
        raise NotApplicable(f"{attack} needs some rows with known labels (LabelObservation)")
    row, seed = (examples.cpu().unsqueeze(1) == known.cpu()).nonzero(as_tuple=True)
    labels = labels.cpu()[seed].to(examples.device)
    if len(labels.unique()) < 2:
        raise NotApplicable(f"{attack} needs a record with a known label of two labels or more, got {labels.tolist()}")
    return row.to(examples.device), labels


def cluster_distances(
    rows: Tensor, seeds: Tensor, labels: Tensor, count: int, *, cosine: bool, signed: bool = True
) -> Tensor:
    """Distances [N, L] of rows [N, F] to L = `count` clusters, one for each label, that k-means finds.

    The rows `seeds`, int64 [K], have the known `labels`, int64 [K]. With `cosine`, directions are compared (spherical
    k-means); unless `signed`, a direction equals its opposite. A label without a seed has no cluster; its distances are
    the largest distance of any row to a cluster.
    """
    named, of = labels.unique(return_inverse=True)
    rows = nn.functional.normalize(rows, dim=1) if cosine else rows
    firsts = rows[seeds] if signed else _along(rows[seeds], rows[seeds][[int((of == one).nonzero()[0]) for one in of]])
    centers = _centers(firsts, of, len(named), cosine)
    nearest = torch.full_like(rows[:, 0], -1, dtype=torch.int64)
    for _ in range(_MOST_STEPS):
        before, nearest = nearest, _apart(rows, centers, signed).argmin(1)
        nearest[seeds] = of
        if nearest.equal(before):
            break
        centers = _centers(rows if signed else _along(rows, centers[nearest]), nearest, len(named), cosine)
    to_centers = _apart(rows, centers, signed)
    found = to_centers.max().expand(len(rows), count).clone()
    found[:, named] = to_centers
    return found


def _apart(rows: Tensor, centers: Tensor, signed: bool) -> Tensor:
    """Distances [N, L] of rows to centers [L, F]; unless `signed`, to the nearer of a center and its opposite."""
    return torch.cdist(rows, centers) if signed else (2 - 2 * (rows @ centers.T).abs()).clamp_min(0).sqrt()


def _along(rows: Tensor, others: Tensor) -> Tensor:
    """Reverse each row that points against its partner in `others`."""
    return torch.where((rows * others).sum(1, keepdim=True) < 0, -rows, rows)


def _centers(rows: Tensor, groups: Tensor, count: int, cosine: bool) -> Tensor:
    sums = rows.new_zeros(count, rows.shape[1]).index_add_(0, groups, rows)
    return nn.functional.normalize(sums, dim=1) if cosine else sums / groups.bincount(minlength=count).unsqueeze(1)
