"""A training step as one CUDA graph. A round of many clients starts about a thousand small kernels, for which a GPU
would wait; a graph starts them all at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from privkit.torch_utils.out_of_memory import ran_out

_Step = Callable[..., tuple[Tensor, ...]]
"""Tensors on the GPU -> tensors on the GPU; weights and gradients change in place."""
_WAITS = "called a synchronizing CUDA operation"  # text of the warnings that torch's `set_sync_debug_mode` turns on
_KNOWN = ("privkit", "torch", "torchvision", "timm")
"""Packages whose code can be captured, because it counts no steps in Python."""
_WARM_UP = 3  # steps before the capture, in which optimizers and libraries allocate their buffers


class Graphed:
    """A training step that is captured as a CUDA graph at its fourth call and replayed from then on.

    A step that waits for the CPU cannot be captured and runs without a graph; the third call tests this. A replay
    repeats only tensor operations, not other effects of Python code, so only code that `traceable` accepts is captured.
    Shapes must not change; `draws` are generators that the step uses besides the global one.

    Source: PyTorch, "CUDA semantics: whole-network capture".
    """

    def __init__(self, step: _Step, device: torch.device, *draws: Generator) -> None:
        self._step, self._device, self._draws = step, device, draws
        self._stream = torch.cuda.Stream(device)
        self._calls = 0
        self._graph = torch.cuda.CUDAGraph()
        self._given: tuple[Tensor, ...] = ()
        self._found: tuple[Tensor, ...] = ()
        self._waits = False
        self.captured = False  # whether calls replay a graph

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Run one step on tensors on the GPU, and return its results."""
        with torch.cuda.device(self._device):
            if self._calls == _WARM_UP and not self._waits:
                self._capture(given)
            self._calls += 1
            if self.captured:
                for kept, new in zip(self._given, given, strict=True):
                    kept.copy_(new)
                self._graph.replay()
                return tuple(found.clone() for found in self._found)
            return self._watched(given) if self._calls == _WARM_UP else self._plainly(given)

    def _plainly(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run a step without a graph, on the CUDA stream of the capture, since gradients stay on their first stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            found = self._step(*given)
        torch.cuda.current_stream().wait_stream(self._stream)
        return found

    def _watched(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run a step without a graph, and detect whether the step waits for the CPU."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                found = self._plainly(given)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        self._waits = any(_WAITS in str(one.message) for one in said)
        return found

    def _capture(self, given: tuple[Tensor, ...]) -> None:
        self._given = tuple(tensor.clone() for tensor in given)
        every = (*self._draws, torch.cuda.default_generators[torch.cuda.current_device()])
        before = [generator.clone_state() for generator in every]  # a failed capture leaves the current states unusable
        for generator in self._draws:
            self._graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._found = self._step(*self._given)
        except BaseException as error:
            for generator, state in zip(every, before, strict=True):
                generator.graphsafe_set_state(state.graphsafe_get_state())
            if not isinstance(error, RuntimeError) or ran_out(error):
                raise
            return
        self.captured = True


def traceable(*parts: object) -> bool:
    """Whether modules and defenses, and all modules inside them, are classes of privkit, torch, torchvision or timm.

    A user's own module may count steps in Python, which a replayed graph would not do.

    >>> from torch import nn
    >>> class Own(nn.Module):
    ...     __module__ = "mine"
    >>> traceable(nn.Linear(2, 2)), traceable(nn.Sequential(nn.Linear(2, 2), Own()))
    (True, False)
    """
    every = [inner for part in parts for inner in (part.modules() if isinstance(part, nn.Module) else [part])]
    return all(type(one).__module__.partition(".")[0] in _KNOWN for one in every)
