"""What a row is about, in words: where the network is cut, and what the clients run behind the defense."""

from __future__ import annotations

from privkit.defenses.chain import stages_of
from privkit.models.tokens import FirstBlock
from privkit.run.plan import Cell
from privkit.settings.config import AuditConfig
from privkit.training import Clients


def arrangement(config: AuditConfig, cell: Cell, edge: Clients | None = None) -> tuple[str, ...]:
    """Where the network is cut, whether its patches overlap, which block follows the defense, and how often attacked
    records cross.

    Args:
        config: of the run.
        cell: one of its cells.
        edge: the cell's clients; nothing is said of a block before there are any.
    """
    model, passes = config.model.spec, cell.attack.spec.mounting.passes
    cut, overlap = getattr(model, "cut", ""), getattr(model, "overlapping", False)
    block = "" if edge is None else _block(edge, getattr(model, "cuts", ()), cut)
    told = (f"cut after {cut}" if cut else "", "overlapping patches" if overlap else "", block)
    return (*filter(None, told), "one pass" if passes == 1 else f"{passes} passes")


def _block(edge: Clients, cuts: tuple[str, ...], cut: str) -> str:
    """The block that clients run behind the defense; that there is none is said of shuffles alone."""
    if isinstance(edge.block, FirstBlock):
        return f"{cuts[cuts.index(cut) + 1] if cut in cuts else 'its first block'} frozen behind the defense"
    if edge.block is not None:
        return "a drawn frozen block behind the defense"
    shuffled = any("permutes" in (stage.effects or ()) for stage in stages_of(edge.defense))
    return "no block behind the shuffle" if shuffled else ""
