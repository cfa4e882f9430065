"""A pytest plug-in that shifts seeds and notes what tests compare: `pytest -p tests.margins --margins-shift 3`.

`benchmarks/margins.py` runs it. A noted comparison never fails, so that the whole test is measured; its two sides are
written to `--margins-out`. Noted are the comparisons (<, ≤, >, ≥, and == with `pytest.approx`) of numbers that an
assertion of a test file demands: by itself, in a conjunction, in `all(…)` or in `(…).all()`. Of a comparison that a
test makes several times, the one nearest to failing is kept. Tests without one are left out.

Shifted are `torch.Generator.manual_seed`, `torch.manual_seed` and `numpy.random.default_rng`, in fixtures and tests.
What a test file draws while it is imported (pictures, mostly), and what `privkit.torch_utils.seeded` gets as a
constant, stays as it is.
"""

import ast
import builtins
import hashlib
import json
import operator
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

_HERE = Path(__file__).resolve().parent
_ORDERS: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "=="}
_TESTS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}
_STEP = 1_000_003  # between seeds, so that those of one test rarely meet those of another shift

_DIGEST = pytest.StashKey[str]()  # taken at collection: a file may be edited while its tests run

shift = 0
"""By how many steps seeds are moved now; 0 while files are imported."""
Sides = list[Any]
"""[left, sign, right] of a comparison, and the tolerance of an equality."""
noted: dict[str, Sides] = {}
"""What the running test compared: its text → its sides."""


def signed(sides: Sides) -> float:
    """The margin by which a comparison holds; negative if it does not hold.

    >>> signed([0.75, ">", 0.5]), signed([0.75, "<", 0.5]), signed([1.0, "==", 1.25, 0.5])
    (0.25, -0.25, 0.25)
    """
    left, sign, right, *tolerance = sides
    if tolerance:
        return tolerance[0] - abs(left - right)
    return left - right if ">" in sign else right - left


def _note(text: str, sign: str, left: Any, right: Any) -> Any:
    """Note a comparison of two numbers and let it pass; return the result of any other comparison."""
    made = _TESTS[sign](left, right)
    if sign == "==":
        approx = right if hasattr(right, "tolerance") else left
        if not hasattr(approx, "tolerance"):
            return made
        value = left if approx is right else right
        _keep(text, [float(value), sign, float(approx.expected), float(approx.tolerance)])
        return True
    first, second = (torch.as_tensor(np.asarray(side), dtype=torch.float64) if _counts(side) else None
                     for side in (left, right))  # fmt: skip
    if first is None or second is None or not (first.numel() and second.numel()):
        return made
    first, second = torch.broadcast_tensors(first, second)
    gap = first - second if ">" in sign else second - first
    worst = int(gap.argmin())
    _keep(text, [float(first.flatten()[worst]), sign, float(second.flatten()[worst])])
    return True if isinstance(made, bool | np.bool_) else made | True


def _counts(side: Any) -> bool:
    """Whether a side of a comparison is a number, or a real tensor or array."""
    if isinstance(side, torch.Tensor):
        return not side.is_complex() and side.device.type == "cpu" and not side.requires_grad
    return isinstance(side, int | float | np.number) or (isinstance(side, np.ndarray) and side.dtype.kind in "fiub")


def _keep(text: str, sides: Sides) -> None:
    if text not in noted or not signed(sides) >= signed(noted[text]):  # nan is the worst of all
        noted[text] = [side if isinstance(side, str) else float(f"{side:.6g}") for side in sides]


class _Marked(ast.NodeTransformer):
    """Replaces every comparison that an assertion demands by a call of `_note`."""

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        node.test = self._demanded(node.test)
        return node

    def _demanded(self, test: ast.expr) -> ast.expr:
        if isinstance(test, ast.Compare) and all(type(one) in _ORDERS for one in test.ops):
            of_sizes = any(isinstance(one, ast.Eq) for one in test.ops) and "approx(" not in ast.unparse(test)
            return test if of_sizes else self._noted(test)
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            test.values = [self._demanded(one) for one in test.values]
        elif isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and test.func.attr == "all":
            test.func.value = self._demanded(test.func.value)
        elif isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "all":
            for one in test.args:
                if isinstance(one, ast.GeneratorExp | ast.ListComp):
                    one.elt = self._demanded(one.elt)
        return test

    def _noted(self, test: ast.Compare) -> ast.expr:
        """Replace one comparison by calls of `_note`; a chain `a < b < c` becomes two."""
        sides, calls = [test.left, *test.comparators], []
        for left, sign, right in zip(sides, test.ops, sides[1:], strict=False):
            name = _ORDERS[type(sign)]
            text = f"{ast.unparse(left)} {name} {ast.unparse(right)}"
            called = ast.Name("__margin__", ast.Load())
            calls.append(ast.Call(called, [ast.Constant(text), ast.Constant(name), left, right], []))
        return calls[0] if len(calls) == 1 else ast.BoolOp(ast.And(), list(calls))


_compiled = SourceFileLoader.get_code


def _get_code(self: SourceFileLoader, fullname: str) -> Any:
    path = Path(self.path)
    if not path.name.startswith("test_") or _HERE not in path.resolve().parents:
        return _compiled(self, fullname)
    tree = _Marked().visit(ast.parse(path.read_text(encoding="utf-8")))
    return compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)


class _Generator(torch.Generator):
    def manual_seed(self, seed: int) -> "_Generator":
        super().manual_seed(int(seed) + _STEP * shift)
        return self


_seeded, _drawn = torch.manual_seed, np.random.default_rng


def _manual_seed(seed: Any) -> torch.Generator:
    return _seeded(int(seed) + _STEP * shift)


def _default_rng(seed: Any = None) -> np.random.Generator:
    if shift and isinstance(seed, int | np.integer):
        return _drawn([int(seed), shift])
    return _drawn([*seed, shift] if shift and isinstance(seed, list | tuple) else seed)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--margins-shift", type=int, default=0)
    parser.addoption("--margins-out", default=None)
    parser.addoption("--margins-skip", default=None, help="JSON: test → digest of its text; those are left out")


def pytest_configure(config: pytest.Config) -> None:
    builtins.__margin__ = _note  # type: ignore[attr-defined]
    SourceFileLoader.get_code = _get_code  # type: ignore[method-assign,assignment]
    torch.Generator = _Generator  # type: ignore[misc]
    torch.manual_seed = torch.random.manual_seed = _manual_seed
    np.random.default_rng = _default_rng  # type: ignore[assignment]


def digest(path: Path, name: str) -> str:
    """Digest of a test's code and of its file's other definitions, without comments; "" if there is no such test."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    names = [node.name if isinstance(node, ast.FunctionDef) else "" for node in body]
    used = [
        ast.unparse(node)
        for node, called in zip(body, names, strict=True)
        if called == name or not (called.startswith("test_") or isinstance(node, ast.Import | ast.ImportFrom))
    ]
    return hashlib.sha256("\n".join(used).encode()).hexdigest()[:12] if name in names else ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip = config.getoption("--margins-skip")
    known = json.loads(Path(skip).read_text(encoding="utf-8")) if skip else {}
    kept = [item for item in items if isinstance(item, pytest.Function) and _compares(item)]
    for item in kept:
        item.stash[_DIGEST] = digest(item.path, item.originalname)
    kept = [item for item in kept if known.get(item.nodeid) != item.stash[_DIGEST]]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _compares(item: pytest.Function) -> bool:
    return "__margin__" in _names(item.function.__code__)


def _names(code: Any) -> set[str]:
    return {*code.co_names}.union(*(_names(one) for one in code.co_consts if hasattr(one, "co_names")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global shift
    noted.clear()
    shift = item.config.getoption("--margins-shift")
    try:
        return (yield)
    finally:
        shift = 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    report = yield
    out = item.config.getoption("--margins-out")
    if out and (report.when == "call" or report.failed) and isinstance(item, pytest.Function):
        line = {
            "test": item.nodeid,
            "digest": item.stash[_DIGEST],
            "seconds": round(call.duration, 2),
            "outcome": report.outcome,
            "noted": noted,
        }
        with Path(out).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")
    return report
