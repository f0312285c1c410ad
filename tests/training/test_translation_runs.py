"""Runs of a translation task: which sentences are scored, by what, with which weights, and when a run ends."""

import json
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from conftest import compose
from runs import newest, points, run, send, state
from training.translating import TINY, config

from lockstep.base.errors import Interrupted
from lockstep.commands.building import build_data, build_model, build_module
from lockstep.commands.options import TrainOptions, parse
from lockstep.commands.run_folder import options_of_run
from lockstep.commands.train import train
from lockstep.commands.translator import Translator
from lockstep.data.batching import collate
from lockstep.data.tokenization import PAD
from lockstep.observe import scores, segmentation
from lockstep.observe.scores import Score, score

OPTIONS = ["trainer.max_steps=70", "trainer.val_check_interval=10", "average_decay=0.8", "search.beam_size=3"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        return run(config(tmp_path_factory.mktemp("whole"), *OPTIONS))


@pytest.fixture(scope="module")
def best(whole):
    return load(whole)


def load(folder):
    """A run's options, data and, with its best weights, module."""
    checkpoint = state(folder, "best.ckpt")
    options = parse(TrainOptions, checkpoint["lockstep"]["config"])
    data = build_data(options)
    module = build_module(options, build_model(options, data), natural_language=True).eval()
    module.load_state_dict(checkpoint["state_dict"])
    return options, data, module


def translate(options, data, model):
    """Each test sentence by itself."""
    translator = Translator(model, data.tokenizers, options.search, batch_tokens=1)
    return [translator([source])[0][0].text for source in data.sources("test")]


def metrics_of(folder):
    return json.loads((folder / "metrics.json").read_text())


def go_on(folder, **changes):
    return train({**options_of_run({"resume": str(folder)}, []), **changes})


def test_the_printed_command_gives_the_scores_that_were_noted(whole):
    metrics = metrics_of(whole)
    (line,) = [line for line in (whole / "train.log").read_text().splitlines() if "score it again" in line]
    _, *arguments = shlex.split(line.rpartition(": ")[2])

    def rescored(*more):
        command = [sys.executable, "-m", "sacrebleu", *arguments, "-w", "6", *more]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return {result["name"]: result for result in answer}

    cased, lowercased = rescored(), rescored("--lowercase")
    assert metrics["test/bleu"] == pytest.approx(cased["BLEU"]["score"], abs=1e-5)
    assert metrics["test/chrf"] == pytest.approx(cased["chrF2"]["score"], abs=1e-5)
    assert metrics["test/bleu_lowercased"] == pytest.approx(lowercased["BLEU"]["score"], abs=1e-5)
    assert 0 < metrics["test/bleu"] < metrics["test/bleu_lowercased"] < 100
    for name in ("nrefs", "case", "tok", "smooth", "version"):
        assert f"{name}:{cased['BLEU'][name]}" in metrics["signatures"]["test/bleu"]
    assert metrics["seed"] == 0
    assert [step for step, _ in points(whole)["test/bleu"]] == [70]


def test_every_test_sentence_has_its_own_translation(whole, best):
    options, data, module = best
    alone = translate(options, data, module.evaluated)
    assert len(set(alone)) > 5
    assert (whole / "test.hypotheses.txt").read_text().splitlines() == alone
    assert (whole / "test.references.txt").read_text().splitlines() == data.references("test")


def test_the_weights_of_the_highest_bleu_are_judged_not_the_last_nor_those_of_the_lowest_loss(tmp_path, monkeypatch):
    def falling(hypotheses, references, tokenizer):
        calls.append(len(hypotheses))
        return {**score(hypotheses, references, tokenizer), "bleu": Score(50.0 - len(calls), "")}

    calls = []
    monkeypatch.setattr(scores, "score", falling)
    folder = run(config(tmp_path, "trainer.max_steps=30", "trainer.val_check_interval=10"))
    assert calls == [12, 12, 12, 14]
    assert state(folder, "best.ckpt")["global_step"] == metrics_of(folder)["test/step"] == 10
    losses = dict(points(folder)["validation/loss"])
    assert losses[10] > losses[30]
    options, data, module = load(folder)
    translations = translate(options, data, module.model)
    assert (folder / "test.hypotheses.txt").read_text().splitlines() == translations
    module.load_state_dict(state(folder, "last.ckpt")["state_dict"])
    assert translate(options, data, module.model) != translations


def test_a_tie_in_bleu_is_decided_by_chrf_and_then_by_the_loss(tmp_path, monkeypatch, caplog):
    def tied(hypotheses, references, tokenizer):
        return {**score(hypotheses, references, tokenizer), "bleu": Score(0.0, ""), "chrf": Score(next(chrf), "")}

    chrf = iter([10.0, 30.0, 30.0, 20.0, 29.0, 0.0])
    monkeypatch.setattr(scores, "score", tied)
    folder = run(config(tmp_path, "trainer.max_steps=70", "trainer.val_check_interval=10", "patience=2"))
    losses = dict(points(folder)["validation/loss"])
    assert losses[20] > losses[30]
    assert state(folder, "best.ckpt")["global_step"] == metrics_of(folder)["test/step"] == 30
    assert state(folder)["global_step"] == 50
    (said,) = [message for message in caplog.messages if "stays 0" in message]
    assert "tokenizer 13a" in said
    assert "scores.tokenizer=" in said


def test_chinese_is_scored_by_its_own_words(tmp_path):
    texts = {"en": "a dog\na cat\na red dog\n", "zh": "一只狗在跑\n一只猫在睡觉\n一只红色的狗\n"}
    for language, lines in texts.items():
        (tmp_path / f"words.{language}").write_text(lines)
    files = f"data.train=[{tmp_path}/words.en,{tmp_path}/words.zh]"
    folder = run(compose(*TINY, files, f"output={tmp_path / 'runs'}", "trainer.max_steps=60", "average_decay=null"))
    metrics = metrics_of(folder)
    assert metrics["test/bleu"] == pytest.approx(100)
    assert "tok:zh" in metrics["signatures"]["test/bleu"]
    log = (folder / "train.log").read_text()
    assert log.count("BLEU by tokenizer zh: the target language is zh") == 1
    assert "-tok zh" in log


def test_a_tokenizer_that_is_not_installed_is_refused_before_any_work(tmp_path, monkeypatch):
    from lockstep.commands.options import ConfigurationError

    monkeypatch.setattr(segmentation, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"scores\.tokenizer=ja-mecab needs pip install 'sacrebleu\[ja\]'"):
        train(config(tmp_path, "scores.tokenizer=ja-mecab"))
    assert not list(tmp_path.iterdir())


def test_a_run_from_before_the_options_of_scores_goes_on_as_it_was(tmp_path, whole):
    folder = shutil.copytree(whole, tmp_path / whole.name)
    (folder / "metrics.json").unlink()
    path = folder / "checkpoints" / "last.ckpt"
    checkpoint = state(folder)
    del checkpoint["lockstep"]["config"]["scores"], checkpoint["lockstep"]["config"]["search"]["early_stopping"]
    saved = checkpoint["callbacks"]["Saving"]
    saved["best"] = saved["best"][0]
    torch.save(checkpoint, path)
    go_on(folder)
    assert metrics_of(folder)["test/step"] == metrics_of(whole)["test/step"]
    written = (folder / "config.yaml").read_text()
    assert "early_stopping: true" in written
    assert "tokenizer: 13a" in written


def test_validation_scores_the_greedy_translations_against_the_raw_references(whole, best):
    _, data, module = best
    by_source = {}
    for batch in data.val_dataloader():
        for source, ids in zip(batch.source.tolist(), module.translate(batch).tolist(), strict=True):
            ids = ids[: ids.index(2)] if 2 in ids else ids
            by_source[data.tokenizers.source.decode(source)] = data.tokenizers.target.decode(ids)
    hypotheses = [by_source[source] for source in data.sources("validation")]
    step = state(whole, "best.ckpt")["global_step"]
    expected_scores = score(hypotheses, data.references("validation"), "13a")
    for name, expected in expected_scores.items():
        assert dict(points(whole)[f"validation/{name}"])[step] == pytest.approx(expected.value, rel=1e-5)
    assert f"BLEU {expected_scores['bleu'].value:.2f}" in (whole / "train.log").read_text()


def test_a_greedy_translation_ends_by_its_own_source_whatever_is_beside_it(best):
    options, data, _ = best
    module = build_module(options, build_model(options, data), natural_language=True).eval()  # which knows no end

    def row(length, target):
        return torch.tensor([1, *[9] * length, 2]), torch.tensor([1, *[9] * target, 2])

    beside_long, beside_short = (collate([row(3, 1), other]) for other in (row(30, 60), row(2, 1)))
    first, second = (module.translate(batch)[0] for batch in (beside_long, beside_short))
    lengths = [int((ids != PAD).sum()) for ids in (first, second)]
    assert lengths == [20, 20]  # twice <s>, three tokens, </s>, and ten
    assert torch.equal(first[:20], second[:20])


def test_interrupted_while_it_scores_a_run_goes_on_to_its_scores(tmp_path, whole, monkeypatch):
    original = Translator.hypotheses

    def hypotheses(self, sources):
        send(signal.SIGINT)
        return original(self, sources)

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "hypotheses", hypotheses)
        with pytest.raises(Interrupted, match="stopped while testing"):
            train(config(tmp_path, *OPTIONS))
    folder = newest(tmp_path)
    assert not (folder / "metrics.json").exists()
    go_on(folder)
    ours, theirs = metrics_of(folder), metrics_of(whole)
    assert all(ours[name] == theirs[name] for name in theirs if not name.startswith("train/"))
    assert (folder / "test.hypotheses.txt").read_bytes() == (whole / "test.hypotheses.txt").read_bytes()


def test_weights_of_another_layout_are_judged_as_well(tmp_path, whole):
    """The best validation came before the attention was changed."""
    folder = shutil.copytree(whole, tmp_path / whole.name)
    attention = config(tmp_path, "attention=per_head")["attention"]
    trainer = {**options_of_run({"resume": str(folder)}, [])["trainer"], "max_steps": 71}
    metrics = go_on(folder, attention=attention, trainer=trainer)
    assert metrics["train/steps"] == 71
    for name in ("test/step", "test/bleu", "test/chrf"):
        assert metrics[name] == metrics_of(whole)[name]
    assert metrics["weights_sha256"] != metrics_of(whole)["weights_sha256"]


def test_two_vocabularies_of_one_size_share_no_embedding(tmp_path):
    """On any corpus that fills both: sizes alone would not tell."""
    from lockstep.commands.options import ConfigurationError

    with pytest.raises(ConfigurationError, match=r"option model\.tied_embeddings=all .* model\.tied_embeddings=output"):
        train(config(tmp_path, "data.joint_vocabulary=false", "data.vocabulary_size=270"))
    assert not list(tmp_path.iterdir())
    tied = config(tmp_path, "data.joint_vocabulary=false", "data.vocabulary_size=270", "model.tied_embeddings=output")
    vocabularies = build_data(parse(TrainOptions, tied)).tokenizers
    assert vocabularies.source.get_vocab_size() == vocabularies.target.get_vocab_size() == 270


def test_an_impossible_search_is_refused_before_any_work(tmp_path):
    from lockstep.commands.options import ConfigurationError

    with pytest.raises(ConfigurationError, match=r"option search\.n_best=2 is more than"):
        train(config(tmp_path, "search.beam_size=1", "search.n_best=2"))
    assert not list(tmp_path.iterdir())


def test_a_run_of_files_beside_the_user_goes_on_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in (("a.en", "a dog\na cat\n"), ("a.de", "ein Hund\neine Katze\n")):
        (tmp_path / name).write_text(lines)
    folder = run(compose(*TINY, "data.train=[a.en,a.de]", f"output={tmp_path / 'runs'}", "trainer.max_steps=2"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    go_on(folder, trainer={**state(folder)["lockstep"]["config"]["trainer"], "max_steps": 3})
    assert metrics_of(folder)["train/steps"] == 3
