"""Mistakes are refused before any work, in one line that names the option and the nearest real one."""

import re
import shlex
import sys

import pytest
import yaml
from conftest import CONF, TINY, compose

from lockstep.base.errors import ConfigurationError
from lockstep.base.hints import as_argument, meant
from lockstep.commands.command_line import REFUSED, UNUSABLE
from lockstep.commands.composition import Composer
from lockstep.commands.options import ScoresOptions, check_arguments, parse
from lockstep.commands.run_folder import new_run_folder
from lockstep.commands.targets import locate
from lockstep.commands.train import train
from scripts import called, command


def composer(name: str) -> Composer:
    return Composer(CONF, name, paths=command(name).paths)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.num_heads=3", "num_heads=3, d_model=64"),
        ("model.d_model=true", "option model.d_model=true: must be a whole number"),
        ("model.d_ff=1.5", "option model.d_ff=1.5: must be a whole number"),
        ("model.d_ff=99999999999", "option model.d_ff=99999999999: must be less than 2147483648"),
        ("model.dropout=1.0", "option model.dropout=1.0: must be less than 1"),
        ("model.dropout=0.999999", "model: dropout is a probability, 0 <= p < 1, and leaves one entry in 65,536"),
        ("model.attention_dropout=0.999999", "model: dropout is a probability"),
        ("model.norm=post_norm", "option model.norm=post_norm: must be 'post' or 'pre'"),
        ("model.bias=1", "option model.bias=1: must be true or false"),
        ("seed=abc", "option seed=abc: must be a whole number"),
        ("seed=-1", "option seed=-1: must be greater than or equal to 0"),
        ("patience=x", "option patience=x: must be a whole number"),
        ("optimizer.betas=[0.9]", "option optimizer.betas=[0.9]: has too few entries"),
        ("optimizer.betas=0.9", "option optimizer.betas=0.9: must be a list, as in [a,b]"),
        ("+model.head=2", "unknown option model.head; did you mean model.num_heads?"),
        ("+trainer.max_step=2", "unknown option trainer.max_step; did you mean trainer.max_steps?"),
        ("+data.maxlength=2", "unknown option data.maxlength; did you mean data.max_length?"),
        ("+optimizer.learning_rate=1", "unknown option optimizer.learning_rate"),
        ("+attention.heads=2", "unknown option attention.heads"),
        ("optimizer.lr=fast", "option optimizer.lr=fast: must be a number"),
        ("optimizer.lr=-1.0", "optimizer: Invalid learning rate: -1.0"),
        ("data.symbols=1", "too few different sequences"),
        ("data.min_length=9", "data: 1 <= min_length <= max_length"),
        ("data.test_size=1", "option data.test_size=1: must be greater than or equal to 2"),
        (
            "attention._target_=lockstep.attention.fused.Fusd",
            "no Fusd in lockstep.attention.fused; there are FusedAttention",
        ),
        ("attention._target_=torch.nn.Linear", "is not a lockstep.attention.MultiHeadAttention"),
        ("attention._target_=nowhere.Attention", "no module named nowhere"),
        ("attention._target_=..", "must be a dotted name of a class"),
        ("optimizer._target_=torch.optim.SparseAdam", "optimizer: "),
    ],
)
def test_refused_before_any_work(tmp_path, override, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)) as refusal:
        train(compose(*TINY, f"output={tmp_path}", override))
    assert "\n" not in str(refusal.value)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["model.head=2"], "unknown option model.head; did you mean model.num_heads?"),
        (["attention=fusd"], "attention=fusd does not exist; did you mean attention=fused?"),
        (["+model.heads=2"], "unknown option model.heads; did you mean model.num_heads?"),
        (["data.max_length=[1"], "argument data.max_length=[1 cannot be read"),
        (["model=7"], "model=7 does not exist; there are model=small"),
        (["attention=null"], "attention=null does not exist; there are"),
        (["attention=[fused]"], "attention=[fused] does not exist"),
        (["attention=../data/copy"], "attention=../data/copy does not exist"),
        (["optimizer=muon"], "optimizer=muon does not exist; there are optimizer=adam"),
        (["experiment=muon"], "experiment=muon does not exist; comparison=muon is for another script"),
        (["lr=0.1"], "unknown option lr; did you mean optimizer.lr?"),
        (["epochs=3"], "unknown option epochs; did you mean trainer.max_steps?"),
        (["data.batch_size=3"], "unknown option data.batch_size; did you mean batch_tokens?"),
        (["device=cuda"], "unknown option device; did you mean trainer.accelerator?"),
        (["trainer.devices=2"], "unknown option trainer.devices; did you mean trainer.accelerator?"),
        (["max_steps=2"], "unknown option max_steps; did you mean trainer.max_steps?"),
        (["optimizer=sgd", "optimizer.betas=[0,0]"], "unknown option optimizer.betas"),
        (["resume", "outputs/x"], "resume outputs/x: the = is missing; write resume=outputs/x"),
        (["seed"], "'seed' says nothing: an option and its value are one word"),
        (["--shout"], "--shout is no flag; the flags are --help, --cfg job and -m"),
        (["--seed=3"], "--seed=3 is no flag: options have no dashes, as in seed=...; the flags are"),
        (["--epochs", "3"], "--epochs is no flag: options have no dashes; did you mean trainer.max_steps?; the flags"),
        (["weight_decay=0.1"], "unknown option weight_decay; optimizer.weight_decay would be meant, which is not an"),
        (["-m", "seed=0", "seed=1"], "option seed is given twice: a sweep takes seed=first,second"),
        (["-m", "resume=x", "seed=0,1"], "resume= goes on with one run, without -m"),
        (
            ["data.train=[a", "b.en,c", "d.de]"],
            'argument data.train=[a needs quotes, for Hydra and for the shell: \'data.train=["a b.en","c d.de"]\'\n',
        ),
        (["data.train=[a,b,]"], "argument data.train=[a,b,] cannot be read; a list is written: data.train=[a,b]\n"),
        (["data.train=a,"], "argument data.train=a, cannot be read: "),
        (["seed=interval(0,1)"], "seed=interval(0,1) is several values"),
        (["output="], "option output is empty: it takes a path"),
        (
            ["attention=fused,packed"],
            "attention=fused,packed is several values: -m, first, runs each where a sweep may\n",
        ),
        (["data.train=[Quelle 1.en,Ziel=1.de]"], "argument data.train=[Quelle 1.en,Ziel=1.de] needs quotes, for Hydra"),
        (["seed=${nothing}"], "Interpolation key 'nothing' not found"),
        (["resume=nowhere/at=all"], "checkpoint nowhere/at=all does not exist"),
        (["=1"], "'=1' says nothing"),
        ([""], "'' says nothing"),
        (["seed=" + "[" * 2000], "argument seed="),
    ],
)
def test_command_line_answers_in_one_line(tmp_path, monkeypatch, capsys, arguments, line):
    monkeypatch.chdir(tmp_path)
    assert called("train", *arguments) == (UNUSABLE if "resume=nowhere/at=all" in arguments else REFUSED)
    output, errors = capsys.readouterr()
    assert errors.startswith(f"error: {line}")
    assert errors.count("\n") == 1
    assert output == ""
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("compare", ["compare.variants=fused,sdpa"], "a list is written compare.variants=[fused,sdpa]"),
        ("benchmark", ["attention=fused"], "'~variants.shared_heads' leaves one out"),
        ("benchmark", ["variants=[fused]"], "benchmark takes each of variants.fused, variants.per_head"),
        ("translate", ["checkpoint=x", "text.de"], "the text comes from standard input, as in < FILE"),
        ("train", ["resume=sweep"], "sweep holds 2 runs; name one, such as sweep/0-a"),
    ],
)
def test_what_another_command_would_take_is_told_the_right_form(tmp_path, monkeypatch, capsys, name, arguments, line):
    monkeypatch.chdir(tmp_path)
    for job in ("0-a", "1-b"):
        (tmp_path / "sweep" / job / "checkpoints").mkdir(parents=True)
        (tmp_path / "sweep" / job / "checkpoints" / "last.ckpt").touch()
    assert called(name, *arguments) in (REFUSED, UNUSABLE)
    assert line in capsys.readouterr().err


def test_the_advised_quoting_works():
    """Spaces, an equals sign and letters beyond ASCII, in a list."""
    with pytest.raises(ConfigurationError) as refusal:
        composer("train").jobs(["data=parallel", "data.train=[Quelle 1.en,Ziel=ü.de]"], sweep=False)
    (advised,) = shlex.split(str(refusal.value).partition("shell: ")[2])
    assert advised == 'data.train=["Quelle 1.en","Ziel=ü.de"]'
    (job,) = composer("train").jobs(["data=parallel", advised], sweep=False)
    assert job.values["data"]["train"] == ["Quelle 1.en", "Ziel=ü.de"]


@pytest.mark.parametrize(
    "path", ["a b", "naïve café", "x=1", "a'b", 'a"b', "a\\'b", "a\\", "[x]", "a,b", "#1 50%", "数据", "a: b", "{c}"]
)
def test_a_path_is_taken_as_it_stands_or_quoted(path):
    for words in ([f"output={path}"], shlex.split(as_argument("output", path)) if "\\" not in path else []):
        assert composer("train").jobs(words or ["output=" + path], sweep=False)[0].values["output"] == path


@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("compare", ["attention=fused"], "unknown option attention; did you mean compare.variants?"),
        ("compare", ["experiment=muon"], "unknown option experiment; did you mean comparison?"),
        ("compare", ["compare.swap=3"], "unknown option compare.swap; did you mean compare.swap_at?"),
        ("compare", ["compare=3"], "option compare holds options of its own, it cannot be 3"),
        ("compare", ["-m"], "compare runs once: -m is for scripts/train.py"),
        ("translate", ["-m", "checkpoint=x"], "translate runs once: -m is for scripts/train.py"),
        ("benchmark", ["-m"], "benchmark runs once"),
        ("benchmark", ["variants.fused=1"], "option variants.fused._target_ must be a dotted name"),
        ("benchmark", ["+variants.x={_target_: builtins.dict}"], "option variants.x._target_=builtins.dict is not a"),
        ("benchmark", ["n_heads=3"], "unknown option n_heads; did you mean num_heads?"),
        ("convert", ["checkpoint=x", "output=y"], "option attention is missing"),
        ("convert", ["attention=fused", "output=y"], "option checkpoint is missing; write checkpoint=..."),
    ],
)
def test_each_command_answers_in_one_line(tmp_path, monkeypatch, capsys, name, words, line):
    monkeypatch.chdir(tmp_path)
    assert called(name, *words) == REFUSED
    output, errors = capsys.readouterr()
    assert (output, errors.count("\n")) == ("", 1)
    assert errors.startswith(f"error: {line}")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["train", "compare", "convert", "translate", "benchmark"])
def test_help_and_the_configuration_are_shown(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert called(name, "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith(f"python scripts/{name}.py option=value ...")
    assert "defaults:" not in text
    assert called(name, "--cfg", "job") == 0
    yaml.safe_load(capsys.readouterr().out)
    assert not any(tmp_path.iterdir())


def test_the_command_line_wins_and_is_what_is_saved(tmp_path):
    train(compose(*TINY, f"output={tmp_path}", "trainer.max_steps=2", "model.num_heads=1"))
    (folder,) = tmp_path.iterdir()
    assert "num_heads: 1" in (folder / "config.yaml").read_text()


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """The working folder, whose modules are forgotten again."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


MINE = """from lockstep.attention.fused import FusedAttention
class Mine(FusedAttention):
    def __init__(self, d_model, num_heads, *, bias=True, dropout=0.0, temper=1.0):
        if temper > 1: 1 / 0
        super().__init__(d_model, num_heads, bias=bias, dropout=dropout)
"""


def test_a_users_class_plugs_in_by_a_file_beside_them(beside, capsys):
    (beside / "mine_beside.py").write_text(MINE)
    options = [*TINY, "trainer.max_steps=2", "output=out", "attention._target_=mine_beside.Mine"]
    path = [*sys.path]
    assert called("train", *options, "~attention.arithmetic") == 0
    output = capsys.readouterr().out
    assert "run folder: out/tiny-" in output
    assert "\r" not in output
    assert sys.path == path


def test_what_fails_in_a_users_file_is_one_line_with_its_place(beside, capsys):
    (beside / "mine_broken.py").write_text(MINE)
    (beside / "mine_needy.py").write_text("import not_installed_at_all\n")
    options = [*TINY, "~attention.arithmetic"]
    assert called("train", *options, "attention._target_=mine_broken.Mine", "+attention.temper=2.0") == REFUSED
    assert "mine_broken.py, line 4: ZeroDivisionError: division by zero\n" in capsys.readouterr().err
    assert called("train", *options, "attention._target_=mine_needy.Mine") == UNUSABLE
    assert "mine_needy.py:1: ModuleNotFoundError: No module named 'not_installed_at_all'" in capsys.readouterr().err


def test_a_module_of_the_libraries_is_not_looked_for_beside_the_user(beside):
    (beside / "colorsys.py").write_text("raise SystemExit('the file in the working folder ran')\n")
    with pytest.raises(ConfigurationError, match="no Attention in colorsys"):
        locate({"_target_": "colorsys.Attention"}, "attention")


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path):
    folders = {new_run_folder(tmp_path, "copy-fused") for _ in range(5)}
    assert len(folders) == 5
    assert all(folder.is_dir() for folder in folders)


def test_a_constructor_may_pass_on_what_it_is_given():
    class Passes(dict):
        def __init__(self, *sizes, **options):
            super().__init__(**options)

    assert check_arguments(Passes, {"bias": True}, "attention.", positional=2) == {"bias": True}


@pytest.mark.parametrize("value", [None, 3, "fused"])
def test_what_holds_options_holds_options(value):
    with pytest.raises(ConfigurationError, match="option compare holds options of its own, it cannot be"):
        parse(ScoresOptions, value, "compare.")


@pytest.mark.parametrize(("key", "known"), [("adamW", "adamw"), ("num_epochs", "trainer.max_steps")])
def test_letters_and_habits_tell_what_is_meant(key, known):
    assert meant(key, ["adam", "adamw", "trainer.max_steps"]) == f"; did you mean {known}?"
