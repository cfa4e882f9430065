"""Control experiments of reconstruction: a release that contains the record itself, and a release of pure noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite

import torch
from scipy.special import stdtrit
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, QueryResult, View, given
from privkit.attacks.goals.control import Control
from privkit.attacks.goals.control_cast import Cast
from privkit.attacks.goals.control_clients import ControlClients, Defended, Undefended
from privkit.attacks.goals.goal import Goal
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation
from privkit.shared.seeds import derive

_WON, _WON_IN_ORDER, _WON_IN_PART, _WHOLE = 0.5, 0.75, 0.9, 0.9
"""The positive control passes if the attack's MSE is at most this share of the mean image's MSE. The second share holds
if the defense moves tokens, since after a short training an attack misplaces some (`jigsaw` reached .59 under batch
shuffling at one of three seeds; unordered tokens are worse than the mean image). The third holds if the release
contains less than 90 % of the differences between images, since a short training is not enough for such releases."""
_NOTHING = 1e-6  # least share of the differences between records that a release must contain for a control
_NOTICED, _FAR = 1.02, 0.5
"""If the public weights of mixed records are swapped, the MSE must rise by the first factor, since an attack that
ignores the weights keeps its MSE. Below the second factor times the largest MSE that passes, this is not required."""
SHORTER = 5  # factor by which the noise control has fewer steps: a leak outside the release needs no training
_NOISE_SLACK, _SURE, _OTHERS, _FEWEST = 0.03, 0.99, 10, 5
"""The noise control fails if the attack's error is more than the first number, as a share, below the mean record's
error, and its guesses are closer to their own records than to up to ten others, by a 99 % interval over the records. A
small error alone is no proof: another constant may beat the mean record, and chance matters among few records. With
fewer than five records, an interval is useless, and the error alone decides."""


def controls(attack: ImageAttack, observation: ImageObservation, seed: int) -> tuple[Control, ...]:
    """Test a short version of an attack: it must succeed on a release that contains the record, and fail on pure noise.

    Only auxiliary records take part: the last ones, at most a quarter, act as attacked records. If an attack returns
    the adversary's records, the attacked records are among these. An attack that takes over the training gets small
    clients in training instead (`privkit.attacks.goals.learners`). The short version is `attack.mounting.control`. The
    observation's first view gives the noise its shape.
    """
    return *wins(attack, observation, seed), fails(attack, observation, seed)


def wins(
    attack: ImageAttack, observation: ImageObservation, seed: int, defended: Defended | None = None
) -> tuple[Control, ...]:
    """The positive control: clients send the record itself through their own defense, and the attack must recover it.

    The attack passes if its MSE is at most a given share of the MSE of guessing the mean record. The share is a half;
    three quarters if the defense moves tokens; nine tenths if the release contains less than nine tenths of the
    differences between records. Errors count only the part of a record that the release contains
    (`privkit.attacks.goals.control_clients.projected`). If records are mixed with public weights, a narrow pass (an
    error above half of the allowed error) counts only if the attack does worse with swapped weights. If the attack
    cannot undo the defense, the control runs without it, and a second control records this.
    """
    played = Cast.of(attack, observation)
    remark = "" if defended is None else _hindrance(attack, defended)
    if defended is not None and not remark:
        try:
            return (_won(attack, played, seed, given(defended.clients)(played.shape), defended),)
        except NotApplicable as reason:
            remark = str(reason)
    plain = _won(attack, played, seed, Undefended(played.identity, played.batch_size), None)
    if defended is None:
        return (plain,)
    detail = f"control not possible: {remark}; the control ran without the defense"
    return plain, Control(name="wins_through_the_defense", passed=None, decisive=False, detail=detail)


def fails(attack: ImageAttack, observation: ImageObservation, seed: int) -> Control:
    """The negative control: the attack gets pure noise shaped like the real release, and must learn nothing.

    The control fails if two conditions hold: the attack's error is more than 3 % below the error of the mean record,
    and a 99 % interval over the records shows that guesses are closer to their own records than to others. Guesses from
    noise cannot distinguish records. With fewer than five records, the first condition alone decides. For table rows,
    both conditions are tested twice: for the error of dense columns and for the share of wrong cells, where the row of
    the commonest values takes the place of the mean record.
    """
    played = Cast.of(attack, observation, SHORTER)
    draws, start = played.draws(seed, "noise")
    whole = observation.views[0].whole if played.real else True

    def query(images: Tensor, draws: Generator) -> QueryResult:
        form = observation.views[0].smashed.shape[1:] if played.real else played.identity(images[:1]).shape[1:]
        noise = torch.randn(len(images), *form, generator=draws, device=images.device)
        return QueryResult.row_by_row(View(round=0, smashed=noise, whole=whole))

    if played.hijacks:
        shown = played.led(start, noise=True)
    else:
        rounds = played.victims.split(played.batch_size) * attack.mounting.passes
        tags = played.victim_labels.split(played.batch_size) * attack.mounting.passes
        views = [
            replace(query(part, draws).view, round=number, labels=sent)
            for number, (part, sent) in enumerate(zip(rounds, tags, strict=True))
        ]
        shown = played.shown(attack, views, query, played.identity, None, None, draws)
    try:
        guess = played.guess(shown, Generator().manual_seed(derive(seed, "control", "noise", "attack")))
    except NotApplicable:
        guess = None  # an attack that refuses noise learns nothing from it
    leaked, detail = _leaked(played.errors, guess, played.mean, played.victims)
    said = f"on a release of pure noise the attack has {played.measure} {detail[0]}, the mean {played.what} {detail[1]}"
    if played.columns:
        cells, detail = _leaked(played.wrong_cells, guess, played.commonest(), played.victims)
        leaked |= cells
        said += f", and a share of wrong cells of {detail[0]}, the commonest values {detail[1]}"
    return Control(
        name="fails_on_noise",
        passed=not leaked,
        detail=f"{said}; less than {1 - _NOISE_SLACK:g} of the latter is a leak",
    )


def _leaked(
    errors_of: Callable[[Tensor, Tensor], Tensor], guess: Tensor | None, constant: Tensor, truth: Tensor
) -> tuple[bool, tuple[str, str]]:
    """Whether guesses from noise tell records apart with an error far below a constant guess's, and both errors in
    words. Without a guess, the error is the constant guess's."""
    by_constant = errors_of(constant.expand_as(truth), truth)
    errors, others = by_constant, list[Tensor]()
    if guess is not None:
        errors = errors_of(guess, truth)
        shifts = range(1, min(len(guess), _OTHERS + 1)) if len(guess) >= _FEWEST else ()
        others = [errors_of(guess.roll(k, 0), truth) for k in shifts]
    error, least = errors.mean().item(), by_constant.mean().item()
    told_apart = not others or not _surely(torch.stack(others).mean(0) - errors) <= 0  # a guess of NaN fails
    return not error >= (1 - _NOISE_SLACK) * least and told_apart, (_told(error), f"{least:.4f}")


def _told(error: float) -> str:
    return f"{error:.4f}" if isfinite(error) else f"{error} (a guess is not finite)"


def _surely(gains: Tensor) -> float:
    """The lower end of Student's confidence interval for the mean of the gains [N], N ≥ 2."""
    quantile = float(stdtrit(len(gains) - 1, (1 + _SURE) / 2))
    return float(gains.mean() - quantile * gains.std() / len(gains) ** 0.5)


def _hindrance(attack: ImageAttack, defended: Defended) -> str:
    if "clients" in attack.needs:
        return f"{attack.name} steers the clients' training, and its controls use small clients without {defended.name}"
    if defended.why_not:
        return defended.why_not
    if left := sorted(defended.undone - attack.mounting.undoes):
        return f"{attack.name} does not declare that it undoes what {defended.name} does ({', '.join(left)})"
    return ""


def _won(attack: ImageAttack, played: Cast, seed: int, clients: ControlClients, defended: Defended | None) -> Control:
    start, truth, passes = played.draws(seed, "identity")[1], played.victims, attack.mounting.passes
    sent = None if played.hijacks else clients.send(truth, played.victim_labels, passes, start)

    def guessed(views: list[View], members: Tensor) -> Tensor:
        draws, _ = played.draws(seed, "identity")
        shown = played.shown(attack, views, clients.query, clients.lower, clients.block, clients.imitate, draws)
        found = played.guess(shown, played.own_draws(seed), len(members))
        guess = torch.empty_like(found[: len(truth)])
        guess[members[members >= 0]] = found[members >= 0]
        return guess

    def wrong(guess: Tensor) -> float:
        apart = clients.contained(truth, (guess - truth).float(), passes, start)
        return played.error(truth + apart.long(), truth) if played.texts else played.sizes(apart).mean().item()

    if sent is None:
        error = wrong(played.guess(played.led(start, noise=False), played.own_draws(seed)))
    else:
        error = wrong(guessed(*sent))
    mean_error, what, through, held = wrong(played.mean), played.what, "", ""
    share = mean_error / max(played.error(played.mean.expand_as(truth), truth), torch.finfo(torch.float32).tiny)
    if share < _NOTHING:
        raise NotApplicable(
            f"no derivative shows what {defended.name if defended else 'the release'} leaves of a {what}"
        )
    won = _WON if share >= _WHOLE else _WON_IN_PART
    if defended is not None:
        won = max(won, _WON_IN_ORDER if "permutes" in defended.undone else won)
        through, held = (
            f", through {defended.name},",
            f", both measured on the {100 * share:.0f} % of it that the release contains",
        )
    passed = error <= won * mean_error
    if sent is not None and _FAR * won * mean_error < error <= won * mean_error and (views := _swapped(sent[0])):
        without = wrong(guessed(views, sent[1]))
        passed = without >= _NOTICED * error
        held += f"; with the public weights of a row's members swapped it has {without:.4f}"
    if not passed and defended is not None and defended.own:
        held += (
            f"; {defended.name} was given the {what} itself, numbers in [0, 1]: if its levels, bounds or steps are "
            f"made for another range, this may be the cause, and not the attack"
        )
    return Control(
        name="wins_on_identity",
        passed=passed,
        detail=f"on a release that is the {what} itself{through} the attack has {played.measure} {_told(error)}, "
        f"the mean {what} {mean_error:.4f}; at most {won:g} of the latter is a win{held}",
    )


def _swapped(views: list[View]) -> list[View]:
    """The views after reversing the order of the members' weights in each row; empty if this changes nothing."""
    weights = [view.weights for view in views if view.weights is not None]
    if len(weights) < len(views) or all(torch.equal(each, each.flip(1)) for each in weights):
        return []
    return [replace(view, weights=each.flip(1)) for view, each in zip(views, weights, strict=True)]


GOAL = Goal(
    observation=ImageObservation,
    controls=lambda attack, seed, seen: controls(attack, seen, seed),
    untuned="",
    reconstructs=True,
)
