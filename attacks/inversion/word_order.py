"""The order of known words: a small language model of the adversary's texts, and a search for the likeliest order."""

from __future__ import annotations

import torch
from torch import Tensor

from privkit.torch_utils.out_of_memory import in_chunks

_BEAM = 300  # partial orders of a text that are continued at each place
_NUMBERS = 2**23  # most numbers in memory


class WordPairs:
    """A bigram model of the adversary's texts, which backs off to word frequencies for rare pairs.

    Args:
        texts: the adversary's N ≥ 1 texts of T words, int64 [N, T].
        words: number of words; the id `words` marks the beginning of a text.

    Source: Witten and Bell 1991, method C.

    >>> pairs = WordPairs(torch.tensor([[1, 2, 0], [1, 2, 2]]), 3)
    >>> cost = pairs.nats(torch.tensor([[2, 1]]))  # from the start and from each token, to each token
    >>> bool(cost[0, 0, 1] < cost[0, 0, 0]), bool(cost[0, 2, 0] < cost[0, 1, 0])
    (True, True)
    """

    def __init__(self, texts: Tensor, words: int) -> None:
        start = texts.new_full((len(texts), 1), words)
        before = torch.cat([start, texts[:, :-1]], 1)
        self._words = words
        self._pairs, self._counts = (before * words + texts).unique(return_counts=True)
        firsts = self._pairs // words
        self._seen = before.flatten().bincount(minlength=words + 1).float()
        self._kinds = firsts.bincount(minlength=words + 1).float()
        there = texts.flatten().bincount(minlength=words).clamp_min(0.5)
        self._share = there / there.sum()

    def nats(self, words: Tensor) -> Tensor:
        """The cost in nats of each word after each other word of the same text, [n, T + 1, T] for n texts of T words.

        Entry (0, s) is the cost of word s at the start of the text; entry (t + 1, s) is its cost after word t.
        """
        start = words.new_full((len(words), 1), self._words)
        before, after = torch.cat([start, words], 1).unsqueeze(2), words.unsqueeze(1)
        pairs = before * self._words + after
        at = torch.searchsorted(self._pairs, pairs).clamp_max(len(self._pairs) - 1)
        count = torch.where(self._pairs[at] == pairs, self._counts[at], 0)
        seen, kinds = self._seen[before], self._kinds[before]
        rare = torch.where(seen > 0, kinds / (seen + kinds).clamp_min(1), 1.0)
        share: Tensor = count / (seen + kinds).clamp_min(1) + rare * self._share[after]
        return -share.log()


def likeliest_order(costs: Tensor, words: Tensor, pairs: WordPairs) -> Tensor:
    """Find for each text an order of its T tokens with low cost, by a beam search from the first place.

    Among partial orders that use the same words and end in the same word, only the cheapest is continued. The result
    can miss the cheapest order only if a word occurs twice or the beam drops a partial order.

    Args:
        costs: [N, T, T]; entry (n, t, s) is the cost in nats of token t at place s of text n.
        words: vocabulary index of each token's word, int64 [N, T].
        pairs: the language model, which adds the cost of each word after the previous word.

    Returns:
        The index of the token at each place, int64 [N, T].

    >>> pairs = WordPairs(torch.tensor([[1, 2, 0], [1, 2, 0]]), 3)
    >>> likeliest_order(torch.zeros(1, 3, 3), torch.tensor([[0, 2, 1]]), pairs).tolist()
    [[2, 1, 0]]
    """
    most = max(1, _NUMBERS // (_BEAM * words.shape[1]))
    return in_chunks(lambda part: _beam(costs[part], words[part], pairs.nats(words[part])), len(words), most)


def _beam(costs: Tensor, words: Tensor, follows: Tensor) -> Tensor:
    """Run `likeliest_order` on few texts; partial orders of the same words with the same last word are merged."""
    rows, length = words.shape
    marks = torch.randint(2**61, (int(words.max()) + 1,), generator=torch.Generator().manual_seed(0)).to(words.device)
    total = costs.new_zeros(rows, 1)
    last = words.new_zeros(rows, 1)  # the start, in `follows`
    used = torch.zeros(rows, 1, length, dtype=torch.bool, device=words.device)
    held, path = words.new_zeros(rows, 1), words.new_zeros(rows, 1, 0)
    for place in range(length):
        step = follows.gather(1, last.unsqueeze(2).expand(-1, -1, length)) + costs[:, None, :, place]
        ahead = (total.unsqueeze(2) + step).masked_fill(used, torch.inf).flatten(1)
        total, best = ahead.topk(min(2 * _BEAM, ahead.shape[1]), largest=False)
        beam, token = best // length, best % length
        word = words.gather(1, token)
        held_now = held.gather(1, beam) + marks[word]
        again = _repeated(held_now * 3 + marks[word])
        total = total.masked_fill(again, torch.inf)
        total, kept = total.topk(min(_BEAM, total.shape[1]), largest=False)
        beam, token, held = beam.gather(1, kept), token.gather(1, kept), held_now.gather(1, kept)
        used = used.gather(1, beam.unsqueeze(2).expand(-1, -1, length)).scatter(2, token.unsqueeze(2), True)
        path = torch.cat([path.gather(1, beam.unsqueeze(2).expand(-1, -1, place)), token.unsqueeze(2)], 2)
        last = token + 1
    return path[:, 0]


def _repeated(keys: Tensor) -> Tensor:
    """Mark each key, [n, K], that also occurs earlier in its row."""
    ordered, at = keys.sort(dim=1, stable=True)
    same = torch.zeros_like(ordered, dtype=torch.bool)
    same[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(same).scatter(1, at, same)
