"""What each variant costs."""

from types import SimpleNamespace

import torch
from conftest import make_variant

from lockstep.commands import benchmark
from lockstep.commands.benchmark import Cost
from scripts import called


def test_each_variant_has_a_row_with_its_parameters_and_its_time_over_the_firsts(capsys):
    small = ["d_model=8", "num_heads=2", "batch_size=2", "length=3", "rounds=1", "repeats=1"]
    assert called("benchmark", *small) == 0
    cells = [[cell.strip() for cell in line.split("│")] for line in capsys.readouterr().out.splitlines()]
    rows = {row[1]: row[2:] for row in cells if len(row) > 4}
    assert {"per_head", "fused", "shared_heads"} <= set(rows)
    assert rows["fused"][0] == str(4 * 8 * 8 + 4 * 8)
    assert rows["shared_heads"][0] == str(3 * (8 + 1) * 4 + 9 * 8)
    assert next(iter(rows.values()))[2] == "1.00"


def test_a_time_is_a_median_of_rounds_and_so_is_its_ratio_within_each_round(monkeypatch):
    class Clock:
        def __init__(self, statement, globals, num_threads):
            self.step = globals["step"]

        def timeit(self, repeats):
            self.step()
            return SimpleNamespace(median=next(seconds))

    seconds = iter([1.0, 2.0, 1.0, 8.0, 2.0, 6.0])  # of one and the other, in turn
    monkeypatch.setattr(benchmark, "Timer", Clock)
    modules = {name: make_variant(name)(8, 2) for name in ("fused", "shared_heads")}
    costs = benchmark.measure(modules, torch.randn(2, 3, 8, requires_grad=True), rounds=3, repeats=2)
    assert costs == {"fused": Cost(288, 1000.0, 1.0), "shared_heads": Cost(180, 6000.0, 3.0)}
    assert all(p.grad is not None for module in modules.values() for p in module.parameters())
