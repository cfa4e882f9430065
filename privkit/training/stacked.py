"""Copies of one module with stacked parameters, which evaluate n clients in one batched call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from privkit.errors import UsageError
from privkit.torch_utils.out_of_memory import ran_out


class Stacked(nn.Module):
    """Holds n copies of a module and evaluates them in one call; each parameter and buffer is stacked, [n, ...].

    Elementwise optimizers such as AdamW update each copy independently. A single copy gives the module's own results,
    bit for bit.

    Args:
        module: module to copy; all copies start equal. It may return one tensor or several.
        copies: number of copies, n ≥ 1.

    Attributes:
        batched: whether copies are evaluated together, by `torch.func.vmap`; otherwise they run one after another.
        by_record: the weights that `records` yields, one view per record; None outside its context.

    >>> linear = Stacked(nn.Linear(3, 2), 4)
    >>> linear(torch.rand(4, 5, 3)).shape, linear.module.weight.shape
    (torch.Size([4, 5, 2]), torch.Size([4, 2, 3]))
    """

    def __init__(self, module: nn.Module, copies: int) -> None:
        super().__init__()
        self.copies = copies
        self.batched = True
        self.by_record: dict[str, Tensor] | None = None
        self.module = deepcopy(module)  # the copy's parameters become the stack, so their names stay
        _replace_weights(self.module, lambda weight: weight.expand(copies, *weight.shape).clone())
        for part in self.module.modules():
            for name, value in part.named_buffers(recurse=False):
                persistent = name not in part._non_persistent_buffers_set
                part.register_buffer(name, value.expand(copies, *value.shape).clone(), persistent=persistent)

    def forward(self, inputs: Tensor, rows: Tensor | None = None) -> Tensor:
        """Evaluate every copy on its own batch: `inputs` [n, B, ...] -> outputs [n, B, ...], one tensor or several.
        If `rows`, int64 [M], is given, copy rows[m] evaluates inputs[m], and `inputs` is [M, B, ...].
        """
        state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        if self.by_record is not None:
            return self._record_by_record(state, inputs)
        if rows is not None:
            state = {name: stack[rows] for name, stack in state.items()}
        elif self.copies == 1:
            one = {name: value.squeeze(0) for name, value in state.items()}
            alone = functional_call(self.module, one, (inputs.squeeze(0),))
            return cast(Tensor, tree_map(lambda part: part.unsqueeze(0), alone))
        if not self.batched:
            each = [{name: stack[number] for name, stack in state.items()} for number in range(len(inputs))]
            outputs = [functional_call(self.module, s, (x,)) for s, x in zip(each, inputs, strict=True)]
            return cast(Tensor, tree_map(lambda *parts: torch.stack(parts), *outputs))
        call = torch.func.vmap(lambda s, x: functional_call(self.module, s, (x,)), randomness="different")
        with _batched_attention(inputs):
            return cast(Tensor, call(state, inputs))

    def part(self, name: str) -> Stacked:
        """Return the stacked copies of the submodule `name`, without copying: both objects share the weights."""
        view = Stacked.__new__(Stacked)
        nn.Module.__init__(view)
        view.copies, view.batched, view.by_record = self.copies, self.batched, None
        view.module = self.module.get_submodule(name)
        return view

    @torch.no_grad()
    def settle(self, inputs: Tensor) -> None:
        """Test on inputs [n, B, ...] whether all n copies can be evaluated together, and set `batched` to False if not.
        Recurrent layers, for example, need one call for each copy. If both ways fail, the module's error is raised.
        """
        if self.copies == 1:
            return
        try:
            self(inputs)
        except Exception as error:
            if ran_out(error):
                raise
            self.batched = False
            self(inputs)

    @contextmanager
    def records(self) -> Iterator[dict[str, Tensor]]:
        """Make a context manager in which each record has its own view of the weights, for per-record gradients.

        It yields a dictionary that each call fills with the trained weights: name -> [n, B, ...] for n copies and B
        records. After a backward pass, `.grad` of these tensors holds the gradient of each record.
        """
        self.by_record = {}
        try:
            yield self.by_record
        finally:
            self.by_record = None

    def _record_by_record(self, state: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Inputs [n, B, ...] -> outputs [n, B, ...]; every record has its own copy of the trained weights."""
        assert self.by_record is not None
        for name, stack in state.items():
            if stack.requires_grad:
                own = stack.detach().unsqueeze(1).expand(len(stack), inputs.shape[1], *stack.shape[1:])
                self.by_record[name] = own.requires_grad_()
        others = {name: stack for name, stack in state.items() if name not in self.by_record}

        def one(weights: dict[str, Tensor], rest: dict[str, Tensor], record: Tensor) -> Tensor:
            output: Tensor = functional_call(self.module, {**weights, **rest}, (record.unsqueeze(0),))
            return output.squeeze(0)

        each = torch.func.vmap(one, in_dims=(0, None, 0), randomness="different")
        call = torch.func.vmap(each, randomness="different")
        try:
            with _batched_attention(inputs):
                return call(dict(self.by_record), others, inputs)
        except RuntimeError as error:
            if ran_out(error):
                raise
            raise UsageError(
                "training cannot be private: torch cannot evaluate this lower segment record by record "
                f"({' '.join(str(error).split())[:120]}); choose another segment, or leave out private=true"
            ) from None

    def copy(self, number: int) -> nn.Module:
        """Return copy `number` (0-based) as a separate module with weights of its own."""
        module = deepcopy(self.module)
        _replace_weights(module, lambda stack: stack[number].clone())
        for part in module.modules():
            for name, value in part.named_buffers(recurse=False):
                persistent = name not in part._non_persistent_buffers_set
                part.register_buffer(name, value[number].clone(), persistent=persistent)
        return module

    @torch.no_grad()
    def average(self, weights: Tensor) -> None:
        """FedAvg: replace every copy's weights and running statistics by the weighted mean over all n copies.

        `weights`, float [n], are each copy's share and sum to 1. Integer buffers, such as counters of batches, are
        unchanged.

        Source: McMahan et al. 2017, Algorithm 1, on lower segments as in SplitFed (Thapa et al. 2020).
        """
        for stack in (*self.module.parameters(), *self.module.buffers()):
            if stack.is_floating_point():
                stack.copy_(torch.einsum("n,n...->...", weights.to(stack.dtype), stack).expand_as(stack))


def _replace_weights(module: nn.Module, made: Callable[[Tensor], Tensor]) -> None:
    """Replace each parameter of `module` by the value that `made` makes of it; submodules that share a parameter share
    the new one.
    """
    shared: dict[nn.Parameter, nn.Parameter] = {}
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None and weight not in shared:
                shared[weight] = nn.Parameter(made(weight.detach()), requires_grad=weight.requires_grad)
            part._parameters[name] = None if weight is None else shared[weight]


def _batched_attention(inputs: Tensor) -> AbstractContextManager[None]:
    return sdpa_kernel(SDPBackend.MATH) if inputs.device.type == "cpu" else nullcontext()


class Filtered(Stacked):
    """Copies of a lower segment with a filter behind it, which keeps the shape of the segment's output."""

    def __init__(self, lower: nn.Module, filter: nn.Module, copies: int) -> None:
        super().__init__(nn.Sequential(lower, filter), copies)
        self._last: tuple[Tensor, Tensor | None] | None = None

    def forward(self, inputs: Tensor, rows: Tensor | None = None) -> Tensor:
        """Evaluate segment and filter; see `Stacked.forward`."""
        if self.by_record is not None:
            return super().forward(inputs, rows)
        unfiltered = self.part("0")(inputs, rows)
        self._last = unfiltered.detach(), rows
        filtered: Tensor = self.part("1")(unfiltered, rows)
        return filtered

    def filter_alone(self) -> Tensor:
        """Run the filters on the last call's segment outputs; gradients reach the filters, but not the segments."""
        assert self._last is not None
        filtered: Tensor = self.part("1")(*self._last)
        return filtered
