"""Permutation mechanisms by brute force: every outcome with its odds."""

from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import combinations, permutations, product
from math import factorial, prod

from privkit.accountants.shuffles.variants import Variant

Outcome = tuple[tuple[int, ...], ...]

SHAPES = [(2, 2, 1), (3, 2, 1), (3, 2, 2), (2, 3, 1), (4, 2, 2), (4, 2, 3), (3, 3, 2)]
"""(N, B, K) of the reference enumerations."""
EDGES = [(1, 2, 0), (1, 2, 1), (2, 2, 0), (2, 2, 2), (3, 1, 1), (3, 1, 2), (2, 1, 1), (3, 2, 0), (3, 2, 3)]
COUNTED = {
    "algorithm_2": dict(zip(SHAPES, [8, 216, 72, 48, 3456, 1152, 1296], strict=True)),
    "final_shuffle": dict(zip(SHAPES, [20, 684, 360, 232, 30528, 9792, 17712], strict=True)),
    "kept_in_place": {(2, 2, 1): 5, (3, 2, 1): 133, (3, 2, 2): 10, (2, 3, 1): 29},
}


@cache
def law(n: int, b: int, k: int, variant: Variant) -> dict[Outcome, Fraction]:
    """Probability of every outcome, by trying every draw; token t of image i is i·n+t, row j is output j."""
    seen: Counter[Outcome] = Counter()
    own = [range(i * n, (i + 1) * n) for i in range(b)]
    if variant == "algorithm_2":
        starts = product(*(permutations(image) for image in own))
        draws = ([list(order[:k]) for order in orders] for orders in starts)
    else:
        draws = ([list(kept) for kept in choice] for choice in product(*(combinations(image, k) for image in own)))
    for kept in draws:
        pool = [t for image, stay in zip(own, kept, strict=True) for t in image if t not in stay]
        for dealt in permutations(pool):
            hands = [list(dealt[i * (n - k) : (i + 1) * (n - k)]) for i in range(b)]
            if variant == "algorithm_2":
                seen[tuple(tuple(stay + hand) for stay, hand in zip(kept, hands, strict=True))] += 1
            elif variant == "final_shuffle":
                for orders in product(*(permutations(stay + hand) for stay, hand in zip(kept, hands, strict=True))):
                    seen[orders] += 1
            else:
                fill = iter(dealt)
                rows = zip(own, kept, strict=True)
                seen[tuple(tuple(t if t in stay else next(fill) for t in image) for image, stay in rows)] += 1
    draws_in_all = sum(seen.values())
    return {outcome: Fraction(count, draws_in_all) for outcome, count in seen.items()}


@cache
def assignments(n: int, b: int, k: int) -> int:
    """A: ways to deal b·n tokens into b outputs of n so that each holds at least k of its own, one image at a time."""
    rows = [row for row in product(range(n + 1), repeat=b) if sum(row) == n]
    states: Counter[tuple[int, ...]] = Counter({(n,) * b: 1})
    for image in range(b):
        following: Counter[tuple[int, ...]] = Counter()
        for room, ways in states.items():
            for row in rows:
                if row[image] >= k and all(x <= y for x, y in zip(row, room, strict=True)):
                    multinomial = factorial(n) // prod(factorial(x) for x in row)
                    following[tuple(y - x for x, y in zip(row, room, strict=True))] += ways * multinomial
        states = following
    return states[(0,) * b]
