"""Time batch shuffling as one gather operation against a loop over images and tokens with the same distribution.

    python benchmarks/run.py shuffle

Times are medians of wall time at the paper's size: 50 images, 196 tokens per image, 512 channels.
"""

from dataclasses import dataclass
from time import perf_counter

import torch
from timing import seconds
from torch import Generator, Tensor

from privkit.defenses import BatchShuffle

BATCH, TOKENS, WIDTH, KEEP = 50, 196, 512, 0.4


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `shuffle`."""

    rounds: int = 30


def looped(tokens: Tensor, generator: Generator) -> Tensor:
    """Shuffle a batch by a plain loop over images and tokens."""
    kept = int(TOKENS * KEEP)
    own, pool = [], []
    for image in tokens:
        order = torch.randperm(TOKENS, generator=generator).tolist()
        own.append([image[t] for t in order[:kept]])
        pool += [image[t] for t in order[kept:]]
    dealt = [pool[i] for i in torch.randperm(len(pool), generator=generator).tolist()]
    share = TOKENS - kept
    out = []
    for n, mine in enumerate(own):
        mixed = mine + dealt[n * share : (n + 1) * share]
        out.append(torch.stack([mixed[i] for i in torch.randperm(TOKENS, generator=generator).tolist()]))
    return torch.stack(out)


def main(options: Options) -> None:
    """Print medians and their ratio."""
    generator = Generator().manual_seed(0)
    tokens = torch.randn(BATCH, TOKENS, WIDTH, generator=generator)
    message, labels, defense = tokens.unsqueeze(0), torch.zeros(1, BATCH), BatchShuffle(keep=KEEP)
    trained = message.clone().requires_grad_()

    def forward_backward() -> None:
        defense.apply(trained, labels, generator)[0].smashed.backward(message)
        trained.grad = None

    gather = 1e3 * seconds(lambda: defense.apply(message, labels, generator), options.rounds, perf_counter)
    loop = 1e3 * seconds(lambda: looped(tokens, generator), max(3, options.rounds // 10), perf_counter)
    both = 1e3 * seconds(forward_backward, options.rounds, perf_counter)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, B={BATCH}, N={TOKENS}, D={WIDTH}, keep={KEEP}"
    )
    print(f"one gather           {gather:8.2f} ms")
    print(f"gather and gradient  {both:8.2f} ms")
    print(f"loop over tokens     {loop:8.2f} ms   {loop / gather:.0f} times the gather")
