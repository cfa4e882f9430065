"""Tests a stage's receipt (its report on what it did) against releases of artificial data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod, sqrt
from typing import cast, get_args

import numpy as np
import torch
from scipy.special import chdtrc
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from privkit.accountants.spec.parts import NoMixing
from privkit.defenses.base import Defense, Effect, Receipt, Release, is_own, take_rows
from privkit.defenses.charge import Noised
from privkit.defenses.compile import StageReceipt, run
from privkit.defenses.receipts import Mixed, Nothing, Permuted
from privkit.defenses.residual import LEVEL, Law, refuted_by, unlike
from privkit.shared.array import Array

CLASSES = 5
SHAPES = ((16, 4), (4, 8, 8), (16,))  # smashed data of one record: tokens, a feature map, a vector
IMAGE = (3, 28, 28)
BATCH = 4  # records of a message if the run's batch size is unknown


class TrialRounds:
    """Runs defense stages on rounds of artificial data from M clients with B records each.

    All stages take images, or all take smashed data; stages that mix get groups of these clients. `lead` is (M, B), and
    `size` is the number of values in one round's data. float64 shows smaller changes, but stages with float32 weights
    need float32.
    """

    def __init__(
        self,
        stages: Sequence[Defense],
        shape: tuple[int, ...],
        batch: int = BATCH,
        messages: int = 2,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        group = max(stage.group for stage in stages)
        self.stages, self.shape, self.dtype = tuple(stages), shape, dtype
        self.lead = (messages * group, max(batch, *(stage.smallest_batch for stage in stages)))
        self.size = prod((*self.lead, *shape))
        self._groups = torch.arange(messages * group).view(messages, group)
        self._soft = any(stage.soft_labels for stage in stages)

    def labels(self, alike: int = 1) -> Tensor:
        """Labels, int64 [M, B]; groups of `alike` neighboring records in a message share a label."""
        return (torch.arange(self.lead[1]) // alike).expand(self.lead) % CLASSES

    def data(self, seed: int = 0) -> Tensor:
        """Data [M, B, ...], uniform in [0, 1]."""
        return torch.rand(*self.lead, *self.shape, generator=Generator().manual_seed(seed), dtype=self.dtype)

    def play(self, data: Tensor, labels: Tensor, seed: int) -> tuple[Release, tuple[StageReceipt, ...]]:
        """Run one round; `seed` determines all random numbers and the noise."""
        given = one_hot(labels, CLASSES).to(data.dtype) if self._soft else labels
        once = any(stage.drawn == "once" for stage in self.stages)
        kept = Generator().manual_seed(seed + 1) if once else None
        return run(self.stages, Release(smashed=data, labels=given), Generator().manual_seed(seed), self._groups, kept)

    def receipt(self) -> Receipt:
        """The receipt of the last stage for uniform data."""
        return self.play(self.data(), self.labels(), 0)[1][-1].receipt

    def of(self, messages: int) -> TrialRounds:
        """The same trial with another number of messages, i.e. of clients or of mixed groups."""
        return TrialRounds(self.stages, self.shape, self.lead[1], messages, self.dtype)


def trial_of(
    stages: Sequence[Defense],
    shape: tuple[int, ...] | None = None,
    image: tuple[int, ...] = IMAGE,
    batch: int = BATCH,
) -> TrialRounds | None:
    """A trial run of these stages on artificial data of the first shape that they accept; None if they accept none.

    Arguments as in `measured.contradiction`.
    """
    shapes = (image,) if stages[0].level == "input" else SHAPES if shape is None else (shape,)
    for known in shapes:
        for dtype in (torch.float64, torch.float32):
            trial = TrialRounds(stages, known, batch, dtype=dtype)
            try:
                with torch.no_grad():
                    trial.play(trial.data(), trial.labels(), 0)
            except Exception:  # a user's stage may raise anything on data that it was not made for
                continue
            return trial
    return None


def receipt_of_trial(stage: Defense) -> Receipt | None:
    """A stage's receipt for artificial data; None if it accepts none of the usual shapes."""
    trial = trial_of((stage,))
    return None if trial is None else trial.receipt()


NO_SWITCH = (
    "with its noise_fields ({fields}) at almost 0, its releases for two seeds still differ, and controls switch the "
    "noise off in this way; noise_fields must be fields that are proportional to the noise, such as its scale"
)


def keeps_its_noise(stage: Defense, noisy: tuple[Tensor, Tensor], silent: tuple[Tensor, Tensor]) -> bool:
    """Whether `Defense.noiseless` leaves a stage's noise on: two releases of the same data, one for each of two seeds,
    `noisy` from the stage and `silent` from its noiseless copy. A stage with other random effects, such as masks, may
    differ between the seeds, but not by far more than with its noise."""
    others = stage.effects is None or bool(stage.effects & {"scales", "masks", "permutes", "mixes", "shortens"})
    before, left = (float((one.double() - other).nan_to_num().norm()) for one, other in (noisy, silent))
    return left > (10 if others else 0.01) * before + 1e-4 * float(silent[0].double().nan_to_num().norm())


DRAWS = 1_500  # number of releases of the same data from which the distribution of the noise is tested
_MOST_NUMBERS = 2 * 10**7  # largest number of values in all draws together; for larger data, fewer draws are made
_COORDINATES = 512
_ORDERS = 200
_OTHERS = 8  # number of releases whose mean is compared with a further release
_KNOWN = (Noised, Permuted, Mixed, Nothing)
_IN_THEIR_ROW = frozenset({"trains", "maps", "scales", "clips", "masks", "noises", "answers", "splits", "shortens"})
"""Effects after which a record influences only its own row (index) of the release."""
_SHOWN_BY: dict[type[Receipt], Effect] = {Noised: "noises", Permuted: "permutes", Mixed: "mixes"}
"""The effect that a stage with this receipt must declare."""


def refuted(stage: Defense, shape: tuple[int, ...] | None, image: tuple[int, ...], batch: int = BATCH) -> str:
    """A sentence that says why one stage's receipt is false, or ""; cached. Arguments as in `trial_of`."""
    try:
        return _remembered(stage, shape, image, batch)
    except TypeError:  # options that have no hash
        return _first(stage, shape, image, batch)


def _first(stage: Defense, shape: tuple[int, ...] | None, image: tuple[int, ...], batch: int) -> str:
    with torch.no_grad():
        return next(_refuted(stage, shape, image, batch), "")


_remembered = lru_cache(maxsize=256)(_first)


def marks_places(stage: Defense) -> bool:
    """Whether a stage alone turns equal tokens at different places into different tokens."""
    trial = trial_of((stage,), (16, 4))
    acts = {"maps", "scales", "clips", "masks"} & (stage.effects or {"maps"})
    if trial is None or stage.level == "input" or not acts:
        return False
    data = trial.data()[:, :, :1].expand(*trial.lead, *trial.shape).clone()
    with torch.no_grad():
        made = trial.play(data, trial.labels(), 0)[0].smashed
    return made.ndim == 4 and not torch.allclose(made, made[:, :, :1].expand_as(made))


def _refuted(stage: Defense, shape: tuple[int, ...] | None, image: tuple[int, ...], batch: int) -> Iterator[str]:
    small, real = trial_of((stage,), None, image), None if shape is None else trial_of((stage,), shape, image, batch)
    trial = small or real
    if trial is None or (shape is not None and real is None):
        if shape is not None:
            yield f"{stage.name} refuses data of the shape that it is given, so none of its claims can be measured"
        return
    first, again = (trial.play(trial.data(), trial.labels(), 0)[0].smashed for _ in range(2))
    if not bool(first.isfinite().all()):
        yield f"{stage.name} releases NaN or infinity for finite data, so none of its claims can be measured"
        return
    if not torch.equal(first, again):
        yield f"{stage.name} draws from more than the generator that it is given, so none of its claims can be measured"
    receipt = trial.receipt()
    effect = next((effect for kind, effect in _SHOWN_BY.items() if isinstance(receipt, kind)), None)
    if isinstance(receipt, Noised) and receipt.covers == "labels":
        effect = "answers"
    if effect is not None and effect not in (stage.effects or {effect}):
        yield (
            f"the receipt of {stage.name} is {type(receipt).__name__}, and its effects are "
            f"{', '.join(sorted(stage.effects or ()))}; add {effect!r}, by which chains are checked"
        )
    if type(receipt) not in _KNOWN and receipt.certificate().kind != "nothing":
        yield (
            f"{stage.name} makes its own certificate ({type(receipt).__name__}), which is not derived; return "
            "privkit's receipt of what was done (Noised, Permuted, Mixed or Nothing), and chain stages by +"
        )
    for where in filter(None, (small, real)):
        yield from _strays(stage, where)
        if isinstance(receipt, Permuted) and receipt.hides_order:
            yield from _unlike_its_orders(stage, where)
        if isinstance(receipt, Noised) and receipt.clip is not None:
            yield from _unlike_its_noise(stage, where, receipt)


def _strays(stage: Defense, trial: TrialRounds) -> Iterator[str]:
    """Yield a sentence if a record changes other records' releases, although the stage's `effects` rule this out."""
    effects = stage.effects
    stays = effects is not None and (
        effects <= _IN_THEIR_ROW or (effects <= _IN_THEIR_ROW | {"permutes"} and not stage.over_batch)
    )
    if not stays or stage.group > 1:
        return
    for number in range(12):
        at = tuple(int(torch.randint(n, (), generator=Generator().manual_seed(number))) for n in trial.lead)
        size, labels = 10.0 ** (number % 4 - 2), trial.labels((1, trial.lead[1])[number % 2])
        data = size * trial.data(number)
        other = data.clone()
        other[at] = 10 ** (number % 3) * (size - other[at].flip(0))
        try:
            a, b = (trial.play(x, labels, number)[0].smashed for x in (data, other))
        except Exception:  # a user's stage may raise anything on data that it was not made for
            continue
        moved = (a != b).flatten(2).any(2)
        moved[at] = False
        if bool(moved.any()):
            yield (
                f"{stage.name} declares the effects {', '.join(sorted(effects or ()))}, which leave a record in its "
                "own row, but replacing one record changes other rows"
            )
            return


def _unlike_its_orders(stage: Defense, trial: TrialRounds) -> Iterator[str]:
    """Yield a sentence if a shuffle's receipt states other permutations, or more uniform ones, than were applied."""
    data, places, same_image = trial.data(), [], []
    first = trial.receipt()
    assert isinstance(first, Permuted)
    before = stage.public_transform(data.flatten(0, 1)).unflatten(0, trial.lead)
    for seed in range(_ORDERS):
        release, (step,) = trial.play(data, trial.labels(), seed)
        receipt = step.receipt
        assert isinstance(receipt, Permuted)
        if before.ndim != 4 or not torch.allclose(release.smashed, take_rows(before, receipt.source)):
            yield f"the order on the receipt of {stage.name} is not the one that it applied"
            return
        places.append(receipt.permutation.flatten(0, 1))
        same_image.append(receipt.own_image_share)
    drawn, tokens, batch = torch.cat(places), before.shape[2], before.shape[1]
    fixed = first.variant == "kept_in_place" and first.kept is not None
    if not fixed and not all(_equally_often(drawn, tokens, whole=first.kept is None)):
        yield f"{stage.name} does not draw all orders equally often, which its count assumes"
        return
    share = 1.0 if first.kept is None else (first.kept + (tokens - first.kept) / batch) / tokens
    spread = sqrt(max(share * (1 - share), 0) / (len(same_image) * trial.lead[0] * batch * tokens))
    if abs(float(np.mean(same_image)) - share) > 6 * spread + 1e-12:
        yield (
            f"{stage.name} leaves {np.mean(same_image):.3f} of the tokens in their own image, and its receipt with "
            f"kept={first.kept} says {share:.3f}"
        )


def _equally_often(drawn: Tensor, tokens: int, *, whole: bool) -> Iterator[bool]:
    """Test by χ² whether observed permutations are uniform; yield for each test whether it is passed.

    `drawn` holds the source places of T = `tokens` tokens, int64 [N, T]. The first test counts how often each source
    place goes to each place. If `whole` images are permuted, further tests count how often each pair of source places
    occurs at two places. Places in one permutation exclude one another, so their counts are more even than independent
    counts, and the tests are conservative.
    """
    counts = one_hot(drawn, tokens).sum(0).double()
    expected = len(drawn) / tokens
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    yield chdtrc(tokens * (tokens - 1), statistic) >= LEVEL
    pairs = tokens * (tokens - 1)
    if not whole or len(drawn) < 5 * pairs:
        return
    for other in {1, tokens // 2, tokens - 1}:
        seen = torch.bincount(drawn[:, 0] * tokens + drawn[:, other], minlength=tokens**2).double()
        expected = len(drawn) / pairs
        statistic = ((seen - expected) ** 2 / expected).sum().item() - tokens * expected  # no place is its own pair
        yield chdtrc(pairs - 1, max(0.0, statistic)) >= LEVEL


def _unlike_its_noise(stage: Defense, trial: TrialRounds, receipt: Noised) -> Iterator[str]:
    """Yield a sentence if the noise of a stage differs from its receipt."""
    if receipt.covers == "release" and stage.place == "server" != receipt.added_by:
        yield (
            f"{stage.name} runs at the server, and its receipt says that a {receipt.added_by} adds the noise; noise "
            "that a server adds to what it holds proves nothing: return added_by='server'"
        )
    if not isinstance(receipt.mixing, NoMixing):  # privkit's tests compare its own mixing stages with their laws
        if is_own(stage):
            yield (
                f"{stage.name} credits mixing with ratios that it draws itself, and their law was not measured; mix "
                "with one of privkit's stages"
            )
        return
    if receipt.noise.law not in get_args(Law):
        does = "answers by" if receipt.noise.distribution.answers else "adds the noise of"
        law = receipt.noise.law.replace("_", " ")
        yield f"{stage.name} {does} {law}, for which no measurement is derived: nothing is claimed"
        return
    if receipt.covers == "labels":
        yield from _unlike_its_gradient(stage, receipt)
        return
    zero_to_one = trial.data()
    everywhere = {
        "zeros": 0 * zero_to_one,
        "numbers in [0, 1]": zero_to_one,
        "large numbers": 1e3 * (zero_to_one - 0.5),
    }
    refused = 0
    for kind, data in everywhere.items():
        try:
            draws = _draws(trial, data, receipt)
        except Exception:  # a user's stage may raise anything on data that it was not made for
            refused += 1
            continue
        found = unlike(draws, receipt.noise.law) or _lacks_noise(trial, data, receipt)
        if found:
            yield f"the noise of {stage.name} is not what its receipt says (on {kind}, in units of its scale): {found}"
            return
    if refused == len(everywhere):
        yield f"{stage.name} refuses all data on which its noise could be measured"


def _draws(trial: TrialRounds, data: Tensor, receipt: Noised) -> Array:
    """p coordinates of each of K releases of the same data, in units of the noise's declared scale: float [K, p].

    The coordinates are the first and last ones of a release's smashed data and labels. Every second call is computed
    with gradients, as in training.
    """
    size = prod(data.shape)
    count = min(DRAWS, max(64, _MOST_NUMBERS // size))
    at_once = max(1, min(25, 10**6 // size, count))
    many, width = trial.of(2 * at_once), min(_COORDINATES, count // 4)
    again, chosen = data.repeat(at_once, *(1 for _ in data.shape[1:])), []
    for seed in range(-(-count // at_once)):
        with torch.enable_grad() if seed % 2 else torch.no_grad():
            release = many.play(again.clone().requires_grad_(bool(seed % 2)), many.labels(), seed)[0]
        parts = [_ends(release.smashed.detach(), at_once, width) / receipt.noise.smashed]
        if receipt.noise.labels is not None:
            labels = _ends(release.labels.detach(), at_once, width // 4) / receipt.noise.labels
            parts = [labels, parts[0][:, : width - labels.shape[1]]]
        chosen.append(torch.cat(parts, 1).double())
    made: Array = torch.cat(chosen).numpy()
    return made


def _lacks_noise(trial: TrialRounds, data: Tensor, receipt: Noised) -> str:
    """A sentence if a record, or a coordinate over all records, has less noise than declared; otherwise "".

    All records of a large batch are tested, whereas `_draws` reads a few coordinates only.
    """
    with torch.no_grad():
        made = [trial.play(data, trial.labels(), seed)[0].smashed.double().flatten(0, 1) for seed in range(1 + _OTHERS)]
    law, scale = receipt.noise.law, receipt.noise.smashed
    blur = scale * sqrt(receipt.noise.distribution.variance_factor / _OTHERS)
    others = torch.stack(made[1:]).mean(0)
    return refuted_by(others, made[0], law=cast(Law, law), scale=scale, blur=blur)


def _ends(values: Tensor, releases: int, width: int) -> Tensor:
    flat = values.reshape(releases, -1)
    if flat.shape[1] <= width:
        return flat
    return torch.cat([flat[:, : width // 2], flat[:, -(width - width // 2) :]], 1)


def _unlike_its_gradient(stage: Defense, receipt: Noised) -> Iterator[str]:
    """Yield a sentence if returned gradients change by more than ε assumes, or if their noise is not as declared."""
    order = receipt.noise.distribution.norm
    assert receipt.clip is not None
    charged, shape = receipt.clip.sensitivity("replace_one", order), (2, 4, 16, 4)
    for number in range(48):
        draws = Generator().manual_seed(number)
        size = 10.0 ** (6 * torch.rand((), generator=draws).item() - 3)
        one = size * torch.randn(shape, generator=draws) * (torch.rand(shape, generator=draws) < (1.0, 0.1)[number % 2])
        other = -one if number % 3 else size * torch.randn(shape, generator=draws)
        a, b = (stage.on_gradient(x, Generator().manual_seed(number)).double() for x in (one, other))
        moved = (a - b).flatten(2).norm(p=1 if order == "l1" else 2, dim=2).max().item() / (1 + 1e-3)
        if moved > charged + 1e-6 * a.abs().max().item():
            yield (
                f"{stage.name} is charged for gradients that move by at most {charged:.4g}, and one moved by "
                f"{moved:.4g}"
            )
            return
    values = [stage.on_gradient(torch.zeros(shape), Generator().manual_seed(seed)) for seed in range(DRAWS)]
    again = torch.stack(values).flatten(1)[:, :_COORDINATES].double().numpy() / receipt.noise.smashed
    if found := unlike(again, receipt.noise.law):
        yield f"the noise of {stage.name} on gradients is not what its receipt says (in units of its scale): {found}"
