"""Small comparisons, run as the script runs them."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import conftest
import torch
from conftest import CONF, TINY
from torch.optim import Optimizer

from lockstep.commands.building import build_data
from lockstep.commands.compare import OFF, CompareOptions, build_variants, compare, most_padded
from lockstep.commands.options import TrainOptions, parse
from lockstep.comparison.step import Conditions, random_and_distinct
from lockstep.comparison.variant import Variant
from lockstep.data.datamodule import DataModule
from lockstep.transformer.canonical import canonical_weights

SMALL = [override for override in TINY if not override.startswith(("attention_maps_every", "trainer.val_check"))]


def compose(*overrides: str) -> dict:
    """The plain configuration of ``scripts/compare.py``, small, with these overrides."""
    return conftest.compose(*SMALL, *overrides, script="compare")


@cache
def compared(output: Path, *overrides: str) -> tuple[int, dict]:
    """The exit status of a comparison, and its ``comparison.json``; each comparison is run once."""
    name = f"run-{abs(hash(overrides))}"
    status = compare(compose(f"output='{output}'", f"name={name}", *overrides), CONF)
    (folder,) = output.glob(f"{name}-*")
    return status, json.loads((folder / "comparison.json").read_text()) | {"folder": folder}


def verdicts(result: dict) -> dict[str, str]:
    """Variant -> kind of verdict."""
    return {name: line.split(":")[0] for name, line in result["verdicts"].items()}


def participants(*entries: object, overrides: tuple[str, ...] = ()) -> tuple[list[Variant], DataModule, TrainOptions]:
    """Variants as ``compare.variants`` would list them, with the data and options of a small run."""
    config = compose(*overrides) | OFF
    options = replace(parse(CompareOptions, config.pop("compare"), "compare."), variants=entries)
    train_options = parse(TrainOptions, config | {"attention": {}})
    data = build_data(train_options)
    return build_variants(config, options, CONF, data), data, train_options


def conditions(variant: Variant, data: DataModule, optimizer: type[Optimizer] = torch.optim.Adam) -> Conditions:
    """Of a step on random weights, in float64."""
    start = canonical_weights(variant.build())
    return Conditions(
        batch=most_padded(data),
        weights=random_and_distinct(start, seed=0),
        state=None,
        optimizer=lambda groups: optimizer(groups, lr=1e-3),
        rate_factor=1.0,
        clip=1.0,
        label_smoothing=0.0,
        dtype=torch.float64,
        training=False,
        seed=0,
    )
