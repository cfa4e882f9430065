"""Laws of a defense: its randomness, its release (the data that clients send), and its privacy claims."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from math import inf

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from privkit.defenses.base import Defense, Effect, Receipt, Release, ReleaseCount
from privkit.defenses.chain import Chain, stages_of
from privkit.defenses.measured import contradiction, exceeds_charge
from privkit.defenses.own_receipts import NO_SWITCH, keeps_its_noise
from privkit.defenses.receipts import NOT_DP, Nothing
from privkit.defenses.returned import returned
from privkit.errors import Misbehaved
from privkit.laws.canaries import against_canaries
from privkit.parts.registry import load, part_table
from privkit.torch_utils.same import same

_CLASSES, _TOKENS, _WIDTH, _SIDE = 5, 16, 4, 28
_COUNTS = (
    ReleaseCount(),
    ReleaseCount(rounds=30, epochs=3, batch_size=8, clients=4, lower_model="trained"),
    ReleaseCount(rounds=30, epochs=3, batch_size=8, clients=5, lower_model="averaged", unmatched=1),
    ReleaseCount(rounds=200, epochs=20, clients=2, delta=1e-6),
)
_DRAWN: frozenset[Effect] = frozenset({"masks", "permutes", "mixes", "noises", "scales", "shortens"})
"""Effects that need random numbers."""
_CANARIES = 2_000
_SEEDS = 8
SEEDED = "same seed, same bits; another seed, other bits"
UNSEEDED = "same bits for every seed: it draws nothing"
"""Name of the law `SEEDED` for a defense that draws nothing."""
DERIVATIVE = "the gradient that reaches the client is the derivative"
STRAIGHT = "a gradient reaches the client; that it is not the derivative is declared (straight_through)"
"""Name of the law `DERIVATIVE` for a defense that declares another gradient."""
_FAR = 1e3


def generator(seed: int = 0) -> Generator:
    """Make a new random generator on the CPU with this seed."""
    return Generator().manual_seed(seed)


def inputs(
    defense: Defense, *, messages: int = 2, batch: int = 3, channels: int = 3, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Draw random data in [0, 1] and labels, with shapes that the defense accepts, from a separate generator. Data are
    smashed data [M, B, T, D] or images [M, B, C, H, W] for M `messages` of B = `batch` records. A defense that mixes k
    > 1 clients gets [M, k, B, ...]. Labels are classes, or one-hot numbers if the defense needs them."""
    draws = generator(99)
    lead = (messages, defense.group, batch) if defense.group > 1 else (messages, batch)
    shape = (channels, _SIDE, _SIDE) if defense.level == "input" else (_TOKENS, _WIDTH)
    labels = torch.randint(_CLASSES, lead, generator=draws)
    data = torch.rand(*lead, *shape, generator=draws, dtype=dtype)
    return data, one_hot(labels, _CLASSES).to(dtype) if defense.soft_labels else labels


def applied(
    defense: Defense, data: Tensor, labels: Tensor, draws: Generator, present: Tensor | None = None
) -> tuple[Release, Receipt]:
    """Call `defense.apply`. Raises `Misbehaved` for an output that is no release or lacks a record."""
    batch = data.shape[2] if defense.group > 1 else data.shape[1]
    return returned(defense.name, defense.apply(data, labels, draws, present), (len(data), batch))


def equal(a: Release, b: Release) -> bool:
    """Whether two releases have bit for bit the same smashed data, labels and mixing weights."""
    pairs = [(a.smashed, b.smashed), (a.labels, b.labels), (a.weights, b.weights)]
    return all(x is y is None or (x is not None and y is not None and same(x, y)) for x, y in pairs)


def called(law: str, defense: Defense) -> str:
    """The name under which a law is reported; some names differ for a defense without random numbers or with a declared
    straight-through gradient."""
    if law == SEEDED and not draws(defense):
        return UNSEEDED
    return STRAIGHT if law == DERIVATIVE and defense.straight_through else law


def draws(defense: Defense) -> bool:
    """Whether the defense draws random numbers from its generator."""
    given = generator()
    before = given.get_state()
    applied(defense, *inputs(defense), given)
    return not same(given.get_state(), before)


def _draws_from_its_generator_alone(defense: Defense) -> str:
    (z, y), drew = inputs(defense), draws(defense)
    first = applied(defense, z, y, generator())[0]
    if not equal(first, applied(defense, z, y, generator())[0]):
        return "the same seed gives other bits; draw from the generator that is given, and from nothing else"
    if equal(first, applied(defense, z, y, generator(1))[0]) == drew:
        return "it draws from its generator, and another seed gives the same release" if drew else "it ignores its seed"
    return ""


def _effects_name_its_randomness(defense: Defense) -> str:
    """Check that a random defense with declared effects names its kind of randomness, and what scales its noise."""
    effects = defense.effects
    if effects is None:
        return ""
    z, y = inputs(defense)
    one, other = (applied(defense, z, y, generator(seed))[0].smashed for seed in (0, 1))
    if not same(one, other) and not effects & _DRAWN:
        return f"another seed gives another release, so its effects must name one of {', '.join(sorted(_DRAWN))}"
    receipt = applied(defense, z, y, generator())[1]
    if "noises" in effects and isinstance(receipt, Nothing) and NOT_DP in receipt.reason:
        return (
            'it declares noise, and the reason of its receipt says "without noise" (NOT_DP); say what it does instead'
        )
    if "noises" in effects and not defense.noise_fields:
        return "it declares noise, and noise_fields does not name the fields that scale it, which controls switch off"
    if "noises" in effects:
        silent = defense.noiseless()
        without, again = (applied(silent, z, y, generator(seed))[0].smashed for seed in (0, 1))
        if keeps_its_noise(defense, (one, other), (without, again)):
            return NO_SWITCH.format(fields=", ".join(defense.noise_fields))
    return ""


def _moves_what_it_permutes(defense: Defense) -> str:
    """Check that a defense that declares "permutes" moves a token for at least one of 8 seeds."""
    if "permutes" not in (defense.effects or ()):
        return ""
    z, y = inputs(defense)
    if any(not same(applied(defense, z, y, generator(seed))[0].smashed, z) for seed in range(_SEEDS)):
        return ""
    return (
        f"it declares that it permutes, and with {_SEEDS} seeds it released its input as it was; move tokens, or leave "
        '"permutes" out of its effects'
    )


def _gradients_keep_shape_and_seed(defense: Defense) -> str:
    gradient = torch.randn(2, 3, _TOKENS, _WIDTH, generator=generator(9))
    draws = generator()
    before = draws.get_state()
    first = defense.on_gradient(gradient, draws)
    drew = not same(draws.get_state(), before)
    if (first.shape, first.dtype) != (gradient.shape, gradient.dtype):
        return f"on_gradient gives {first.dtype} {list(first.shape)} for {gradient.dtype} {list(gradient.shape)}"
    if not same(first, defense.on_gradient(gradient, generator())):
        return "on_gradient gives other bits for the same seed"
    if same(first, defense.on_gradient(gradient, generator(1))) == drew:
        return "on_gradient draws from its generator, and another seed gives the same gradient"
    return ""


def _leaves_everything_else_alone(defense: Defense) -> str:
    """Check that torch's global generator and the inputs stay unchanged, and that the seed determines all networks."""
    z, y = inputs(defense)
    kept, state = (z.clone(), y.clone()), torch.random.get_rng_state()
    applied(defense, z, y, generator())
    shape = (_TOKENS, _WIDTH)
    made = [(defense.companion(shape, (3, _SIDE, _SIDE), 0), defense.adapter(shape, 0)) for _ in range(2)]
    if not same(torch.random.get_rng_state(), state):
        return "it draws from torch's global generator; take the generator or the seed that is given"
    if not (same(z, kept[0]) and same(y, kept[1])):
        return "it changes its input in place; return a new tensor"
    for one, other in zip(*made, strict=True):
        if (one is None) != (other is None):
            return "it makes a network in one call and none in the next"
        if one is not None and other is not None:
            pairs = list(zip(one.parameters(), other.parameters(), strict=True))
            if not (pairs and all(same(a, b) for a, b in pairs)):
                return "the same seed gives other weights of its network, or the network has no weights"
    return ""


def _gradient_is_the_derivative(defense: Defense) -> str:
    """Check that the client's gradient is the release's derivative, unless the defense declares otherwise."""
    z, y = inputs(defense, messages=2 if defense.group == 1 else 1, batch=2, channels=1, dtype=torch.float64)
    fast = defense.level == "input"  # the whole Jacobian of images would take a minute

    def released(data: Tensor) -> Tensor:
        return applied(defense, data, y, generator())[0].smashed.tanh()

    if defense.straight_through:
        (sent,) = torch.autograd.grad(released(z.requires_grad_()).sum(), z, allow_unused=True)
        reaches = sent is not None and bool(sent.isfinite().all()) and bool((sent != 0).any())
        return "" if reaches else "no finite gradient reaches the client, which a straight-through one must; pass it on"
    if torch.autograd.gradcheck(released, (z.requires_grad_(),), fast_mode=fast, raise_exception=False):
        return ""
    return (
        "the gradient through apply is not its derivative; keep the release differentiable in the smashed data, "
        "or, if it trains by another gradient on purpose, declare straight_through = True in its class"
    )


def _releases_a_row_for_each_record(defense: Defense) -> str:
    """Check that the release has finite smashed data of the expected shape, and one label for each record."""
    z, y = inputs(defense)
    try:
        release, _ = applied(defense, z, y, generator())
    except Misbehaved as error:
        return str(error)
    lead, shape = (2, 3), z.shape[-3:] if defense.level == "input" else z.shape[-2:]
    adapter = defense.adapter((_TOKENS, _WIDTH), 0)
    smashed = release.smashed if adapter is None else adapter(release.smashed)
    shorter = "shortens" in (defense.effects or ())
    expected = (*lead, _TOKENS // 2, *shape[1:]) if shorter else (*lead, *shape)
    if smashed.shape != expected or smashed.dtype != z.dtype:
        return f"it releases {smashed.dtype} {list(smashed.shape)} where {z.dtype} {list(expected)} are expected"
    if not bool(release.smashed.isfinite().all()):
        return "it releases NaN or infinity for finite smashed data; release finite numbers"
    soft = release.labels.is_floating_point()
    if release.labels.shape != ((*lead, _CLASSES) if soft else lead):
        return f"its labels are {list(release.labels.shape)}; give one for each of {list(lead)} records"
    if release.weights is not None and (release.weights.ndim, *release.weights.shape[:2]) != (3, 2, defense.group):
        return f"its weights are {list(release.weights.shape)}; give [2, {defense.group}, T], for member and position"
    return ""


def _empty_seats_count_nothing(defense: Defense) -> str:
    """Check that data at an empty place of a mixing group have no effect on the release. If every place is taken,
    `present` must have no effect either."""
    if defense.group == 1:
        return ""
    z, y = inputs(defense)
    present = torch.ones(2, defense.group, dtype=torch.bool)
    if not equal(applied(defense, z, y, generator(), present)[0], applied(defense, z, y, generator())[0]):
        return "with every seat taken, `present` changes the release"
    present[1, -1] = False
    other = z.clone()
    other[1, -1] = 1 - other[1, -1]
    first, second = (applied(defense, data, y, generator(), present)[0].smashed for data in (z, other))
    return "" if same(first, second) else "data on an empty seat change the release; give them weight 0"


def _receipts_make_certificates(defense: Defense) -> str:
    z, y = inputs(defense)
    receipt = applied(defense, z, y, generator())[1]
    for count in _COUNTS:
        certificate = receipt.certificate(count)
        json.dumps(asdict(certificate))
        if (certificate.kind == "differential_privacy") != (certificate.epsilon < inf):
            return f"its certificate of {count} is of kind {certificate.kind} and has ε = {certificate.epsilon}"
        if not (certificate.statement and certificate.source):
            return "its certificate names no statement or no source"
        if certificate.kind == "nothing" and "nothing is proven" not in certificate.statement:
            return f"its certificate proves nothing and does not say so: {certificate.statement!r}"
    return ""


def _receipt_is_what_was_done(defense: Defense) -> str:
    """Check that the receipt is true: permutations and noise were applied, and canaries do not refute its ε."""
    if found := contradiction(stages_of(defense), doubted=stages_of(defense)):
        return found
    if defense.level != "smashed" or defense.group > 1:
        return ""
    z, y = inputs(defense)
    certificate = applied(defense, z, y, generator())[1].certificate()
    if certificate.kind != "differential_privacy" or certificate.covers != "release":
        return ""

    def mechanism(records: Tensor, draws: Generator) -> Tensor:
        labels = torch.zeros(1, len(records), dtype=torch.int64)
        given = one_hot(labels, _CLASSES).float() if defense.soft_labels else labels
        smashed = records.view(1, len(records), _TOKENS, _WIDTH)
        return applied(defense, smashed, given, draws)[0].smashed[0].flatten(1)

    present = torch.full((_TOKENS, _WIDTH), _FAR)
    bound = against_canaries(mechanism, certificate, neighbors=(present, -present), canaries=_CANARIES)
    return bound.statement if bound.refuted else ""


def _no_chain_exceeds_its_charge(defense: Defense) -> str:
    """Check, for each chain with another defense, that a replaced record changes the release no more than ε assumes."""
    alone = stages_of(defense)
    for name, target in sorted(part_table("defenses").items()):
        other = load(target)()
        for stages in ((other, *alone), (*alone, other)):
            try:
                Chain(stages=stages)
            except ValueError:  # a chain that is refused claims no ε
                continue
            if found := exceeds_charge(stages):
                return f"with {name}: {found}"
    return ""


def _refuses_bad_shapes(defense: Defense) -> str:
    """Check that smashed data without an axis of messages or of records raise a ValueError that names their shape."""
    for shape in ((4,), (2, 3)):
        try:
            defense.apply(torch.zeros(shape), torch.zeros(shape[:1], dtype=torch.int64), generator())
        except ValueError as error:
            if str(list(shape)) not in str(error) or len(str(error)) < 20:
                return f"its refusal of shape {list(shape)} does not name the shape: {str(error)!r}"
        else:
            return f"it takes data of shape {list(shape)}; refuse them with a ValueError that names the shape"
    return ""


def _penalties_train(defense: Defense) -> str:
    """Check that a penalty is one number per client, and that it trains the client's or the defense's network."""
    images = torch.rand(2, 4, 3, _SIDE, _SIDE, generator=generator())
    smashed = torch.rand(2, 4, _TOKENS, _WIDTH, generator=generator(1), requires_grad=True)
    companion = defense.companion((_TOKENS, _WIDTH), (3, _SIDE, _SIDE), 0)
    penalty = defense.penalty(images, smashed, companion)
    if penalty is None:
        return "" if companion is None else "its companion has no penalty, so nothing trains it"
    if penalty.shape != (2,):
        return f"its penalty is {list(penalty.shape)}; give one value for each of 2 clients"
    penalty.sum().backward()
    if smashed.grad is None or not bool(smashed.grad.isfinite().all()):
        return "the gradient of its penalty is missing or not finite"
    trained = [smashed.grad, *(p.grad for p in companion.parameters())] if companion else [smashed.grad]
    return "" if any(g is not None and bool((g != 0).any()) for g in trained) else "its penalty trains nothing"


LAWS: dict[str, Callable[[Defense], str]] = {
    SEEDED: _draws_from_its_generator_alone,
    "its effects say how it draws, and what scales its noise": _effects_name_its_randomness,
    "what it permutes moves": _moves_what_it_permutes,
    "gradients that go back keep shape and seed": _gradients_keep_shape_and_seed,
    "global randomness and inputs stay as they are": _leaves_everything_else_alone,
    DERIVATIVE: _gradient_is_the_derivative,
    "a row and a label for each record": _releases_a_row_for_each_record,
    "empty seats count nothing": _empty_seats_count_nothing,
    "receipts make certificates": _receipts_make_certificates,
    "the receipt says what was done": _receipt_is_what_was_done,
    "no chain exceeds its charge": _no_chain_exceeds_its_charge,
    "bad shapes are refused in a sentence": _refuses_bad_shapes,
    "penalties train": _penalties_train,
}
