"""The experiments of train.py: each runs as its file says, here on a corpus and a model too small to learn anything."""

import gzip
import json

import pytest
from conftest import CONF, compose

from lockstep.commands.train import train

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
SMALL = ["model.d_model=16", "model.num_heads=2", "model.d_ff=16", "model.encoder_layers=1", "model.decoder_layers=1"]
SHORT = ["trainer.max_steps=2", "trainer.val_check_interval=2", "data.vocabulary_size=300", "trainer.accelerator=cpu"]


@pytest.fixture
def raw_files(tmp_path):
    """A folder laid out as the public repository of Multi30k."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, size in {"train": 12, "val": 3, "test_2016_flickr": 4}.items():
        for language, line in {"en": "A dog sees {} cats.\n", "de": "Ein Hund sieht {} Katzen.\n"}.items():
            text = "".join(line.format(number) for number in range(size))
            (folder / f"{split}.{language}.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def test_there_are_some():
    assert {"multi30k_quick", "multi30k_tiny"} <= set(EXPERIMENTS)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("attention", [None, "per_head"])
def test_an_experiment_trains_translates_and_scores(experiment, attention, raw_files, tmp_path):
    told = [] if attention is None else [f"attention={attention}"]
    config = compose(f"experiment={experiment}", "name=tiny", f"data.path={raw_files}", *SMALL, *SHORT, *told)
    assert ("per_head" in config["attention"]["_target_"]) == (attention == "per_head")
    train({**config, "output": str(tmp_path / "runs")})
    (folder,) = (tmp_path / "runs").iterdir()
    metrics = json.loads((folder / "metrics.json").read_text())
    assert {"test/bleu", "test/bleu_lowercased", "test/chrf", "signatures"} <= set(metrics)
    assert len((folder / "test.hypotheses.txt").read_text().splitlines()) == 4


def test_the_quick_one_is_the_other_but_for_its_training():
    tiny, quick = (compose(f"experiment=multi30k_{name}", "name=x") for name in ("tiny", "quick"))
    for config in (tiny, quick):
        del config["model"]["dropout"]
    assert quick["model"] == tiny["model"]
    tokens = [config["trainer"]["max_steps"] * config["batch_tokens"] for config in (quick, tiny)]
    assert tokens[0] < tokens[1] / 2
