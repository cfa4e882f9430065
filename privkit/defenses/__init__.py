"""Defenses: one file each; each turns smashed data into a release and a receipt of what really happened."""

from privkit.defenses.base import Defense, Receipt, Release
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.none import NoDefense
from privkit.defenses.patch_shuffle import PatchShuffle

DEFENSES: dict[str, str] = {
    "batch_shuffle": "privkit.defenses.batch_shuffle:BatchShuffle",
    "none": "privkit.defenses.none:NoDefense",
    "patch_shuffle": "privkit.defenses.patch_shuffle:PatchShuffle",
}
"""Name -> "module:object" of every defense."""

__all__ = ["DEFENSES", "BatchShuffle", "Defense", "NoDefense", "PatchShuffle", "Receipt", "Release"]
