"""The context of an audit of a recording. Its adversary knows only recorded data."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Generator, Tensor, nn

from privkit.accountants.answer import epsilon
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.attacks.base import NotApplicable, Query, QueryResult, View, known_to
from privkit.attacks.goals.control_clients import Defended
from privkit.attacks.inversion.known_lower import mixed_release
from privkit.attacks.inversion.mixed_releases import records_of_rows
from privkit.audit.claims import limits_of, uncovered
from privkit.audit.contained import is_own_part
from privkit.audit.declared import Declared, declared_by, defended
from privkit.audit.goals.context import AttackContext
from privkit.audit.goals.goal import audit_goal
from privkit.defenses.charge import given_labels, nothing
from privkit.errors import UsageError, one_line
from privkit.files.storage import write_record
from privkit.recording.read import Recording
from privkit.reports.columns import DECLARATION
from privkit.reports.gate import EXEMPT
from privkit.reports.schema import Check
from privkit.reports.strongest import undefended
from privkit.run.records import TRAINED
from privkit.shared.certificate import Certificate
from privkit.shared.interval import Interval, clopper_pearson
from privkit.shared.seeds import derive
from privkit.torch_utils.seeded import seeded
from privkit.training import Clients
from privkit.wire import channel
from privkit.wire.channel import moved_view
from privkit.wire.transcript import RecordedRound, Transcript

_ROUNDED = 2**-23  # relative error of a quotient of whole numbers that is stored as float32
_ONE_PASS = (
    "the attack reads {} passes, which send the same records again, and the declared ε is for records that are drawn "
    "anew in each round, or for the mixing ratios of one pass"
)
_DECLARED = "ε holds for the mechanism that the recording declares; privkit did not run it"


@dataclass(frozen=True, kw_only=True)
class _RecordedContext(AttackContext):
    source: Recording  # the recording
    device: torch.device  # where the attack computes
    declared: Declared  # whether the recording's data agree with its declarations

    def refuse(self) -> None:
        attack, described, nouns = self.attack, self.source.description, self.source.domain.records
        audit_goal(attack).refuse_recording(attack, self.source)
        if self.source.several and "upper" in known_to(attack):
            raise NotApplicable(
                f"it computes cross-entropy with the server's segment, but these {nouns} have several labels each"
            )
        if attack.mounting.passes > described.passes:
            raise NotApplicable(
                f"{attack.name} reads {attack.mounting.passes} passes of the attacked {nouns}, and {described.passes} "
                "were recorded; record more, or lower its passes"
            )

    def checks(self) -> tuple[Check, ...]:
        """Check whether data contradict the declarations; without a mechanism, only report a contradicted defense."""
        compared = self.declared.compared
        if (self.source.mechanism is None or self.source.left_out) and not compared.refuted:
            return ()
        refuted = "; ".join(compared.refuted)
        detail = refuted or f"what the recording declares is not refuted by its data: {compared.sentence}"
        judged = bool(compared.checked or refuted)
        return (Check(name=DECLARATION, passed=not refuted if judged else None, detail=detail, decisive=judged),)

    def notes(self) -> tuple[str, ...]:
        source, described = self.source, self.source.description
        measured, nouns, labels = described.measured, source.domain.records, source.whole.truth.y
        unknown = {
            "accuracy": measured.accuracy is None,
            "epsilon (no mechanism was recorded)": source.mechanism is None,
            "costs": True,
            f"scores of {nouns} (no true {source.record} was recorded)": not len(source.truth),
            f"controls (no own {source.record} was recorded)": not len(source.own),
            "answers to queries (no lower segment was recorded)": described.lower is None,
        }
        told, rounds = [EXEMPT] if undefended(described.name) else [], len(source.views)
        if rounds < described.rounds:
            which = "the last ones" if described.passes == 1 else "the last ones of each pass"
            attacked = f"{rounds} of {described.rounds} recorded rounds were attacked"
            told.append(f"{attacked}, {which}, because the budget has no more victims")
        told.append(f"not known from the recording: {', '.join(name for name, lacks in unknown.items() if lacks)}")
        amounts = {"up": measured.bytes_up, "down": measured.bytes_down}
        sent = [f"{value:g} bytes {way} {_a(source.record)}" for way, value in amounts.items() if value is not None]
        repeated = {"accuracy": measured.accuracy is not None, " and ".join(sent): bool(sent)}
        if any(repeated.values()):
            names = ", ".join(name for name, given in repeated.items() if given)
            told.append(f"taken from the recording without a check: {names}")
        if measured.accuracy is not None and labels.ndim == 1 and len(labels.unique()) > 1:  # unknown labels are all 0
            most = labels.bincount().max().item() / len(labels)
            told.append(f"the most frequent label has a share of {most:.3f} of the {len(labels)} recorded {nouns}")
        if measured.bytes_up is None:
            one = source.views[-1].smashed[0]
            told.append(f"a released row has {one.numel():,} numbers, {source.row_bytes:,} bytes in the recording")
        if described.schema_version == 1:
            told += ["an old recording, of schema version 1"]
            told += ["its recording.json has no checksum, so that a change of it would not show"]
        if doubt := self.declared.doubt(self.attack.mounting.passes):
            told.append(doubt)
        elif self.declared.unsent:
            told.append(f"not sent again through the recorded lower segment: {self.declared.unsent}")
        if source.mechanism is not None and self.certificate is not None:
            compared = self.declared.compared
            said = "what the recording declares is refuted by its own data" if compared.refuted else _DECLARED
            told.append(f"{said}; {compared.sentence}")
            if self.declared.own:
                told.append("privkit wrote this recording of a run; nothing proves that its files are unchanged")
            told += uncovered(self.certificate, source.mechanism.lower_model, known_to(self.attack))
        return tuple(told)

    def lacking(self) -> str:
        source, wanted = self.source, known_to(self.attack)
        absent = {
            "lower": {"lower", "query"} & wanted and source.description.lower is None,
            f"own.{source.domain.name}": "auxiliary" in wanted and not len(source.own),
            "own.labels": "auxiliary_labels" in wanted and not source.own_labels,
            "upper": "upper" in wanted and source.description.upper is None,
        }
        what = " and ".join(name for name, lacks in absent.items() if lacks)
        lacks, data = what and f"; the recording lacks {what}", self.seed_data
        if "auxiliary" in wanted and data.dropped and len(data.auxiliary) < 4 * self.round_size:
            left = f"{data.dropped} own {source.domain.records} were left out"
            lacks += f"; {left}, since they are also the attacked ones: record others as own"
        return lacks

    def rounds(self) -> Transcript:
        assert self.source.labels is not None
        transcript, size = Transcript(), self.round_size
        views, cuts = self.recording.views[: self.source.pass_rounds], self.source.second[-self.source.pass_rounds :]
        for number, (view, members) in enumerate(zip(views, self.source.members.split(size), strict=True)):
            if bool((members < 0).any()):
                raise NotApplicable("the label of some rows is not known, since truth.members has -1; record all")
            cut = cuts[number : number + 1]  # the second cut of a U-shape's one client
            one = RecordedRound(
                view=replace(view, messages=1),
                received=(View(round=number, smashed=view.smashed, cut_gradient=view.cut_gradient),),
                members=torch.arange(size).unsqueeze(1),
                labels=self.source.labels[members.flatten()],
                returned=tuple(moved_view(one, lambda value: value.to(self.device).clone()) for one in cut),
            )
            transcript.rounds.append(one)
        return transcript

    def keeps_labels(self) -> bool:
        return bool(self.source.second)

    def label_shares(self) -> Tensor:
        assert self.source.labels is not None
        return self.source.labels.bincount(minlength=self.source.classes) / len(self.source.labels)

    @cached_property
    def _lower(self) -> nn.Module | None:
        """The clients' segment: `Clients` if privkit can build the defense, else the user's module; None if missing."""
        if (lower := self.source.lower()) is None:
            return None
        edge = defended(lower, self.source, self.config.protocol.spec, derive(self.cell.seed, "frozen block"))
        _must_fit(edge.to(self.device), self.source, self.device)
        return edge

    @property
    def _edge(self) -> Clients | None:
        return self._lower if isinstance(self._lower, Clients) else None

    def lower(self) -> nn.Module | None:
        return self._lower if self._edge is None else super().lower()

    def upper(self) -> nn.Module | None:
        """The recorded upper segment; None without one, or for a U-shape, whose upper segment gives no logits."""
        upper = None if self.keeps_labels() else self.source.upper()
        return None if upper is None else upper.to(self.device)

    def query(self) -> Query | None:
        """The adversary's access to the clients; None without a recorded lower segment. If the defense is unknown, the
        answers are masked or mixed with the weights of a recorded round."""
        lower, views = self._lower, self.source.views
        if lower is None or isinstance(lower, Clients):
            return super().query()

        @torch.no_grad()
        def ask(images: Tensor, draws: Generator) -> QueryResult:
            with seeded(images.device, int(torch.randint(2**31, (1,), generator=draws, device=draws.device))):
                smashed = lower(images).float()
            number = int(torch.randint(len(views), (1,), generator=draws, device=draws.device))
            return sent_like(moved_view(views[number], lambda value: value.to(smashed.device)), smashed, draws)

        return ask

    def defended(self) -> Defended:
        unknown = Defended(name="an unknown defense", why_not="privkit does not know the defense of this recording")
        return super().defended() or unknown


def recorded_context(start: AttackContext) -> _RecordedContext:
    """The context of one cell (defense, attack, seed) on a recording; its result row has the fields that do not depend
    on the attack's outcome."""
    config, cell, folder, source = start.config, start.cell, start.folder, start.config.recording
    assert source is not None
    device, passes = start.seed_data.auxiliary.x.device, cell.attack.spec.mounting.passes
    write_record(folder.model(cell.model_id) / TRAINED, {"model": cell.model_id, "files": {}, "recorded": source.files})
    read = min(passes, source.description.passes)
    declared, mechanism = declared_by(source), source.mechanism_of(read)
    certificate = _certificate(source, declared, mechanism, config.delta, read)
    limits = limits_of(certificate, mechanism) if certificate is not None else None
    misleading = {"lower", "query", *(() if declared.quieter is None else ("imitate",))}
    doubt = declared.doubt(passes) if misleading & known_to(cell.attack.spec) else ""
    views = [moved_view(view, lambda value: value.to(device)) for view in source.last_passes(passes)]
    if is_own_part(cell.attack.spec):  # the attack may change the views in place, and the next cell reads them
        views = deepcopy(views)
    known = {"accuracy": _accuracy(source), "certificate": certificate, "limits": limits, "doubt": doubt}
    made = {
        "recording": channel.RecordedRounds(views=views, receipts=[], members=source.members.flatten().repeat(passes)),
        "certificate": certificate,
        "row": start.row.model_copy(update=known),
        "source": source,
        "device": device,
        "declared": declared,
    }
    return _RecordedContext(**{**vars(start), **made})


def _accuracy(source: Recording) -> Interval | None:
    """The recorded accuracy with its Clopper-Pearson interval; None if not recorded. If only rounding to float32 keeps
    the share from being a whole number of right labels, this number is used."""
    share, count = source.description.measured.accuracy, source.description.measured.test_images
    if share is None or count is None:
        return None
    labels = count * (source.classes if source.several else 1)
    right = round(share * labels)
    near = abs(share * labels - right) <= _ROUNDED * labels
    return clopper_pearson(right * count / labels if near else share * count, count)


def _certificate(
    source: Recording, declared: Declared, mechanism: SplitMechanism | None, delta: float, passes: int = 1
) -> Certificate | None:
    """The declared mechanism's certificate for `passes` passes, which claims nothing if the data refute it or if it
    covers one pass only; None without a mechanism."""
    if source.left_out:
        made = nothing(
            f"this old recording (schema version {source.description.schema_version}) leaves out "
            f"{' and '.join(source.left_out)} of its mechanism, which old versions set to the most favorable value; "
            f"write the true value into recording.json"
        )
    elif mechanism is None:
        return None
    elif declared.compared.refuted:
        made = nothing("; ".join(declared.compared.refuted))
    elif passes > 1 and source.covers_one_pass:
        made = nothing(_ONE_PASS.format(passes))
    else:
        made = epsilon(mechanism, delta)
        # Gradients follow from labels, wherever the loss was computed: at the server, or at a U-shape's clients.
        told = source.second or any(view.labels is not None or view.cut_gradient is not None for view in source.views)
        if made.kind == "differential_privacy" and mechanism.labels is None and told:
            made = given_labels(made, mechanism.lower_model)
    return replace(made.declared(_DECLARED), standing="declared")


@torch.no_grad()
def sent_like(recorded: View, smashed: Tensor, draws: Generator) -> QueryResult:
    """Answer a query: release smashed data [N, ...], ordered by client, like the data of a recorded round.

    Each message is masked or mixed by the public weights of recorded releases of this message, drawn at random. If no
    weights were recorded, each record is released alone.
    """
    if recorded.weights is None:
        members = torch.arange(len(smashed), device=smashed.device).unsqueeze(1)
        return QueryResult(view=View(round=0, smashed=smashed), members=members)
    messages, mixed = recorded.messages, recorded.mixed
    clients = messages * mixed if recorded.clients is None else int(recorded.clients.max()) + 1
    if len(smashed) % clients:
        raise NotApplicable(f"a query of {len(smashed)} records cannot have equally many of {clients} clients")
    each, known = len(smashed) // clients, len(recorded.smashed) // messages
    rows = torch.randint(known, (messages, each), generator=draws, device=draws.device).to(smashed.device)
    rows = (rows + known * torch.arange(messages, device=smashed.device).unsqueeze(1)).flatten()
    like = replace(
        recorded,
        round=0,
        smashed=smashed.new_zeros(messages * each, *smashed.shape[1:]),
        weights=recorded.weights[rows],
        clients=None if recorded.clients is None else recorded.clients[rows],
        cut_gradient=None,
        labels=None,
    )
    members = records_of_rows(like)
    mixture = mixed_release(smashed[members.clamp_min(0)].flatten(0, 1), mixed, like.weights)
    return QueryResult(view=replace(like, smashed=mixture), members=members)


def _must_fit(lower: nn.Module, source: Recording, device: torch.device) -> None:
    if isinstance(lower, Clients):
        return
    wanted = list(source.views[0].smashed.shape[1:])
    domain, one = source.domain, _a(source.record)
    try:
        made = list(lower(domain.zeros(2).to(device)).shape[1:])
    except Exception as error:
        raise UsageError(
            f"the recorded lower segment fails on {domain.records} {list(domain.shape)}: {one_line(error)}"
        ) from None
    try:
        if not domain.kind.pictures:
            with torch.random.fork_rng(devices=[]):
                lower(domain.extremes(Generator().manual_seed(0)).to(device))
    except Exception:
        raise UsageError(
            f"the recorded lower segment fails on {domain.records} of the largest ids, so it embeds fewer words or "
            "categories than the recording names; record the domain that it was trained on"
        ) from None
    if made != wanted:
        raise UsageError(
            f"the recorded lower segment makes {made} of {one}, and the rounds hold {wanted}; record the segment with "
            "its defense, up to what crosses the cut"
        )


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
