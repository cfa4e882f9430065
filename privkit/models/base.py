"""The interface of a split model: two modules, and the smashed data between them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

from annotated_types import Ge, Le
from torch import Tensor, nn

from privkit.constraints import Checked, choice
from privkit.errors import UsageError, WrongForm

SMALL_IMAGE = 64  # pixels per side below which models for 224 pixels take smaller patches and strides

Depth = Annotated[int, Ge(1), Le(1000)]  # number of blocks or layers in both segments together


@dataclass(kw_only=True)
class SplitModel:
    """A network cut into a client's segment and a server's segment.

    Attributes:
        lower: the client's segment, records [N, ...] -> smashed data [N, T, D], [N, C', H', W'] or [N, D]. It contains
            the normalisation. Unless it has recurrent layers, `torch.func.vmap` over stacked weights and records can
            evaluate the segments of n clients in one call.
        upper: the server's segment, smashed data -> logits [N, classes]; see `predicts`.
        hides_places: whether permuting an image's patches only permutes its tokens; None if unknown. The accounting of
            shuffles needs this. It can be False even without position embedding: tokens of overlapping patches reveal
            their neighbors, so a jigsaw solver can reassemble a shuffled image. Tests check the value for privkit's
            models; an audit measures it for all other models.
        other_tokens: number of tokens that represent no patch (a class token, registers), if `hides_places` is True.
        predicts: "labels", or "texts" if the logits [N, T, words] predict the token that follows each of T tokens. In
            the second case, `upper` has the matching loss (`privkit.training.losses.next_token`).
        class_token: who adds the class token. "server": the upper segment adds it, so the token never crosses the cut.
            "client": the lower segment adds it, as token 0 of the smashed data [N, T+1, D]. "none": there is no class
            token, or a user wrote the model.
    """

    lower: nn.Module
    upper: nn.Module
    hides_places: bool | None = None
    other_tokens: int = 0
    predicts: Literal["labels", "texts"] = "labels"
    class_token: Literal["none", "server", "client"] = "none"


def split_of(spec: ModelSpec, domain: Any, classes: int, *, positions: bool, seed: int) -> SplitModel:
    """Call `spec.build`. Raises `WrongForm` if it returns no `SplitModel`."""
    made = spec.build(domain, classes, positions=positions, seed=seed)
    if not isinstance(made, SplitModel):
        raise WrongForm(
            f"build of {type(spec).__name__} returns a {type(made).__name__}; return "
            "privkit.models.base.SplitModel(lower=…, upper=…)"
        )
    return made


def sent_by(lower: nn.Module, records: Tensor) -> Tensor:
    """The smashed data of N records. Raises `WrongForm` if the lower segment returns no tensor."""
    smashed = lower(records)
    if not isinstance(smashed, Tensor):
        raise WrongForm(f"the lower segment returns a {type(smashed).__name__}; return one tensor")
    return smashed


class ModelSpec(Protocol):
    """An immutable description of a model; its method `build` creates the `SplitModel`.

    Attributes:
        domain: kind of records that the model reads: "images", "tokens", "tables" or "any".

    A model may also name `quick_attacks`: attacks, with their options, that `--attack auto` adds for this model.
    """

    domain: ClassVar[str]

    def build(self, domain: Any, classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build the lower and upper segment, with initial weights drawn from `seed`.

        Args:
            domain: description of the records (their kind and shape); the kind must be the one that this model reads.
            classes: number of classes.
            positions: whether the lower segment may embed positions; shuffling defenses forbid it.
            seed: seed of the initial weights; the global generator is left unchanged.

        Raises:
            UsageError: if the segments cannot be built, or if `positions` is False and the lower segment embeds
                positions.
        """


class NamedCuts(Checked):
    """Base class of privkit's own models. Their field `cut` is one of the layer names in `cuts`.

    Attributes:
        overlapping: whether patches share pixels for all values of the options.
        cut: name of the last layer in the lower segment.
    """

    overlapping: ClassVar[bool] = False

    cut: str

    @property
    @abstractmethod
    def cuts(self) -> tuple[str, ...]:
        """Names of the possible cut layers, from the input to the output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("cut", self.cut, self.cuts)


class EvenHeads(NamedCuts):
    """Base class of transformers whose attention heads split a token's width equally."""

    width: int
    heads: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(f"heads must divide width ({self.width}), got {self.heads}")


def check_class_token(positions: bool, remedy: str) -> None:
    """Raise `UsageError` with advice `remedy` if `positions` is False: a defense would then shuffle the class token."""
    if not positions:
        raise UsageError(
            "a shuffle moves every token that the client sends, and the server could not find the class token again: "
            f"{remedy}, or choose a defense that does not shuffle"
        )
