"""What is proven about the shuffling of patches and batches: counts of permutations and entropies, but no DP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if TYPE_CHECKING:
    from privkit.accountants.shuffles import permutations
    from privkit.accountants.shuffles.certificates import batch_shuffle, patch_shuffle
    from privkit.accountants.shuffles.entropy import entropy_after_attack
    from privkit.accountants.shuffles.variants import VARIANTS, Variant

__all__ = ["VARIANTS", "Variant", "batch_shuffle", "entropy_after_attack", "patch_shuffle", "permutations"]

__getattr__ = lazy(__name__)
