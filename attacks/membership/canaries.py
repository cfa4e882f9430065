"""Attack on canaries: decide which of two known contents is in a released row, or in a returned gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from privkit.attacks.base import Attack, Mounting, NotApplicable, Scores, Session
from privkit.attacks.goals.distinguish import CanaryObservation
from privkit.attacks.returned import returned_gradients
from privkit.constraints import Checked, Positive


def likelihood_ratio(observed: Tensor, present: Tensor, absent: Tensor, sigma: float = 1.0) -> Tensor:
    """ln p(row | canary) − ln p(row | its counterpart) for each of K canaries, float64 [K], under Gaussian noise of σ.

    The counterpart is sent if the canary is not inserted. All tensors are [K, ...]; `present` and `absent` are the
    noise-free rows or gradients, and `sigma` is the noise's standard deviation. The log-ratio of several rounds is the
    sum over the rounds. The one-run audit of ε uses only the order of the scores. Under Gaussian noise of any σ this is
    the order of the best test; under other noise the scores are valid, but not the best.

    Source: Neyman and Pearson 1933; canaries that point in known directions: Andrew et al. 2023, "One-shot empirical
    privacy estimation", and Steinke et al. 2023.
    """
    if not observed.shape == present.shape == absent.shape:
        shapes = ", ".join(str(list(values.shape)) for values in (observed, present, absent))
        raise ValueError(f"observed, present and absent must have one shape, got {shapes}")
    row, a, b = (values.detach().double().flatten(1) for values in (observed, present, absent))
    return ((a - b) * (row - (a + b) / 2)).sum(1) / sigma**2


@dataclass(frozen=True, kw_only=True)
class Canaries(Checked, Attack[CanaryObservation, Scores]):
    """Score canaries for an audit of ε in one run, by log-likelihood ratios, summed over all times they were sent.

    A canary is a record that was inserted or not by a coin flip; the score is higher if it was inserted.

    Attributes:
        on: the observed data: "smashed", the released rows of smashed data, or "gradient", the returned gradients at
            the cut.
        sigma: standard deviation > 0 of the defense's noise; it scales the scores and does not change their order.

    Source: Steinke, Nasr and Jagielski 2023, §5 (white-box canaries), applied to the data that cross the cut.
    """

    name: ClassVar[str] = "canaries"
    goal: ClassVar[str] = "distinguish"
    needs: ClassVar[frozenset[str]] = frozenset({"rows", "present", "absent"})
    uses: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[Mounting[CanaryObservation, Scores]] = Mounting()

    on: Literal["smashed", "gradient"] = "smashed"
    sigma: Positive = 1.0

    def run(self, observation: CanaryObservation, generator: Generator, session: Session | None = None) -> Scores:
        views = observation.views
        rows, present, absent = observation.rows, observation.present, observation.absent
        if self.on == "gradient":
            values, _, at = returned_gradients(self.name, views)
        else:
            values = torch.cat([view.smashed.flatten(1) for view in views])
            at = torch.arange(len(values), device=values.device)
        place = torch.full((sum(len(view.smashed) for view in views),), -1, device=at.device)
        place[at] = torch.arange(len(at), device=at.device)
        if int(rows.min()) < 0 or int(rows.max()) >= len(place):
            raise NotApplicable(f"canaries were sent in rows that are not among the {len(place)} rows of the views")
        held = place[rows]
        if int(held.min()) < 0:
            raise NotApplicable("no gradient came back for some rows that held canaries")
        times, count = rows.shape
        sides = [side.reshape(-1, count, values.shape[1]).expand(times, -1, -1) for side in (present, absent)]
        ratios = torch.zeros(count, dtype=torch.float64, device=values.device)
        for time in range(times):  # one by one: all at once would be a copy of the whole run in float64
            ratios += likelihood_ratio(values[held[time]], sides[0][time], sides[1][time], self.sigma)
        return Scores(values=ratios, examples=torch.arange(count, device=ratios.device))
