"""Attacks recorded releases without an audit: returns guesses, control experiments, and scores if truth is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import QueryResult, View
from privkit.attacks.goals import goal_of
from privkit.attacks.goals.control import Control
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.goals.reconstruct_controls import controls as control_experiments
from privkit.attacks.outputs import BadOutput, guesses_of
from privkit.audit.scoring import check_guesses, scored, summarise
from privkit.domains.images.domain import Images
from privkit.errors import Misbehaved, UsageError
from privkit.parts.registry import parse
from privkit.reports import gallery, html
from privkit.reports.schema import Metrics
from privkit.reports.tables import Table, interval
from privkit.settings.budgets import BUDGETS
from privkit.settings.resolve import budgeted
from privkit.shared.measures import floor_title

_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """Holds what an attack on recorded releases guessed, and how good the guesses are.

    Attributes:
        guess: N reconstructed images, float [N, C, H, W] in [0, 1], in the order of the releases: one image for each
            released row, or k consecutive images if the attack guesses k mixed images per row.
        result: the attack's own output, with the same images, the attack's training curve and, if a defense shuffles
            tokens, the order that the attack found.
        controls: outcomes of control experiments, in which the attack must succeed on easy data and fail on noise.
            Empty if they are switched off, if there are no auxiliary images, or if the attack makes a constant guess.
        scores: how close the guesses are to the true images: alignment -> metric (such as "mse") -> value with
            interval. The alignment "matched" first assigns each round's guesses to its images in the best way;
            "unaligned" compares guess i with image i. Empty without `truth`.
        floors: the same scores for constant guesses, such as the mean image: guess -> alignment -> metric -> value.
        truth: the true images [N, C, H, W]; None if they are not known.
    """

    guess: Tensor
    result: Reconstruction
    controls: tuple[Control, ...]
    scores: dict[str, Metrics]
    floors: dict[str, dict[str, Metrics]]
    truth: Tensor | None

    def table(self) -> Table:
        """Tabulate the "unaligned" scores: one line for the attack and one for each constant guess, one column for each
        metric. Without the truth, the table is empty.
        """
        lines = {"attack": self.scores, **{floor_title(name): floor for name, floor in self.floors.items()}}
        names = list(self.scores.get("unaligned", {}))
        found = {line: scores["unaligned"] for line, scores in lines.items() if scores}
        rows = tuple((line, *(interval(scores[name]) for name in names)) for line, scores in found.items())
        headers = ("guess", *(name.replace("_", " ").upper() for name in names))
        return Table(headers=headers, rows=rows, floor=tuple(row[0] != "attack" for row in rows))

    def _repr_html_(self) -> str:
        first = [images[:_SHOWN].detach().cpu() for images in (self.truth, self.guess) if images is not None]
        shown = [(images.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy() for images in first]
        strip = gallery.strip(shown)
        told = "; ".join(control.detail for control in self.controls)
        return html.html_table(self.table(), told) + html.html_picture(strip, "records, and the guesses at them")


def attack(
    views: Sequence[View | Tensor],
    mounted: str | Mapping[str, Any] = "black_box",
    *,
    auxiliary: Tensor | None = None,
    auxiliary_labels: Tensor | None = None,
    query: Callable[[Tensor], Tensor] | None = None,
    lower: nn.Module | None = None,
    block: nn.Module | None = None,
    upper: nn.Module | None = None,
    image_shape: tuple[int, int, int] | None = None,
    truth: Tensor | None = None,
    controls: bool = True,
    seed: int = 0,
) -> Attacked:
    """Run an attack that reconstructs images from recorded releases (smashed data), and score its guesses.

    Args:
        views: one entry for each round (a batch of B images that was sent): the released tensor, [B, T, D] (T tokens of
            D numbers), [B, C, H, W] (feature maps) or [B, D] (vectors); or a `View` if the adversary sees more.
        mounted: an attack that reconstructs images, as on the command line: "black_box:epochs=20". If it gives no
            number of epochs, the attack trains as long as under the command line's `--budget small`.
        auxiliary: the adversary's M own images, [M, C, H, W] in [0, 1].
        auxiliary_labels: labels of the auxiliary images, int64 [M].
        query: the defended client as a function: images [B, C, H, W] -> their releases, in the same order.
        lower: the client's segment of the network, up to the cut: images -> smashed data. White-box attacks need it.
        block: a public block that the client runs after the defense, on each released row alone: tokens [B, T, D] ->
            [B, T, D]. Jigsaw attacks and `drag_reorder` undo this block.
        upper: the server's segment of the network: smashed data -> logits.
        image_shape: (C, H, W) of the private images; None takes the shape of `auxiliary` or `truth`.
        truth: the N private images, [N, C, H, W] in [0, 1], in the order of the releases; they are used for scores
            only, not by the attack.
        controls: whether to run control experiments, in which the attack must succeed on easy data and fail on noise.
        seed: the seed of the attack's random numbers and of the control experiments.

    Returns:
        The guesses, the outcomes of the control experiments and, if `truth` is given, the scores of the guesses and of
        constant guesses.

    Raises:
        UsageError: if the attack does not exist or reconstructs no images, or if shapes do not fit.
        NotApplicable: if the attack needs an argument that is not given; the message names it.
        Misbehaved: if the attack returns no valid images.

    >>> draws = Generator().manual_seed(0)
    >>> private, own = torch.rand(10, 1, 8, 8, generator=draws), torch.rand(40, 1, 8, 8, generator=draws)
    >>> lower = nn.Flatten()
    >>> found = attack([lower(private[:5]), lower(private[5:])], "white_box", auxiliary=own, lower=lower, truth=private)
    >>> found.scores["unaligned"]["mse"].value < 0.01 < found.floors["mean_image"]["unaligned"]["mse"].value
    True
    >>> [control.passed for control in found.controls]
    [True, True]
    """
    spec = budgeted(parse("attacks", mounted), BUDGETS["small"]).spec
    if not {"images", "any"} & set(goal_of(spec).reads(spec)):
        raise UsageError(
            f"privkit.attack reconstructs images, and {spec.name} does not; name another attack, or mount this one by "
            "its goal in privkit.attacks.goals"
        )
    known = next((tuple(images.shape[1:]) for images in (auxiliary, truth) if images is not None), image_shape)
    if known is None or len(known) != 3:
        raise UsageError(f"privkit.attack needs the shape (C, H, W) of the images, got {known}; give image_shape")
    shape = (known[0], known[1], known[2])
    recorded = [one if isinstance(one, View) else View(round=number, smashed=one) for number, one in enumerate(views)]
    if not recorded:
        raise UsageError("privkit.attack needs at least one recorded release, got none")
    rows = sum(len(view.smashed) for view in recorded)
    if truth is not None and (truth.shape[1:] != shape or len(truth) != rows):
        raise UsageError(f"truth must be [{rows}, {', '.join(map(str, shape))}], got {list(truth.shape)}")
    observation = ImageObservation(
        image_shape=shape,
        batch_size=len(recorded[0].smashed),
        views=recorded,
        auxiliary=auxiliary,
        auxiliary_labels=auxiliary_labels,
        query=None if query is None else _asked(query),
        lower=lower,
        block=block,
        upper=upper,
    )
    truth = None if truth is None else truth.clone()  # the attack may change its images in place
    found = spec.run(observation, Generator().manual_seed(seed))
    several = isinstance(found, Reconstruction) and len(found.images) != rows  # several images per row
    try:
        result = guesses_of(spec, found, len(found.images) if several else rows, shape)
    except BadOutput as error:
        raise Misbehaved(str(error)) from None
    if not several:
        check_guesses(spec.name, Images(shape=shape), result.images)
    checked = controls and auxiliary is not None and not spec.mounting.ignores_views
    scores, floors = dict[str, Metrics](), dict[str, dict[str, Metrics]]()
    if truth is not None:
        scores = _scores(truth, result.images, observation)
        for name in ["mid_grey"] if auxiliary is None else ["mid_grey", "mean_image"]:
            constant = parse("attacks", name).spec.run(observation, Generator().manual_seed(seed))
            floors[name] = _scores(truth, constant.images, observation)
    return Attacked(
        guess=result.images,
        result=result,
        controls=control_experiments(spec, observation, seed) if checked else (),
        scores=scores,
        floors=floors,
        truth=truth,
    )


def _asked(query: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Generator], QueryResult]:
    @torch.no_grad()
    def ask(own: Tensor, draws: Generator) -> QueryResult:
        members = torch.arange(len(own), device=own.device).unsqueeze(1)
        return QueryResult(view=View(round=0, smashed=query(own)), members=members)

    return ask


def _scores(truth: Tensor, guess: Tensor, observation: ImageObservation) -> dict[str, Metrics]:
    domain = Images(shape=observation.image_shape)
    return summarise(scored(domain, truth.cpu(), guess.cpu(), observation.batch_size))
