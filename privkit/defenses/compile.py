"""Chains of stages: how they run, and how their receipts become one certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Generator, Tensor

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import NoMixing, PrivateUpdates
from privkit.accountants.spec.sensitivity import Clamp, ClipSet
from privkit.defenses.base import ONE_RELEASE, Defense, Effect, Receipt, Release, ReleaseCount, is_own
from privkit.defenses.charge import Noised, nothing
from privkit.defenses.receipts import Mixed, Nothing, Permuted
from privkit.defenses.returned import returned
from privkit.shared.certificate import Certificate

_ROW_BY_ROW: frozenset[Effect] = frozenset({"trains", "maps", "scales", "clips"})
"""Effects by which each record's release depends on this record alone."""


@dataclass(frozen=True, kw_only=True)
class StageReceipt:
    """A defense stage and the receipt of what it did."""

    stage: Defense
    receipt: Receipt


@dataclass(frozen=True, kw_only=True)
class ChainReceipt(Receipt):
    """The receipts of a chain's stages, in order."""

    steps: tuple[StageReceipt, ...]

    def certificate(self, release_count: ReleaseCount = ONE_RELEASE) -> Certificate:
        return compiled(self.steps, release_count)

    def mechanism(self, release_count: ReleaseCount = ONE_RELEASE) -> SplitMechanism | None:
        """The mechanism of the stage whose certificate the chain takes over; the other stages do not change this ε."""
        first = _ranked([_own(self.steps, number, release_count) for number in range(len(self.steps))])[0]
        return bounded(self.steps, first).mechanism(release_count)

    @property
    def shared(self) -> str:
        for step in self.steps:
            effects = step.stage.effects
            if (effects is None or not effects <= _ROW_BY_ROW) and step.receipt.shared:
                return f"{step.stage.name}: {step.receipt.shared}"
        return ""

    @property
    def order(self) -> Tensor | None:
        return next((step.receipt.order for step in self.steps if step.receipt.order is not None), None)

    @property
    def log10_alike(self) -> float:
        return max(step.receipt.log10_alike for step in self.steps)

    @property
    def payload_share(self) -> float | None:
        """Share of its smashed data that a client sends after the masks that it applies itself, in [0, 1]."""
        return _sent_share(self.steps)


def _sent_share(steps: Sequence[StageReceipt]) -> float | None:
    """Share of its smashed data that a client sends after a chain's stages; None if no stage of the clients says so.

    Masks leave out positions, and a projection leaves out features of each position. Noise, a shift or a general map
    fills what stages before it left out, so that all of it must be sent.
    """
    places, features, known = 1.0, 1.0, False
    for step in steps:
        stage, share = step.stage, step.receipt.payload_share
        effects = stage.effects or frozenset()
        if (by_clients(stage) or noised_by_clients(stage)) and _fills(stage):
            places = features = 1.0
        if share is None or not by_clients(stage):
            continue
        known = True
        if effects == {"maps"}:
            features = share  # a map fills the features that a projection before it left out
        else:
            places *= share
    return places * features if known else None


def _fills(stage: Defense) -> bool:
    effects = stage.effects or frozenset()
    if "mixes" in effects and "noises" in effects:
        return noised_by_clients(stage)  # otherwise the noise is added to the mixture
    return bool(effects & {"noises", "scales", "maps"}) and not stage.keeps_zeros


def noised_by_clients(stage: Defense) -> bool:
    """Whether the clients add the noise of a stage that mixes; then the mixer or the server only mixes."""
    return getattr(stage, "site", "") == "client"


def by_clients(stage: Defense) -> bool:
    """Whether clients do not send what a stage masks: they run it, or a mixer who mixes sends them the masks' seed."""
    return stage.place == "client" or (stage.place == "mixer" and stage.group > 1)


def compiled(steps: Sequence[StageReceipt], release_count: ReleaseCount) -> Certificate:
    """The privacy certificate of a chain of defense stages that passed `rules.check_chain`.

    A noise stage gives the chain the same ε as it has alone:

    - Before the noise, a random function of each single image is allowed, and so is a permutation, since permutations
      commute with iid noise and coordinate-wise clipping. A clip stage before the noise bounds the sensitivity if only
      permutations lie between the two.
    - Stages after the noise are post-processing.
    - Mixing lowers ε only if the mixing stage itself adds the noise.

    The number of orders that a shuffle hides is reported in addition to ε. Stages at the server prove nothing.

    Source: post-processing, Dwork and Roth 2014, Prop. 2.1; derived for these stages in docs/explanation/accounting.md.
    """
    earlier = [_own(steps, number, release_count) for number in range(len(steps))]
    first = _ranked(earlier)[0]
    main = earlier[first]
    if main.kind == "nothing":
        reasons = [
            f"{step.stage.name}: {made.statement.removeprefix('nothing is proven: ')}"
            for step, made in zip(steps, earlier, strict=True)
        ]
        main = replace(main, statement=f"nothing is proven: {'; '.join(reasons)}")
    said, quantities = list(main.assumptions), dict(main.quantities)
    for number, (step, made) in enumerate(zip(steps, earlier, strict=True)):
        if number == first:
            continue
        said += [line for line in (_beside(step, made, number, first, main), *made.assumptions) if line not in said]
        quantities = {**made.quantities, **quantities}
        if made.kind == "differential_privacy":
            quantities = {f"{made.covers}_epsilon": made.epsilon, **quantities}
    if sum("positions_seen" in made.quantities for made in earlier) > 1:
        quantities.pop("positions_seen")  # that of one stage, and what several masks show together is not derived
    if "payload_share" in quantities:
        sent = _sent_share(steps)
        quantities["payload_share"] = 1.0 if sent is None else sent
    splits = [number for number, step in enumerate(steps) if "splits" in (step.stage.effects or ())]
    split = next((number for number in splits if not is_own(steps[number].stage)), None)  # a user's count is unmeasured
    if split is not None and main.kind == "differential_privacy" and main.covers == "release":
        held = _of_parts(steps, first, split, release_count)
        said.append(
            "this ε holds against every holder of parts; epsilon_part_… holds against a holder of one part alone, who "
            "sees no gradient"
        )
        quantities |= {f"epsilon_{name}": held.get(name, main.epsilon) for name in _parts(steps[split])}
    others = [step.stage for step in steps if step is not steps[first]]
    same = all(stage.effects == frozenset({"trains"}) or stage.place == "server" for stage in others)
    lower = main.lower if same else None  # holds for the noise stage's output, maybe not for the chain's
    return replace(main, lower=lower, assumptions=tuple(filter(None, said)), quantities=quantities)


def _ranked(made: Sequence[Certificate]) -> list[int]:
    return sorted(range(len(made)), key=lambda number: (_rank(made[number]), number))


def _parts(step: StageReceipt) -> dict[str, int]:
    """Number of coordinates of one image in each part of a split release, by the part's name."""
    assert isinstance(step.receipt, Nothing)
    return {name.removeprefix("coordinates_"): round(size) for name, size in step.receipt.quantities.items()}


def _of_parts(steps: Sequence[StageReceipt], noise: int, split: int, release_count: ReleaseCount) -> dict[str, float]:
    """ε against an adversary who holds a single part of a release, by the part's name.

    `noise` and `split` are the indices of the steps that add the noise and split the release. The noise is independent
    in every coordinate, so only this part's coordinates count. This requires clipping by coordinate. It also requires
    that nothing after the noise carries one part's data into another: no stage, no lower segment, and no server that
    trains several clients on all parts. Otherwise the result is empty, and the ε of the whole release holds.
    """
    receipt, lower = steps[noise].receipt, release_count.lower_model
    if steps[noise].stage.level == "input" or (lower != "frozen" and (lower != "trained" or release_count.clients > 1)):
        return {}
    between, places = [step.stage for step in steps[noise + 1 : split]], steps[split].stage.parts_by == "places"
    behind = [stage.effects or frozenset() for stage in between]
    if not isinstance(receipt, Noised) or not isinstance(receipt.mixing, NoMixing):
        return {}
    if any(e - {"permutes", "masks", "mixes"} for e in behind):
        return {}
    if places and not all(stage.keeps_positions and "permutes" not in (stage.effects or ()) for stage in between):
        return {}  # a part could hold data from places of other parts
    clip = _tighter(receipt, _bound(steps[:noise], steps[noise].stage.level))
    if not isinstance(clip, Clamp):
        return {}
    parts = _parts(steps[split])
    of_size = {
        size: replace(receipt, clip=replace(clip, dimensions=size)).certificate(release_count).epsilon
        for size in set(parts.values())
    }
    return {name: of_size[size] for name, size in parts.items()}


def _own(steps: Sequence[StageReceipt], number: int, release_count: ReleaseCount) -> Certificate:
    receipt = bounded(steps, number)
    if receipt is not steps[number].receipt:
        mixing = [step.stage for step in steps[:number] if step.stage.group > 1]
        if mixing and _teaches_others(mixing[0], release_count):
            return nothing(
                f"{steps[number].stage.name} clips what {mixing[0].name} mixed, so that one record moves the gradients "
                "of others, and with them what their lower segments release in other groups: no bound was derived; "
                "freeze the lower segments, or mix behind the noise"
            )
    made = receipt.certificate(release_count)
    if steps[number].stage.place == "server" and made.kind == "nothing" and not isinstance(receipt, Noised):
        reason = "the server does this to data that it already holds, which earns no credit"
        return replace(made, statement=f"nothing is proven: {reason}", assumptions=(), quantities={})
    return made


def bounded(steps: Sequence[StageReceipt], number: int) -> Receipt:
    """The receipt of step `number`; for noise on unmixed data, with the tighter of its own and the earlier clip set."""
    receipt = steps[number].receipt
    if isinstance(receipt, Noised) and receipt.covers == "release" and isinstance(receipt.mixing, NoMixing):
        return replace(receipt, clip=_tighter(receipt, _bound(steps[:number], steps[number].stage.level)))
    return receipt


def _teaches_others(mixing: Defense, release_count: ReleaseCount) -> bool:
    """Whether training the clients leaks more about a record than the ε of the noised mixture covers.

    The gradients that train the clients follow from the mixture before the noise. With raw updates ("trained"), ε
    covers this leak if one group holds all clients, because ε then counts all that a client sends. With noisy updates ε
    never covers this leak, because it counts a record's own gradient only.
    """
    lower = release_count.lower_model
    return isinstance(lower, PrivateUpdates) or (lower == "trained" and mixing.group < release_count.clients)


def _rank(made: Certificate) -> int:
    """Rank of a claim from 0, the strongest: privacy of the release, privacy of labels, a count of orders, nothing."""
    if made.kind == "differential_privacy":
        return 0 if made.covers == "release" else 1
    return 2 if made.kind == "permutation_count" else 3


def _bound(steps: Sequence[StageReceipt], level: str) -> ClipSet | None:
    """The set to which data are still clipped after the steps of this level ("input" or "smashed"); None if unbounded.

    Permutations preserve a bound on coordinates. A bound on an image's norm is preserved only by permutations inside an
    image. Any other stage removes a bound.
    """
    bound: ClipSet | None = None
    for step in steps:
        if step.stage.level != level:  # the lower segment lies between the levels
            continue
        effects = step.stage.effects or frozenset()
        spread = "permutes" in effects and step.stage.over_batch and not isinstance(bound, Clamp)
        if isinstance(step.receipt, Nothing) and step.receipt.bound is not None:
            bound = step.receipt.bound
        elif spread or not effects <= {"trains", "permutes"}:
            bound = None
    return bound


def _tighter(receipt: Noised, bound: ClipSet | None) -> ClipSet | None:
    norm = receipt.noise.distribution.norm
    sizes: list[tuple[float, ClipSet]] = []
    for clip in (receipt.clip, bound):
        if clip is not None:
            try:
                sizes.append((clip.sensitivity("replace_one", norm), clip))
            except ValueError:  # a clip by L2 norm gives no L1 sensitivity
                continue
    return min(sizes, key=lambda pair: pair[0])[1] if sizes else None


def _beside(step: StageReceipt, made: Certificate, number: int, first: int, main: Certificate) -> str:
    """A sentence on what a stage adds to the chain's claim; empty if the chain claims nothing."""
    name = step.stage.name
    if main.kind == "nothing":
        return ""
    if made.kind != "nothing":
        return f"{name} beside it: {made.statement}"
    if step.stage.place == "server" and not isinstance(step.receipt, Noised):
        return f"{name} at the server is post-processing and earns no credit"
    if isinstance(step.receipt, Mixed):
        return f"{name} mixes clients, which earns no credit"
    if main.kind != "differential_privacy" or main.covers == "labels":
        return f"{name} does not change the claim"
    if isinstance(step.receipt, Nothing) and step.receipt.bound is not None and number < first:
        return f"{name} bounds the smashed data before the noise"
    before = f"{name} before the noise earns no credit"
    return before if number < first else f"{name} after the noise is post-processing"


@dataclass(frozen=True, kw_only=True)
class _Sites:
    images: tuple[Defense, ...]
    smashed: tuple[Defense, ...]
    server: tuple[Defense, ...]


def sites_of(stages: Sequence[Defense]) -> _Sites:
    """The stages on images, the stages on smashed data before these reach the server, and the server's stages."""
    sent = [stage for stage in stages if stage.place != "server"]
    return _Sites(
        images=tuple(stage for stage in sent if stage.level == "input"),
        smashed=tuple(stage for stage in sent if stage.level != "input"),
        server=tuple(stage for stage in stages if stage.place == "server"),
    )


def run(
    stages: Sequence[Defense],
    release: Release,
    generator: Generator,
    groups: Tensor | None = None,
    kept: Generator | None = None,
) -> tuple[Release, tuple[StageReceipt, ...]]:
    """Apply the stages of a chain of defenses one after the other to M batches of B images, one batch per client.

    `groups` holds, for a stage that mixes, the indices of the k batches in each of G groups, int64 [G, k]; −1 marks an
    empty place. `kept` is the generator of ratios that are drawn once. Returns the last stage's release, and each stage
    with its receipt. The release's weights are the product of all stages' weights; a stage whose `keeps_positions` is
    false drops the weights of the stages before it.
    """
    steps = []
    for stage in stages:
        smashed, labels, weights, present = release.smashed, release.labels, release.weights, None
        if stage.group > 1:
            assert groups is not None
            smashed, labels, present = _seated(smashed, groups), _seated(labels, groups), groups >= 0
            weights = None if weights is None else _seated(weights, groups).squeeze(2)
        once = {"kept": kept} if stage.drawn == "once" else {}
        applied = stage.apply(smashed, labels, generator, present, **once)
        made, receipt = returned(stage.name, applied, (len(smashed), release.smashed.shape[1]), smashed.dtype)
        if isinstance(receipt, Permuted) and receipt.tokens is None and made.smashed.shape[:-1] == receipt.source.shape:
            receipt = replace(receipt, tokens=made.smashed.detach())  # so that orders of equal tokens count once
        if weights is not None and stage.keeps_positions:
            made = replace(made, weights=weights if made.weights is None else weights * made.weights)
        if made.apart is None:
            made = replace(made, apart=release.apart, apart_labels=release.apart_labels)
        release = made
        steps.append(StageReceipt(stage=stage, receipt=receipt))
    return release, tuple(steps)


def receipt_of(steps: Sequence[StageReceipt]) -> Receipt:
    """The receipt of one stage, or of a chain. A server's stage without noise earns no credit, alone or in a chain."""
    alone = len(steps) == 1 and (steps[0].stage.place != "server" or isinstance(steps[0].receipt, Noised))
    return steps[0].receipt if alone else ChainReceipt(steps=tuple(steps))


def _seated(values: Tensor, groups: Tensor) -> Tensor:
    """Gather values [n, ...] of n batches by `groups` [G, k] into [G, k, ...]; empty places get arbitrary values."""
    return values if groups.shape[1] == 1 else values[groups.clamp(min=0)]
