"""What stages really do, held against what their receipts say: a receipt is its author's word until it is measured.

privkit's own stages are held against their receipts by its tests. A user's own stage is measured wherever a claim of it
is made: when a chain is put together, when an audit computes a certificate, and in `privkit check`. A measurement can
refute a claim and never prove it, so that the claim of an own stage is declared, not proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import log, sqrt
from typing import Literal

import numpy as np
import torch
from scipy.special import chdtr, chdtrc, gammainc, ndtr
from torch import Generator, Tensor

from privkit.accountants.spec.parts import NoMixing
from privkit.accountants.spec.sensitivity import ClipSet
from privkit.array import Array
from privkit.defenses.base import Defense, Effect, Receipt, Release, take_rows
from privkit.defenses.charge import Noised
from privkit.defenses.compile import ChainReceipt, bounded
from privkit.defenses.receipts import Mixed, Nothing, Permuted
from privkit.defenses.trial import CLASSES, Trial, trial_of

TRIES = 48
"""Pairs of neighboring batches that are tried, and as many steps that look for a worse pair from the two worst."""
DRAWS = 1_000
"""Releases of the same data from which the law of a noise is read."""
LEVEL = 1e-6
"""Chance that one test of an honest noise raises an alarm."""
_SLACK = 1e-3
_COORDINATES = 24
_AT_ONCE = 25
_KNOWN = (Noised, Permuted, Mixed, Nothing, ChainReceipt)
_IN_THEIR_ROW = frozenset({"trains", "maps", "clips", "masks", "noises", "answers", "splits", "shortens"})
"""Effects by which a record stays in its own row."""
_SHOWN_BY: dict[type[Receipt], Effect] = {Noised: "noises", Permuted: "permutes", Mixed: "mixes"}
"""The effect that a receipt shows."""


def is_own(stage: Defense) -> bool:
    """Whether a stage is a user's own, and none of privkit's.

    >>> from privkit.defenses.clip import Clip
    >>> from privkit.templates.defense import Template
    >>> is_own(Clip()), is_own(Template())
    (False, True)
    """
    return type(stage).__module__.rpartition(".")[0] != __name__.rpartition(".")[0]


def contradiction(
    stages: Sequence[Defense], shape: tuple[int, ...] | None = None, doubted: Sequence[Defense] | None = None
) -> str:
    """Why a claim of these stages is false, in a sentence; empty if no measurement shows it.

    Args:
        stages: of a chain in order, or one.
        shape: of one record's smashed data, where it is known; without it tokens, feature maps and vectors are tried.
        doubted: stages whose own receipts are measured as well; None for the user's own.

    >>> from privkit.defenses.gaussian_noise import GaussianNoise
    >>> contradiction((GaussianNoise(),))
    ''
    """
    for stage in stages if doubted is None else doubted:
        if (is_own(stage) or doubted is not None) and (found := _of_stage(stage, shape)):
            return found
    return exceeds_charge(stages, shape)


def _of_stage(stage: Defense, shape: tuple[int, ...] | None) -> str:
    """What refutes the receipt of one stage, measured once in a process."""
    try:
        return _remembered(stage, shape)
    except TypeError:  # options that have no hash
        return _measured(stage, shape)


def _measured(stage: Defense, shape: tuple[int, ...] | None) -> str:
    """What refutes the receipt of one stage."""
    with torch.no_grad():
        return next(_refuted(stage, shape), "")


_remembered = lru_cache(maxsize=256)(_measured)


def exceeds_charge(stages: Sequence[Defense], shape: tuple[int, ...] | None = None) -> str:
    """How replacing one record moves a release further than its noise is charged for; empty if no try does.

    Both releases have the same coins and the same noise, so that their distance is what the noise has to hide. Tries
    begin with large, small, constant and sparse records, and climb from the two worst along the gradient.

    Args:
        stages: as for `contradiction`.
        shape: likewise.

    >>> from privkit.defenses.batch_shuffle import BatchShuffle
    >>> from privkit.defenses.gaussian_noise import GaussianNoise
    >>> exceeds_charge((BatchShuffle(keep=0.0), GaussianNoise(clip_by="image")))[:69]
    'gaussian_noise behind batch_shuffle is charged for a change of at mos'
    """
    for level in ("input", "smashed"):
        there = [stage for stage in stages if (stage.level == "input") == (level == "input")]
        for number, stage in enumerate(there):
            if "noises" not in (stage.effects or {"noises"}) and not is_own(stage):
                continue
            trial = trial_of(there[: number + 1], shape if level == "smashed" else None)
            if trial is not None and (found := _moved_too_far(trial)):
                return found
    return ""


def _moved_too_far(trial: Trial) -> str:
    """Whether the last stage's charge is exceeded."""
    steps = trial.play(trial.data(), trial.labels(), 0)[1]
    receipt = bounded(steps, len(steps) - 1)
    if not isinstance(receipt, Noised) or receipt.clip is None or receipt.added_by == "server":
        return ""
    if receipt.covers == "labels":
        return ""
    order: Literal["l1", "l2"] = "l1" if receipt.noise.law == "laplace" else "l2"
    try:
        charged = receipt.clip.sensitivity("replace_one", order).value
    except ValueError:  # the accountant refuses it as well
        return ""
    names = [stage.name for stage in trial.stages]
    where = f"{names[-1]} behind {'+'.join(names[:-1])}" if len(names) > 1 else names[0]
    worst, coins = _worst(trial, order, receipt.labels)
    if worst is None:
        return f"{where} refuses all data on which its charge could be measured" if is_own(trial.stages[-1]) else ""
    if coins:
        return f"{where} publishes weights that depend on the data: coins are public only if they tell nothing of them"
    for what, moved, most in (("", worst[0], charged), (" of labels", worst[1], _of_labels(receipt, order))):
        if moved > most:
            return (
                f"{where} is charged for a change{what} of at most {most:.4g} when one record is replaced, and a "
                f"change of {moved:.4g} was measured: no ε holds; bound what the noise is added to, record by record"
            )
    return ""


def _of_labels(receipt: Noised, order: Literal["l1", "l2"]) -> float:
    """Charged for a label; any change is allowed if labels are not covered."""
    return float("inf") if receipt.labels is None else receipt.labels.sensitivity("replace_one", order).value


def _worst(trial: Trial, order: Literal["l1", "l2"], labels: ClipSet | None) -> tuple[tuple[float, float] | None, bool]:
    """The largest changes of smashed data and of labels, less what rounding explains; whether public coins moved.

    None instead of changes if the stages refuse all data.
    """
    moved, of_labels, tried = 0.0, 0.0, []
    for number in range(TRIES):
        data, other, scale = _neighbors(trial, number)
        y = trial.labels()
        changed = y.clone()
        if labels is not None:
            changed[0, 0] = (y[0, 0] + 1) % CLASSES
        try:
            with torch.no_grad():
                a, b = (trial.play(x, given, number)[0] for x, given in ((data, y), (other, changed)))
        except Exception:  # a stage may refuse what it was not made for
            continue
        if a.smashed.shape != b.smashed.shape or not _same_coins(a, b):
            return (moved, of_labels), True
        distance = _distance(a.smashed, b.smashed, order)
        moved, of_labels = max(moved, distance), max(of_labels, _distance(a.labels, b.labels, order))
        tried.append((distance, number, data, other, scale))
    for _, number, data, other, scale in sorted(tried, key=lambda one: -one[0])[:2]:
        moved = max(moved, _climb(trial, order, number, data, other, scale))
    return (moved, of_labels) if tried else None, False


def _neighbors(trial: Trial, number: int) -> tuple[Tensor, Tensor, float]:
    """Two batches that differ in the first record of the first message, and the scale of their numbers."""
    draws = Generator().manual_seed(number)
    shape = (*trial.lead, *trial.shape)
    scale = 10.0 ** (5 * torch.rand((), generator=draws).item() - 2)
    rows = (*trial.lead, *(1 for _ in trial.shape))
    data = torch.randn(shape, generator=draws, dtype=torch.float64)
    data = scale * data * 10.0 ** torch.randint(-1, 2, rows, generator=draws)
    kind = number % 4
    if kind == 1:  # all other records are empty
        data = data * 0
        data[0, 0] = scale * torch.randn(trial.shape, generator=draws, dtype=torch.float64)
    elif kind == 2:  # every record has one number
        data = data.flatten(2)[..., :1].expand(*trial.lead, data[0, 0].numel()).reshape(shape).clone()
    elif kind == 3:  # few numbers are not 0
        data = data * (torch.rand(shape, generator=draws) < 0.1)
    other, own = data.clone(), data[0, 0]
    far = 10.0 ** torch.randint(0, 4, (), generator=draws).item()
    other[0, 0] = (-far * own, -far * own.roll(1, 0), 0 * own, -far * own.abs().max().expand_as(own))[number // 4 % 4]
    return data, other, scale


def _distance(a: Tensor, b: Tensor, order: Literal["l1", "l2"]) -> float:
    """Their distance, less the rounding of float32 and a thousandth."""
    apart = (a.detach().double() - b.detach().double()).flatten()
    rounding = 4e-7 * max(1.0, a.detach().abs().max().item(), b.detach().abs().max().item())
    size = apart.abs().sum().item() if order == "l1" else apart.norm().item()
    return max(0.0, size / (1 + _SLACK) - rounding * (apart.numel() if order == "l1" else sqrt(apart.numel())))


def _climb(trial: Trial, order: Literal["l1", "l2"], seed: int, data: Tensor, other: Tensor, scale: float) -> float:
    """The largest distance on the way up from a pair; 0 if the release has no gradient."""
    start, record, most = data.clone().requires_grad_(), other[0, 0].clone().requires_grad_(), 0.0
    for _ in range(TRIES // 2):
        neighbor = torch.cat([record.unsqueeze(0), start[0, 1:]]).unsqueeze(0)
        pair = (start, torch.cat([neighbor, start[1:]]))
        try:
            a, b = (trial.play(x, trial.labels(), seed)[0].smashed for x in pair)
            most = max(most, _distance(a, b, order))
            apart = (a - b).flatten().norm(p=1 if order == "l1" else 2)
            for value, up in zip((start, record), torch.autograd.grad(apart, (start, record)), strict=True):
                value.data += 0.3 * scale * up / up.abs().max().clamp_min(1e-30)
        except Exception:  # no gradient, or data that the stage refuses
            return most
    return most


def _same_coins(a: Release, b: Release) -> bool:
    """Whether two releases publish the same weights."""
    if a.weights is None or b.weights is None:
        return a.weights is b.weights
    return torch.equal(a.weights, b.weights)


def _refuted(stage: Defense, shape: tuple[int, ...] | None) -> Iterator[str]:
    """What the receipt of a stage says and its releases refute; on a small shape if the stage takes one."""
    trial = trial_of((stage,)) or (None if shape is None else trial_of((stage,), shape))
    if trial is None:
        if shape is not None:
            yield f"{stage.name} takes no smashed data of shape {list(shape)}, so that no claim of it can be measured"
        return
    receipt = trial.play(trial.data(), trial.labels(), 0)[1][0].receipt
    claims = receipt.certificate().kind != "nothing"
    effect = next((effect for kind, effect in _SHOWN_BY.items() if isinstance(receipt, kind)), None)
    if effect == "noises" and isinstance(receipt, Noised) and receipt.covers == "labels":
        effect = "answers"
    if effect is not None and effect not in (stage.effects or {effect}):
        yield (
            f"the receipt of {stage.name} is {type(receipt).__name__}, and its effects are "
            f"{', '.join(sorted(stage.effects or ()))}; add {effect!r}, by which chains are checked"
        )
    if claims and type(receipt) not in _KNOWN:
        yield (
            f"{stage.name} makes its certificate by itself ({type(receipt).__name__}), and nobody derived it; return "
            "privkit's receipt of what was done: Noised, Permuted, Mixed or Nothing"
        )
    yield from _strays(stage, trial)
    if isinstance(receipt, Permuted) and receipt.hides_order:
        yield from _unlike_its_orders(stage, trial)
    if isinstance(receipt, Noised) and receipt.clip is not None:
        yield from _unlike_its_noise(stage, trial, receipt)


def _strays(stage: Defense, trial: Trial) -> Iterator[str]:
    """Whether a record leaves the row in which its stage's effects leave it."""
    effects = stage.effects
    stays = effects is not None and (
        effects <= _IN_THEIR_ROW or (effects <= _IN_THEIR_ROW | {"permutes"} and not stage.over_batch)
    )
    if not stays or stage.group > 1:
        return
    for number in range(TRIES // 2):
        data, other, _ = _neighbors(trial, number)
        a, b = (trial.play(x, trial.labels(), number)[0].smashed for x in (data, other))
        moved = (a != b).flatten(2).any(2)
        moved[0, 0] = False
        if bool(moved.any()):
            yield (
                f"{stage.name} declares the effects {', '.join(sorted(effects or ()))}, which leave a record in its "
                "own row, but replacing one record changes other rows"
            )
            return


def _unlike_its_orders(stage: Defense, trial: Trial) -> Iterator[str]:
    """Whether a shuffle applies other orders than its receipt names, or draws them unlike the count's."""
    data, places, same_image, first = trial.data(), [], [], None
    before = stage.public_transform(data.flatten(0, 1)).unflatten(0, trial.lead)
    for seed in range(200):
        release, (step,) = trial.play(data, trial.labels(), seed)
        receipt = step.receipt
        assert isinstance(receipt, Permuted)
        if before.ndim != 4 or not torch.allclose(release.smashed, take_rows(before, receipt.source)):
            yield f"the order on the receipt of {stage.name} is not the one that it applied"
            return
        places.append(receipt.permutation.flatten(0, 1))
        same_image.append(receipt.own_image_share)
        first = receipt
    assert first is not None
    tokens, batch = before.shape[2], before.shape[1]
    if first.variant != "kept_in_place" or first.kept is None:
        # Every place is the origin of each output token equally often. Places of one image exclude one another, which
        # makes the counts more even than independent ones: a conservative test.
        counts = torch.nn.functional.one_hot(torch.stack(places), tokens).sum((0, 1)).double().numpy()
        expected = counts.sum(1, keepdims=True) / tokens
        statistic = ((counts - expected) ** 2 / expected).sum()
        if chdtrc(tokens * (tokens - 1), statistic) < LEVEL:
            yield f"{stage.name} does not draw all orders equally often, which its count assumes"
            return
    share = 1.0 if first.kept is None else (first.kept + (tokens - first.kept) / batch) / tokens
    spread = sqrt(max(share * (1 - share), 0) / (len(same_image) * trial.lead[0] * batch * tokens))
    if abs(float(np.mean(same_image)) - share) > 6 * spread + 1e-12:
        yield (
            f"{stage.name} leaves {np.mean(same_image):.3f} of the tokens in their own image, and its receipt with "
            f"kept={first.kept} says {share:.3f}"
        )


def _unlike_its_noise(stage: Defense, trial: Trial, receipt: Noised) -> Iterator[str]:
    """Whether the noise of a stage is another one than on its receipt."""
    if receipt.covers == "release" and stage.place == "server" != receipt.added_by:
        yield (
            f"{stage.name} runs at the server, and its receipt says that a {receipt.added_by} adds the noise; noise "
            "that a server adds to what it holds proves nothing: return added_by='server'"
        )
    if not isinstance(receipt.mixing, NoMixing):  # privkit's are held against their laws by its tests
        if is_own(stage):
            yield (
                f"{stage.name} credits mixing whose ratios it draws by itself, and nobody measured their law; mix with "
                "one of privkit's stages"
            )
        return
    if receipt.noise.law == "randomized_response":
        yield f"{stage.name} answers by randomized response, for which no measurement is derived: nothing is claimed"
        return
    if receipt.covers == "labels":
        yield from _unlike_its_gradient(stage, receipt)
        return
    everywhere = [
        (trial.data() * 0, "zeros"),
        (trial.data(), "numbers in [0, 1]"),
        (1e3 * (trial.data() - 0.5), "large numbers"),
    ]
    many = Trial((stage,), trial.shape, trial.lead[1], messages=2 * _AT_ONCE)
    for data, kind in everywhere:
        again = data.repeat(_AT_ONCE, *(1 for _ in data.shape[1:]))
        released = [many.play(again, many.labels(), seed)[0] for seed in range(DRAWS // _AT_ONCE)]
        parts = [("the smashed data", receipt.noise.smashed, [one.smashed for one in released])]
        if receipt.noise.labels is not None:
            parts.append(("the labels", receipt.noise.labels, [one.labels for one in released]))
        for what, scale, values in parts:
            pairs = [pair for value in values for pair in value.split(2)]  # two messages each: they may share noise
            if found := unlike(_some(pairs), receipt.noise.law, scale):
                yield f"the noise of {stage.name} on {what} is not what its receipt says (on {kind}): {found}"
                return


def _unlike_its_gradient(stage: Defense, receipt: Noised) -> Iterator[str]:
    """Whether gradients that go back move further than charged, or have another noise."""
    order: Literal["l1", "l2"] = "l1" if receipt.noise.law == "laplace" else "l2"
    assert receipt.clip is not None
    charged = receipt.clip.sensitivity("replace_one", order).value
    for number in range(TRIES):
        draws = Generator().manual_seed(number)
        size = 10.0 ** (6 * torch.rand((), generator=draws).item() - 3)
        pair = [size * torch.randn(2, 3, 16, 4, generator=draws) for _ in range(2)]
        if number % 2:
            pair[1] = -pair[0]
        a, b = (stage.on_gradient(one, Generator().manual_seed(number)) for one in pair)
        moved = max(_distance(x, y, order) for x, y in zip(a.flatten(0, 1), b.flatten(0, 1), strict=True))
        if moved > charged:
            yield (
                f"{stage.name} is charged for gradients that move by at most {charged:.4g}, and one moved by "
                f"{moved:.4g}"
            )
            return
    zero = torch.zeros(2, 3, 16, 4)
    values = [stage.on_gradient(zero, Generator().manual_seed(seed)) for seed in range(DRAWS)]
    if found := unlike(_some(values), receipt.noise.law, receipt.noise.smashed):
        yield f"the noise of {stage.name} on gradients is not what its receipt says: {found}"


def _some(values: Sequence[Tensor]) -> Array:
    """[K, p]: the same few coordinates of each of K releases."""
    flat = torch.stack([value.detach().flatten() for value in values])
    places = torch.linspace(0, flat.shape[1] - 1, min(flat.shape[1], _COORDINATES)).long()
    chosen: Array = flat[:, places].double().numpy()
    return chosen


def unlike(draws: Array, law: str, scale: float) -> str:
    """How draws of one release differ from independent noise of a law; empty if no test at `LEVEL` finds it.

    Three tests: the size of the noise in its quietest direction, its law in each coordinate, and its size over all
    coordinates of one draw, which noise that coordinates share would spread.

    Args:
        draws: [K, p], K releases of the same data with other noise, K much larger than p.
        law: "gaussian" or "laplace".
        scale: σ, or b.

    Source: Davidson and Szarek 2001, Theorem II.13, for the smallest singular value of Gaussian noise.

    >>> noise = np.random.default_rng(0).normal(size=(1000, 8))
    >>> unlike(noise, "gaussian", 1.0), unlike(noise, "gaussian", 2.0)[:24]
    ('', 'it has standard deviatio')
    """
    k, p = draws.shape
    apart = (draws - draws.mean(0)) * sqrt(k / (k - 1))
    deviation = scale if law == "gaussian" else sqrt(2) * scale
    smallest = np.linalg.svd(apart, compute_uv=False)[-1] / (deviation * sqrt(k))
    # The fourth moment of Laplace noise is twice a Gaussian's, so that its singular values spread √(5/2) as far.
    spread = (sqrt(p) + sqrt(-2 * log(LEVEL))) * (1 if law == "gaussian" else sqrt(2.5))
    if smallest < 1 - spread / sqrt(k):
        return (
            f"it has standard deviation {smallest * deviation:.4g} in its quietest direction, where {deviation:.4g} "
            "is declared"
        )
    if not _follows(apart.ravel() / scale, ndtr if law == "gaussian" else _laplace):
        return f"its numbers have standard deviation {apart.std():.4g} and do not follow the declared {law} law"
    sizes = (apart**2).sum(1) / scale**2 if law == "gaussian" else np.abs(apart).sum(1) / scale
    if not _follows(sizes, lambda size: chdtr(p, size) if law == "gaussian" else gammainc(p, size)):
        return "its coordinates depend on each other"
    return ""


def _follows(values: Array, law: Callable[[Array], Array]) -> bool:
    """Whether values are as near to a distribution function as independent draws of it are, at `LEVEL`.

    Source: Massart 1990, Corollary 1 (Dvoretzky–Kiefer–Wolfowitz).
    """
    n, expected = len(values), law(np.sort(values))
    steps = np.arange(n + 1) / n
    furthest = max(np.abs(expected - steps[1:]).max(), np.abs(expected - steps[:-1]).max())
    return bool(furthest <= sqrt(log(2 / LEVEL) / (2 * n)))


def _laplace(values: Array) -> Array:
    """Distribution function of Laplace noise of scale 1."""
    half = np.exp(-np.abs(values)) / 2
    return np.where(values < 0, half, 1 - half)
