"""A step of training as one CUDA graph. A round of many clients starts about a thousand small kernels, and a GPU would
wait for the host between them; a graph starts them all at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from privkit.torch_utils.out_of_memory import ran_out

Step = Callable[..., tuple[Tensor, ...]]
"""Tensors on the GPU -> tensors on the GPU; weights and gradients change beside."""
WARM_UP = 3  # steps before the capture: optimizers and libraries make their buffers in the first ones


class Graphed:
    """A step that is captured at its fourth call and replayed from then on; numbers are those of the step itself.

    A step that waits for the host, as a user's own module may, cannot be captured. It runs as it is.

    Args:
        step: what is captured. Its shapes must not change.
        draws: generators that it draws from, beside the global one.

    Attributes:
        captured: whether calls replay a graph.

    Source: PyTorch, "CUDA semantics: whole-network capture".
    """

    def __init__(self, step: Step, *draws: Generator) -> None:
        self._step, self._draws = step, draws
        self._stream = torch.cuda.Stream()
        self._calls = 0
        self._graph = torch.cuda.CUDAGraph()
        self._given: tuple[Tensor, ...] = ()
        self._found: tuple[Tensor, ...] = ()
        self.captured = False

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        """One step."""
        if self._calls == WARM_UP:
            self._capture(given)
        self._calls += 1
        if not self.captured:
            return self._plainly(given)
        for kept, new in zip(self._given, given, strict=True):
            kept.copy_(new)
        self._graph.replay()
        return tuple(found.clone() for found in self._found)

    def _plainly(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """On the stream of the capture, since gradients keep to the stream of their first use."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            found = self._step(*given)
        torch.cuda.current_stream().wait_stream(self._stream)
        return found

    def _capture(self, given: tuple[Tensor, ...]) -> None:
        self._given = tuple(tensor.clone() for tensor in given)
        states = [generator.get_state() for generator in self._draws]
        for generator in self._draws:
            self._graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._found = self._step(*self._given)
        except RuntimeError as error:
            if ran_out(error):
                raise
            for generator, state in zip(self._draws, states, strict=True):
                generator.set_state(state)
            return
        self.captured = True
