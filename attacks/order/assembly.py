"""Solves jigsaw puzzles of tokens ("pieces"): finds each piece's place from scores of places and of neighbors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
from numpy.typing import NDArray

from privkit.attacks.assign import cheapest
from privkit.shared.array import Array

Places = NDArray[np.int64]

_PATIENCE = 60  # rounds of ruin and recreate ("kicks") without gain, after which a search stops
_GAIN = 1e-9  # least difference of scores that counts as a gain
_PIECES = 128  # about this number of pieces is searched at once; a small puzzle is searched from several starts
_RANDOM = 8  # number of random starts
_ALTERNATIONS = 4  # largest number of searches over all pictures
_GROWTH = 1e-3  # least relative growth of the score that calls for another search
_KICKS_OF_ALL, _KICKS_OF_EACH = 0.1, 0.25  # shares of `kicks` on all pieces, which cost more, and on each picture
_FAR = 3.0  # distance in grid steps from which on all places are equally unlikely


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The places of a puzzle: `pictures` grids of `rows` × `columns`, numbered picture by picture and row by row."""

    rows: int
    columns: int
    pictures: int = 1

    @property
    def places(self) -> int:
        return self.rows * self.columns * self.pictures

    @cached_property
    def neighbors(self) -> Places:
        """The places left of, right of, above and below each of S places, int64 [4, S]; S means no neighbor."""
        inner = np.arange(self.places).reshape(self.pictures, self.rows, self.columns)
        around = np.pad(inner, ((0, 0), (1, 1), (1, 1)), constant_values=self.places)
        sides = around[:, 1:-1, :-2], around[:, 1:-1, 2:], around[:, :-2, 1:-1], around[:, 2:, 1:-1]
        return np.stack(sides).reshape(4, -1)

    @cached_property
    def colors(self) -> NDArray[np.bool_]:
        """Whether a place is a black field of a chess board, bool [S]; no two black fields are neighbors."""
        inner = np.arange(self.rows)[:, None] + np.arange(self.columns)
        return np.tile(inner.ravel() % 2 == 0, self.pictures)


@dataclass(frozen=True, kw_only=True)
class Puzzles:
    """M puzzles with the same grids of places. Each has S pieces for S places."""

    unary: Array  # [M, S, S], log-odds of piece i in place s
    pairs: Array  # [M, 2, S, S], log-odds of piece j right of (0) and below (1) piece i
    frame: Frame  # the places

    @cached_property
    def sides(self) -> list[Array]:
        """Four tables of pair scores, [M, S+1, S], for neighbors on the left, on the right, above and below.

        Entry (i, j) scores piece j if piece i is this neighbor. The last row, for a missing neighbor, is 0.
        """
        right, down = self.pairs[:, 0], self.pairs[:, 1]
        tables = right, right.transpose(0, 2, 1), down, down.transpose(0, 2, 1)
        return [np.concatenate([table, np.zeros_like(table[:, :1])], 1) for table in tables]

    def only(self, some: NDArray[np.bool_] | Places) -> Puzzles:
        """The puzzles selected by `some`, a mask or indices."""
        left = Puzzles(unary=self.unary[some], pairs=self.pairs[some], frame=self.frame)
        left.__dict__["sides"] = [table[some] for table in self.sides]  # fills the cached property
        return left

    def fit(self, at: Places) -> Array:
        """Score [M, S] of the piece in each place, given by `at`: unary score plus pair scores with all neighbors."""
        m = np.arange(len(at))[:, None]
        around = np.concatenate([at, np.full_like(at[:, :1], self.frame.places)], 1)
        unary = self.unary[m, at, np.arange(self.frame.places)]
        pairs = [table[m, around[:, near], at] for table, near in zip(self.sides, self.frame.neighbors, strict=True)]
        return np.asarray(unary + sum(pairs))

    def score(self, at: Places) -> Array:
        """Score [M] of each whole arrangement: the sum of all unary scores and of all pair scores, each pair once."""
        unary = self.unary[np.arange(len(at))[:, None], at, np.arange(self.frame.places)]
        return np.asarray((self.fit(at) + unary).sum(1) / 2)


def best_arrangement(puzzles: Puzzles, starts: list[Places], kicks: int, rng: np.random.Generator) -> Places:
    """For each of M puzzles, search for the arrangement of pieces with the highest score.

    The result and each of the `starts`, int64 [M, S], hold the piece in each place. All starts are improved locally.
    The best one (the best few, if the puzzle is small) is searched further, in up to `kicks` rounds of ruin and
    recreate. A round removes a random share of the pieces, mostly badly placed ones, and in half of the cases shifts
    the rest. Then it fills the gaps, the best piece first, and improves locally. The outcome is kept if its score is
    not lower. A search stops after 60 rounds without gain. The best result of all searches counts.

    Source: refilling around kept segments: Pomeranz et al. 2011 §3; the optimal re-assignment of non-adjacent places is
    an exact step on the quadratic assignment (derived).
    """
    polished = np.stack([_polish(puzzles, start, rng, 10) for start in starts])
    scores = np.stack([puzzles.score(at) for at in polished])
    several, m = max(1, _PIECES // puzzles.frame.places), np.arange(scores.shape[1])
    best_starts = scores.argsort(0, kind="stable")[::-1][:several]
    at: Places = polished[best_starts, m].reshape(-1, puzzles.frame.places)
    best, waited = scores[best_starts, m].ravel(), np.zeros(best_starts.size, np.int64)
    active, shape = np.arange(len(at)), best_starts.shape
    puzzles = puzzles.only(np.tile(m, len(best_starts)))
    for _ in range(kicks):
        rest = waited[active] < _PATIENCE
        if not rest.any():
            break
        if not rest.all():
            puzzles, active = puzzles.only(rest), active[rest]
        tried = _polish(puzzles, fill(puzzles, _ruin(puzzles, at[active], rng)), rng, 6)
        score = puzzles.score(tried)
        waited[active] = np.where(score > best[active] + _GAIN, 0, waited[active] + 1)
        better = score >= best[active]
        at[active[better]], best[active[better]] = tried[better], score[better]
    return np.asarray(at.reshape(*shape, -1)[best.reshape(shape).argmax(0), m])


def best_pictures(puzzle: Puzzles, at: Places, kicks: int, rng: np.random.Generator) -> Places:
    """Search for the best arrangement of one puzzle of several pictures.

    `at` and the result hold the piece in each place, int64 [1, S]. A search over all pieces, with a tenth of the
    `kicks`, moves pieces between pictures. Then each picture is a separate puzzle, and all of these are searched at
    once, with a quarter of the `kicks`. The two searches alternate until the score hardly grows, at most four times.
    Without kicks, all pieces are improved once.
    """
    if kicks == 0:
        return best_arrangement(puzzle, [at], 0, rng)
    pictures, inside = puzzle.frame.pictures, puzzle.frame.places // puzzle.frame.pictures
    frame = Frame(rows=puzzle.frame.rows, columns=puzzle.frame.columns)
    before = -np.inf
    for _ in range(_ALTERNATIONS):
        at = best_arrangement(puzzle, [at], ceil(_KICKS_OF_ALL * kicks), rng)
        pieces = at.reshape(pictures, inside)
        places, each = np.arange(at.size).reshape(pictures, 1, inside), pieces[:, :, None]
        pairs = puzzle.pairs[0][:, each, pieces[:, None]].transpose(1, 0, 2, 3)
        alone = Puzzles(unary=puzzle.unary[0][each, places], pairs=pairs, frame=frame)
        as_they_are = np.tile(np.arange(inside), (pictures, 1))
        within = best_arrangement(alone, [as_they_are, *starts(alone)], ceil(_KICKS_OF_EACH * kicks), rng)
        at = np.take_along_axis(pieces, within, 1).reshape(1, -1)
        score = puzzle.score(at).item()
        if score - before <= _GROWTH * abs(score):
            break
        before = score
    return at


def fill(puzzles: Puzzles, at: Places) -> Places:
    """Fill the empty places (−1) of arrangements `at`, int64 [M, S], the best-scored piece and place first."""
    s, m = puzzles.frame.places, np.arange(len(at))
    around = np.concatenate([np.where(at < 0, s, at), np.full_like(at[:, :1], s)], 1)
    gain = puzzles.unary.transpose(0, 2, 1).copy()  # [M, S, S], the score of each place (row) and piece (column)
    for table, near in zip(puzzles.sides, puzzles.frame.neighbors, strict=True):
        gain += table[m[:, None], around[:, near]]
    filled, places = np.nonzero(at >= 0)
    gain.transpose(0, 2, 1)[filled, at[filled, places]] = -np.inf
    gain[filled, places] = -np.inf
    most, best = gain.max(2), gain.argmax(2)  # [M, S], each place's best piece and its score
    for _ in range(int((at < 0).sum(1).max(initial=0))):
        place = most.argmax(1)
        open_ = m[np.isfinite(most[m, place])]
        place, piece = place[open_], best[open_, place[open_]]
        around[open_, place] = piece
        gain.transpose(0, 2, 1)[open_, piece] = -np.inf
        gain[open_, place] = -np.inf
        changed = [np.nonzero(best[open_] == piece[:, None])]
        for side, opposite in ((0, 1), (1, 0), (2, 3), (3, 2)):  # the piece's left neighbor has the piece on its right
            near = puzzles.frame.neighbors[side, place]
            there = np.flatnonzero(near < s)
            gain[open_[there], near[there]] += puzzles.sides[opposite][open_[there], piece[there]]
            changed.append((there, near[there]))
        rows, columns = (np.concatenate(some) for some in zip(*changed, strict=True))
        scores = gain[open_[rows], columns]
        most[open_[rows], columns], best[open_[rows], columns] = scores.max(1), scores.argmax(1)
    return around[:, :s]


def assign(unary: Array) -> Places:
    """The piece in each place, int64 [M, S], with the highest sum of unary scores [M, S, S] (as in `Puzzles`)."""
    return cheapest(-unary.transpose(0, 2, 1))


def _ruin(puzzles: Puzzles, at: Places, rng: np.random.Generator) -> Places:
    """Remove a random share of each puzzle's pieces, mostly pieces with low scores; −1 marks an empty place. Then, with
    probability 1/2, move the puzzle's other pieces by up to two grid cells in each direction."""
    frame, m = puzzles.frame, np.arange(len(at))[:, None]
    fit = puzzles.fit(at)
    spread = fit.std(1, keepdims=True) * rng.exponential(size=(len(at), 1))
    noisy = fit + spread * rng.normal(size=fit.shape)
    empty = noisy.argsort(1).argsort(1) < frame.places * rng.uniform(0.1, 0.8, (len(at), 1))
    ruined = np.where(empty, -1, at)
    step = rng.integers(-2, 3, (2, len(at), 1)) * (rng.random((len(at), 1)) < 0.5)
    picture, inside = np.divmod(np.arange(frame.places), frame.rows * frame.columns)
    row, column = inside // frame.columns - step[0], inside % frame.columns - step[1]
    within = (row >= 0) & (row < frame.rows) & (column >= 0) & (column < frame.columns)
    origin = np.where(within, picture * frame.rows * frame.columns + row * frame.columns + column, 0)
    return np.where(within, ruined[m, origin], -1)


def _polish(puzzles: Puzzles, at: Places, rng: np.random.Generator, rounds: int) -> Places:
    """Re-assign the pieces in non-adjacent places optimally: in white, then black chess fields, then random sets."""
    frame, at, m = puzzles.frame, at.copy(), np.arange(len(at))[:, None, None]
    for number in range(rounds):
        draw = np.append(rng.random(frame.places), 2.0)
        chosen = draw[:-1] < draw[frame.neighbors].min(0)
        places = np.flatnonzero((frame.colors if number % 2 else ~frame.colors) if number < 4 else chosen)
        if len(places) < 2:
            continue
        around = np.concatenate([at, np.full_like(at[:, :1], frame.places)], 1)
        pieces = at[:, places]
        gain = puzzles.unary[m, pieces[:, None, :], places[:, None]]
        for table, near in zip(puzzles.sides, frame.neighbors[:, places], strict=True):
            gain += table[m, around[:, near][:, :, None], pieces[:, None, :]]
        taken = cheapest(-gain)
        at[:, places] = np.take_along_axis(pieces, taken, 1)
    return at


def starts(puzzles: Puzzles) -> list[Places]:
    """Arrangements from which to start the search: the piece in each place, int64 [M, S].

    The first uses the scores of pieces in places. If the puzzle has one picture, eleven more follow: three from the
    scores of neighboring pairs, whose best matches are chosen and weighted in three ways, and eight random ones.
    """
    first = [assign(puzzles.unary)]
    if puzzles.frame.pictures > 1:
        return first
    springs = ((1, True), (2, True), (2, False))
    drawn = np.random.default_rng(0).random((_RANDOM, *first[0].shape)).argsort(2)
    return [*first, *(_arrange(puzzles, coordinates(puzzles.pairs, power=p, mutual=m)) for p, m in springs), *drawn]


def coordinates(pairs: Array, *, power: float, mutual: bool) -> Array:
    """Coordinates (column, row) of S pieces of M puzzles, [M, S, 2], with the best matches about one grid step apart.

    Each match in `pairs` (as in `Puzzles`) is a spring. Its strength is its lead over the second-best match, raised to
    `power`. Springs that stay stretched are dropped, more strictly in each round. With `mutual`, a match must be the
    best match of both pieces; otherwise, of one of the two.

    Source: the linear program of Yu, Russell and Agapito 2016 ("Solving jigsaw puzzles with linear programming"), with
    its L1 norm and rounds of rejection replaced by iteratively reweighted least squares, which solves all puzzles at
    once.
    """
    m, _, s, _ = pairs.shape
    best_right = pairs >= pairs.max(3, keepdims=True)
    best_left = pairs >= pairs.max(2, keepdims=True)
    used = best_right & best_left if mutual else best_right | best_left
    ordered = np.sort(pairs, 3)[:, :, :, -2:-1], np.sort(pairs, 2)[:, :, -2:-1]
    lead = pairs - (np.maximum(*ordered) if mutual else np.minimum(*ordered))
    trust = np.where(used, np.maximum(lead, 1e-3) ** power, 0.0)
    step = np.array([[1.0, 0.0], [0.0, 1.0]])
    weight, slack = trust, 2.0
    coordinates = np.zeros((m, s, 2))
    while slack > 0.02:
        total = weight.sum(1)
        laplacian = -(total + total.transpose(0, 2, 1))
        laplacian[:, np.arange(s), np.arange(s)] = 1e-6 - laplacian.sum(2)
        pull = (weight.sum(2) - weight.sum(3)).transpose(0, 2, 1) @ step
        coordinates = np.linalg.solve(laplacian, pull)
        column, row = (coordinates[:, None, :, axis] - coordinates[:, :, None, axis] for axis in (0, 1))
        each = [np.maximum(np.abs(column - across), np.abs(row - down)) for across, down in step]
        stretched = np.stack(each, 1)  # [M, 2, S, S]
        weight = trust * (slack / (slack + stretched)) ** (1 if slack > 0.5 else 2)
        slack *= 0.8
    return coordinates


def _arrange(puzzles: Puzzles, coordinates: Array) -> Places:
    """Assign pieces to the places nearest to their coordinates, with the median piece in the middle of the grid."""
    frame: Frame = puzzles.frame
    grid = np.stack([np.arange(frame.places) % frame.columns, np.arange(frame.places) // frame.columns], 1)
    centered = coordinates - np.median(coordinates, 1, keepdims=True) + grid.mean(0)
    away = np.abs(centered[:, :, None] - grid).sum(3)
    return assign(-np.minimum(away, _FAR))
