"""What each variant costs: parameters, and the time of one forward and backward pass."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch.utils.benchmark import Timer

from lockstep.attention import Arithmetic, MultiHeadAttention
from lockstep.base.terminal import cell, console, counted
from lockstep.commands.options import ConfigurationError, Positive, check_arguments, parse
from lockstep.commands.targets import attention_class


@dataclass(frozen=True)
class BenchmarkOptions:
    """Everything ``scripts/benchmark.py`` can be told."""

    variants: dict[str, Any]
    arithmetic: Arithmetic
    d_model: Positive
    num_heads: Positive
    batch_size: Positive
    length: Positive
    rounds: Positive
    repeats: Positive


@dataclass(frozen=True)
class Cost:
    """One variant's figures: its time is a median over rounds; ``ratio`` compares it with the first variant's."""

    parameters: int
    milliseconds: float
    ratio: float


def measure(modules: Mapping[str, MultiHeadAttention], x: torch.Tensor, rounds: int, repeats: int) -> dict[str, Cost]:
    """Time causal self-attention on ``x`` (B, T, D), the variants in turn within each round.

    A machine's speed drifts; the ratio of two times of the same round drifts less.
    """
    steps = {name: _step(module, x) for name, module in modules.items()}
    times: dict[str, list[float]] = {name: [] for name in modules}
    for _ in range(rounds):
        for name, step in steps.items():
            timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
            times[name].append(timer.timeit(repeats).median)
    first = next(iter(times.values()))
    return {
        name: Cost(
            parameters=sum(p.numel() for p in modules[name].parameters()),
            milliseconds=1000 * statistics.median(seconds),
            ratio=statistics.median(a / b for a, b in zip(seconds, first, strict=True)),
        )
        for name, seconds in times.items()
    }


def _step(module: MultiHeadAttention, x: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        inputs = (x.view_as(x), x.view_as(x), x.view_as(x))
        module(*inputs, is_causal=True).sum().backward()

    return step


def benchmark(config: Mapping[str, Any]) -> None:
    """Print the table of ``scripts/benchmark.py``."""
    options = parse(BenchmarkOptions, config)
    if not options.variants:
        raise ConfigurationError("option variants is empty: there is nothing to measure")
    modules = {}
    for name, node in options.variants.items():
        cls = attention_class(node, f"variants.{name}")
        arguments = check_arguments(cls, node, f"variants.{name}.", positional=2)
        try:
            modules[name] = cls(options.d_model, options.num_heads, **arguments)
        except ValueError as error:
            raise ConfigurationError(f"variants.{name}: {error}") from error
    x = torch.randn(options.batch_size, options.length, options.d_model, requires_grad=True)
    costs = measure(modules, x, options.rounds, options.repeats)
    first = next(iter(costs))
    table = Table(
        title=f"d_model {options.d_model}, {counted(options.num_heads, 'head')}, "
        f"{options.batch_size} x {options.length} tokens, {options.arithmetic} arithmetic, "
        f"{counted(torch.get_num_threads(), 'thread')}"
    )
    for heading in ("variant", "parameters", "forward + backward", f"/ {first}"):
        table.add_column(cell(heading), justify="left" if heading == "variant" else "right")
    for name, cost in costs.items():
        table.add_row(cell(name), f"{cost.parameters:,}", f"{cost.milliseconds:.1f} ms", f"{cost.ratio:.2f}")
    console().print(table)
