"""Whatever is asked for, it runs, or is refused in a sentence."""

import copy
import tempfile

import pytest
from conftest import VARIANTS, compose
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from training.runs import SMALL

from lockstep.commands.options import ConfigurationError
from lockstep.commands.train import train

# Mostly what should run, with some of what must not.
CHOICES = {
    "seed": [0, 1, 2**40, -1, None, "zero"],
    "batch_tokens": [1, 16, 64, 0],
    "length_jitter": [0, 1, 5, -1],
    "label_smoothing": [0.0, 0.1, 0, 1.0],
    "average_decay": [None, 0.5, 0.999, 1.0],
    "stop_at_exact_match": [None, 0.5, 1.0, 0.0],
    "patience": [None, 1, 3, 0],
    "attention_maps_every": [0, 1, 2, -1],
    "checkpoint_every": [1, 2, 100, 0],
    "arithmetic": ["ordered", "native", "exact"],
    "model.d_model": [2, 16, 24, 48, 0, 15.5],
    "model.num_heads": [1, 2, 3, 4, 0],
    "model.encoder_layers": [1, 2, 0],
    "model.decoder_layers": [1, 2, 0],
    "model.d_ff": [1, 8, 32, -8],
    "model.bias": [True, False, "yes"],
    "model.dropout": [0.0, 0.1, 0.9, 1.0, -0.1],
    "model.attention_dropout": [0.0, 0.3, 1.5],
    "model.activation": ["relu", "gelu", "tanh"],
    "model.norm": ["pre", "post", "rms"],
    "model.tied_embeddings": ["none", "output", "all", "some"],
    "model.width": [7],
    "schedule.name": ["constant", "linear", "cosine", "inverse_sqrt", "step"],
    "schedule.warmup_steps": [0, 1, 50, -1],
    "trainer.precision": ["32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "8"],
    "trainer.gradient_clip_val": [None, 0.1, 1.0, 0.0],
    "trainer.accumulate_grad_batches": [1, 2, 3, 0],
    "trainer.val_check_interval": [1, 2, 100, 0],
    "trainer.log_every_n_steps": [1, 50, 0],
    "trainer.max_steps": [2, 2, 2, 0],
    "optimizer._target_": [
        *(f"torch.optim.{n}" for n in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Adafactor", "Muon")),
        "torch.optim.LBFGS",
        "torch.optim.lr_scheduler.LambdaLR",
        "nowhere.Adam",
        "json.loads",
        None,
    ],
    "optimizer.lr": [1e-3, 1.0, -1.0, "fast"],
    "optimizer.betas": [[0.9, 0.98], [0.9], [2.0, 0.9], 0.9],
    "attention._target_": ["lockstep.attention.packed.PackedAttention", "torch.nn.Linear", "nowhere", 3],
    "data.train_size": [2, 20, 1, 10**9],
    "data.validation_size": [2, 0],
    "data.symbols": [3, 26, 1],
    "data.min_length": [1, 4, 0],
    "data.source_locale": ["en", "ar", "zh_Hant", "xx", 7],
    "data.target_locale": ["hu", "hi", ""],
    "data.first_year": [1900, 0, 2100],
    "data.vocabulary_size": [300, 1024, 100],
    "data.joint_vocabulary": [True, False],
    "name": ["run", "a b", "数据", "", "x/y"],
}
BASES = {
    (data, attention): compose(
        *(override for override in SMALL if data == "copy" or not override.startswith("data.max_length")),
        f"data={data}",
        f"attention={attention}",
        "trainer.max_steps=2",
        "model.d_model=16",
    )
    for data in ("copy", "dates")
    for attention in VARIANTS
}


@st.composite
def configurations(draw):
    base = copy.deepcopy(BASES[draw(st.sampled_from(sorted(BASES)))])
    for option in draw(st.lists(st.sampled_from(sorted(CHOICES)), max_size=6, unique=True)):
        *path, key = option.split(".")
        node = base
        for name in path:
            node = node[name]
        node[key] = draw(st.sampled_from(CHOICES[option]))
    return base


@pytest.mark.slow
def test_500_configurations_run_two_steps_or_are_refused():
    outcomes = {"ran": 0, "refused": 0}

    @settings(max_examples=500, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(configurations())
    def runs_or_is_refused(config):
        refusal = ""
        with tempfile.TemporaryDirectory() as folder:
            try:
                assert train({**config, "output": folder})["train/steps"] == 2
            except ConfigurationError as error:
                refusal = str(error)
        assert "\n" not in refusal
        outcomes["refused" if refusal else "ran"] += 1

    runs_or_is_refused()
    assert min(outcomes.values()) > 100, outcomes
