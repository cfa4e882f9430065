"""Gradient perturbation: the server, who holds the labels, adds noise to the gradients that it sends back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from privkit.accountants import answer, validate
from privkit.accountants.base import Certificate
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise
from privkit.accountants.spec.sensitivity import Known
from privkit.defenses.base import ONE_RELEASE, Defense, Release, ReleaseCount
from privkit.defenses.none import require_messages

NOT_COVERED = (
    "this covers the labels that the server holds, against whoever sees the gradients that come back; it says nothing "
    "about images or smashed data, which are released as they are"
)


@dataclass(frozen=True, kw_only=True)
class GradPerturbReceipt:
    """What the server does to every gradient of the run.

    Attributes:
        law: of the noise.
        noise: standard deviation σ, or Laplace's scale b, > 0.
        clip: norm to which the gradient of every image was clipped; None if it was not.
    """

    law: Literal["gaussian", "laplace"]
    noise: float
    clip: float | None

    def certificate(self, release_count: ReleaseCount = ONE_RELEASE) -> Certificate:
        """Charge every gradient of the run, of all images, to any one label.

        A label does not stay in the gradient of its own image. It changes the server's weights, by which all later
        gradients are made, and batch normalization carries it to its neighbors at once. So every gradient is taken to
        move as far as the clipping lets it: R = rounds·batch·clients gradients of sensitivity 2·clip each. That holds
        whatever the server computes, even if all labels change.

        Source: the Gaussian or Laplace mechanism, adaptively composed (accountants); derived for this release.
        """
        if self.clip is None:
            return Certificate(
                kind="nothing",
                statement=f"nothing is proven: no clip= bounds a gradient; {NOT_COVERED}",
                source="by definition",
            )
        released = release_count.rounds * release_count.batch_size * release_count.clients
        norm: Literal["l1", "l2"] = "l2" if self.law == "gaussian" else "l1"
        mechanism = SplitMechanism(
            smashed=Known(value=2 * self.clip, relation="replace_one", norm=norm),
            noise=Noise(law=self.law, smashed=self.noise),
            lower_model="frozen",  # what carries over is the server's state, and the sensitivity allows for any
            rounds=released,
        )
        found = answer.epsilon(mechanism, release_count.delta, tight=False)
        if found.kind == "nothing":
            return Certificate(
                kind="nothing",
                statement=f"nothing is proven: no ε follows from {released} gradients with this noise; {NOT_COVERED}",
                source=found.source,
            )
        return Certificate(
            kind="differential_privacy",
            statement=(
                f"the gradients sent back are ({found.epsilon:.4g}, {release_count.delta:g})-DP in the labels, for the "
                f"replacement of one label or of all; {NOT_COVERED}"
            ),
            epsilon=found.epsilon,
            delta=release_count.delta,
            method=found.method,
            order=found.order,
            at_grid_edge=found.at_grid_edge,
            relation="replace_one",
            unit="record",
            covers="labels",
            quantities={"gradients": float(released), "sensitivity": 2 * self.clip},
            assumptions=(
                f"all {released} gradients of the run are seen (rounds × batch × clients), and each may move by 2·clip "
                f"in {norm.upper()}, since the server's weights carry a label into every later gradient",
                "the server releases nothing else: neither its segment nor losses or accuracies on these labels",
                "the labels stay with the server, and the noise is fresh and secret",
            ),
            source=f"{found.source}; clipped as in Abadi et al. 2016, here for gradients at the cut",
            versions=found.versions,
        )


@dataclass(frozen=True, kw_only=True)
class GradPerturb(Defense):
    """Noise on the cut-layer gradient against inference of labels; (ε, δ)-DP in the labels with `clip`, else nothing.

    The server protects its own labels, so its doing it earns credit for those, and none for the clients' data.

    Attributes:
        law: "gaussian" or "laplace".
        noise: standard deviation σ (or scale b) on every coordinate, > 0, in units of the gradient that is sent: that
            of a mean over a batch shrinks with the batch.
        clip: largest L2 norm (L1 for Laplace) of one image's gradient, > 0; longer ones are shortened before the noise.
            None leaves them.
        frozen_block: append a frozen transformer block behind the smashed data.

    Source: Yang et al. 2022, "Differentially private label protection in split learning", the plain perturbation of
    gradients; the accounting is privkit's, because the server's weights here learn from unperturbed labels.
    """

    name: ClassVar[str] = "grad_perturb"
    noise_fields: ClassVar[tuple[str, ...]] = ("noise",)
    applied_by = "server"

    law: Literal["gaussian", "laplace"] = "gaussian"
    noise: float = 1e-3
    clip: float | None = None
    frozen_block: bool = False

    def __post_init__(self) -> None:
        validate.choice("law", self.law, ("gaussian", "laplace"))
        validate.real("noise", self.noise, above=0)
        if self.clip is not None:
            validate.real("clip", self.clip, above=0)

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, GradPerturbReceipt]:
        """Release the smashed data as they are: what is protected comes back the other way.

        Raises:
            ValueError: if `smashed` has no axis of messages and images.

        >>> z = torch.rand(1, 2, 4, 3)
        >>> GradPerturb().apply(z, torch.zeros(1, 2), torch.Generator())[0].smashed is z
        True
        """
        require_messages(self.name, smashed)
        receipt = GradPerturbReceipt(law=self.law, noise=self.noise, clip=self.clip)
        return Release(smashed=smashed, labels=labels), receipt

    def on_gradient(self, gradient: Tensor, generator: Generator) -> Tensor:
        """Clip the gradient of every image, then add noise to every coordinate; in float64, rounded at the end.

        Args:
            gradient: [M, B, ...].
            generator: the only source of randomness, on its device.

        >>> g = GradPerturb(noise=1e-9, clip=1.0).on_gradient(torch.full((1, 1, 4), 3.0), torch.Generator())
        >>> round(g.norm().item(), 6)
        1.0
        """
        exact, shape, device = gradient.double(), gradient.shape, gradient.device
        if self.clip is not None:
            norm = torch.linalg.vector_norm(exact.flatten(2), ord=2 if self.law == "gaussian" else 1, dim=2)
            factor = self.clip / norm.clamp_min(self.clip)
            exact = exact * factor.view(*factor.shape, *[1] * (gradient.ndim - 2))
        if self.law == "gaussian":
            noise = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
        else:
            u = 2 * torch.rand(shape, generator=generator, device=device, dtype=torch.float64) - 1
            noise = -u.sign() * torch.log1p(-u.abs().clamp_max(1 - 2**-53))  # u = −1 occurs, once in 2⁵³
        return (exact + self.noise * noise).to(gradient.dtype)
