"""A stranger's file does no harm: what it names is not built, what it claims is not allocated, nothing is written."""

import contextlib
import copy
import functools
import json
import math
import os
import random
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import CONF, compose
from omegaconf import OmegaConf
from training.runs import config, run

import lockstep
from lockstep.base.errors import CheckpointError, InputError
from lockstep.commands.options import ConfigurationError
from lockstep.commands.run_folder import options_of_run
from lockstep.commands.train import convert, convert_to, train
from lockstep.commands.trained_model import load_trained
from lockstep.commands.trust import KNOWN, refuse_unknown
from lockstep.training import checkpoints
from lockstep.training.checkpoints import FORMAT_VERSION, read_checkpoint


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return run(config(tmp_path_factory.mktemp("honest"), "trainer.max_steps=2"))


@pytest.fixture
def folder(honest, tmp_path):
    """A copy of a run, for a stranger to change."""
    return Path(shutil.copytree(honest, tmp_path / "run"))


def change(folder, act):
    """Let a function change what the checkpoints of a run hold."""
    for path in (folder / "checkpoints").glob("*.ckpt"):
        checkpoint = torch.load(path, weights_only=True)
        act(checkpoint)
        torch.save(checkpoint, path)


def set_option(name, value):
    *parents, key = name.split(".")

    def act(checkpoint):
        node = checkpoint["lockstep"]["config"]
        for parent in parents:
            node = node[parent]
        node[key] = value

    return act


def set_weight(name, value):
    return lambda checkpoint: checkpoint["state_dict"].__setitem__(name, value)


@functools.cache
def composed(*words):
    return compose("name=x", *words)


def translate(folder, trust=False):
    return load_trained(folder, trust)


def converting(folder, attention=None, trust=False):
    told = {
        "checkpoint": str(folder),
        "output": str(folder.parent / "out.ckpt"),
        "arithmetic": "ordered",
        "overwrite": True,
    }
    return convert({**told, "attention": attention or composed("attention=per_head")["attention"], "trust": trust})


def resume(folder, attention=None, trust=False):
    told = {"trainer": {**composed()["trainer"], "max_steps": 3}}
    told |= {} if attention is None else {"attention": attention}
    values = {**composed(), **told, "resume": str(folder), "output": str(folder.parent), "trust": trust}
    return train(options_of_run(values, ["trainer.max_steps", *({"attention"} & told.keys())]))


COMMANDS = [translate, converting, resume]
FOREIGN = {"arguments": {}, "conventions": {}, "mapping": []}
ADAPTER = "lockstep.verification.adapter.ForeignAttention"


def everything(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "node",
    [
        {"_target_": "subprocess.Popen", "args": ["touch", "MARK"]},
        {"_target_": ADAPTER, "target": "subprocess.Popen", **FOREIGN, "arguments": {"args": ["touch", "MARK"]}},
        {"_target_": ADAPTER, "target": "evil.py:Attention", **FOREIGN},
        {"_target_": "evil.Attention"},
    ],
)
def test_an_attention_that_is_not_known_is_neither_imported_nor_called(folder, monkeypatch, node):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    (folder / "evil.py").write_text("open('MARK', 'w')")
    change(folder, set_option("attention", node))
    before = everything(folder)
    for command in COMMANDS:
        with pytest.raises(CheckpointError, match="attention") as refusal:
            command(folder)
        assert "\n" not in str(refusal.value)
        assert everything(folder) == before
        assert "evil" not in sys.modules


@pytest.mark.parametrize(
    "node",
    [
        {"_target_": "lockstep.attention.fused.os.system", "command": "touch MARK"},
        {"_target_": "lockstep.attention.evil.Attention"},
        {"_target_": "lockstep.attention.fused.FusedAttention.evil"},
        {"_target_": "lockstep.attention.fused.FusedAttention "},
        {"_target_": "torch.optim.os.system"},
        {"_target_": "torch.optim.Adam.step"},
        {"_target_": "lockstep.data.hub.datasets.load_dataset"},
        {"_target_": ["lockstep.attention.fused.FusedAttention"]},
        {"_target_": {"_target_": "os.system"}},
        {},
        "lockstep.attention.fused.FusedAttention",
        None,
    ],
)
def test_names_within_known_packages_are_no_known_classes(node):
    with pytest.raises(CheckpointError, match=r"names .* as its attention"):
        refuse_unknown({"attention": node}, ["attention"], "a file", "say trust=true")


@pytest.mark.parametrize(
    ("option", "target"),
    [
        ("data", "os.system"),
        ("data", "evil.Task"),
        ("optimizer", "os.system"),
        ("optimizer", "torch.optim.lr_scheduler.LambdaLR"),
    ],
)
def test_a_task_or_optimiser_that_is_not_known_is_not_resumed(folder, monkeypatch, option, target):
    monkeypatch.syspath_prepend(str(folder))
    (folder / "evil.py").write_text("raise SystemExit")
    change(folder, set_option(f"{option}._target_", target))
    with pytest.raises(CheckpointError, match=f"names '{target}' as its {option}, .* trust=true"):
        resume(folder)
    assert translate(folder).step == 2  # which builds neither


def test_a_class_known_in_one_place_is_no_task_in_another(folder):
    change(folder, set_option("data._target_", "torch.optim.Adam"))
    with pytest.raises(ConfigurationError, match="is not a task"):
        resume(folder)


def test_a_stored_word_of_trust_counts_for_nothing(folder):
    change(folder, set_option("trust", True))
    change(folder, set_option("data._target_", "os.system"))
    with pytest.raises(CheckpointError, match="trust=true"):
        resume(folder)


MINE = """
from lockstep.attention.fused import FusedAttention
class Mine(FusedAttention):
    pass
"""


def test_a_class_of_the_users_is_run_where_it_is_named_or_trusted(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "mine_of_a_test", raising=False)
    (folder / "mine_of_a_test.py").write_text(MINE)
    change(folder, set_option("attention", {"_target_": "mine_of_a_test.Mine"}))
    for command in COMMANDS:
        with pytest.raises(CheckpointError, match=r"names 'mine_of_a_test\.Mine' as its attention.*trust=true"):
            command(folder)
    # Another attention is the user's word, the stored one is not, and a conversion runs both.
    with pytest.raises(CheckpointError, match="a conversion runs both"):
        resume(folder, composed("attention=per_head")["attention"])
    assert "mine_of_a_test" not in sys.modules
    assert translate(folder, trust=True).step == 2
    converting(folder, trust=True)
    assert resume(folder, {"_target_": "mine_of_a_test.Mine"})["train/steps"] == 3


@pytest.mark.parametrize("act", [converting, resume])
def test_a_class_whose_file_has_moved_is_found_where_the_user_says_it_is(folder, act, caplog):
    source = Path(__file__).parents[1] / "verification" / "foreign" / "fused01.py"
    certificate = lockstep.verify(f"{source}:MultiHeadAttention", thorough=False)
    mine = OmegaConf.to_container(OmegaConf.create(certificate.yaml()))
    stale = {**mine, "target": str(folder / "gone" / "fused01.py:MultiHeadAttention"), "folder": None}

    def adapt(checkpoint):
        checkpoint |= convert_to(checkpoint, mine, folder)
        checkpoint["lockstep"]["config"]["attention"] = stale

    change(folder, adapt)
    caplog.set_level("INFO")
    with pytest.raises(InputError, match=r"there is no file \S+/gone/fused01\.py"):
        act(folder, attention=composed("attention=per_head")["attention"], trust=True)
    assert "converted" not in caplog.text
    act(folder, attention=mine)
    assert f"is {mine['target']}" in caplog.text or "outputs agree" in caplog.text


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (set_option("attention", {"_target_": "os.system"}), "names 'os.system'"),
        (set_weight("x", torch.zeros(3)), "holds the weights of something else"),
    ],
)
def test_the_best_checkpoint_of_a_run_is_judged_as_its_newest(tmp_path, act, message):
    from training.translating import config as translating

    folder = run(translating(tmp_path / "out", "trainer.max_steps=2", "trainer.val_check_interval=2"))
    best = folder / "checkpoints" / "best.ckpt"
    checkpoint = torch.load(best, weights_only=True)
    act(checkpoint)
    torch.save(checkpoint, best)
    with pytest.raises(CheckpointError, match=rf"best\.ckpt {message}"):
        resume(folder)


def test_every_class_that_this_project_configures_is_known():
    for file in [*CONF.glob("attention/*.yaml"), *CONF.glob("data/*.yaml"), *CONF.glob("optimizer/*.yaml")]:
        target = OmegaConf.load(file)["_target_"]
        if target.startswith(("lockstep.", "torch.")) and target != ADAPTER:
            assert target in KNOWN, file


def test_runs_of_before_options_were_added_go_on(folder):
    def forget(checkpoint):
        del checkpoint["lockstep"]["config"]["trust"]
        del checkpoint["lockstep"]["config"]["scores"]
        del checkpoint["lockstep"]["config"]["search"]["early_stopping"]

    change(folder, forget)
    assert translate(folder).step == 2
    converting(folder)
    assert resume(folder)["train/steps"] == 3


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda c: c["lockstep"].update(config="small"), r"has no usable 'lockstep\.config'"),
        (lambda c: c["lockstep"].update(tokenizers=7), r"has no usable 'lockstep\.tokenizers'"),
        (lambda c: c.pop("state_dict"), "has no usable 'state_dict'"),
        (lambda c: c.update(state_dict=[1]), "has no usable 'state_dict'"),
        (lambda c: c.update(global_step=-1), "has no usable 'global_step'"),
        (lambda c: c.update(global_step=10**5000), "holds more than tensors"),
        (lambda c: c.update(optimizer_states=[]), "has no usable 'optimizer_states'"),
        (lambda c: c["loops"].update(loops=c["loops"]), "nested without end"),
        (lambda c: c["loops"].update(x={"increment_ready": "x"}), r"has no usable 'loops\.x'$"),
        (lambda c: c["lockstep"]["config"].update(optimizer=[]), r"has no usable 'lockstep\.config\.optimizer'"),
        (set_weight("w", torch.zeros(1).expand(10**6, 10**6)), "larger tensors than it holds"),
        (set_weight("w", torch.empty(3, device="meta")), "holds more than tensors"),
        (set_weight("w", torch.ones(3, 3).to_sparse()), "holds more than tensors"),
    ],
)
def test_each_entry_is_of_its_kind_and_no_larger_than_the_file(small, act, message):
    checkpoint = torch.load(small, weights_only=True)
    act(checkpoint)
    torch.save(checkpoint, small)
    with pytest.raises(CheckpointError, match=message) as refusal:
        read_checkpoint(small)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (set_option("model", "small"), "model"),
        (set_option("model", None), "model"),
        (set_option("model.encoder_layers", 10**7), r"encoder\.1\.\S+ should be .* is missing"),
        (set_option("model.d_ff", 10**9), r"feed_forward\.inner\.weight should be \(1000000000, 64\)"),
        (set_option("model.d_model", 10**7), r"too small for its model\.d_model=10000000"),
        (set_option("model.num_heads", 10**7), "num_heads"),
        (set_option("attention.surprise", 1), r"attention\.surprise"),
        (set_weight("model.output.weight", torch.ones(3, 64)), "one vocabulary for both sides"),
        (set_weight("model.output.weight", torch.ones(30, 32)), r"should be \(30, 64\), and is \(30, 32\)"),
        (set_weight("model.output.weight", torch.ones(30, 64, dtype=torch.int64)), "no finite numbers"),
        (set_weight("model.one.more", torch.ones(1)), "1 weights more than its options say"),
        (set_weight("other", torch.ones(1)), "weights of something else"),
        (lambda c: c["state_dict"].pop("model.output.weight"), "no embedding"),
        (lambda c: c["state_dict"].clear(), "weights of something else"),
        (set_weight("model.encoder.0.feed_forward.inner.bias", torch.full((64,), math.nan)), "no finite numbers"),
        (set_weight("model.encoder.0.feed_forward.inner.bias", torch.full((64,), math.inf)), "no finite numbers"),
    ],
)
def test_what_a_checkpoint_claims_is_compared_with_what_it_holds(folder, act, message):
    change(folder, act)
    before = everything(folder)
    for command in (translate, resume):
        with pytest.raises(CheckpointError, match=message) as refusal:
            command(folder)
        assert "\n" not in str(refusal.value)
        assert everything(folder) == before


@pytest.mark.parametrize(
    "act",
    [
        lambda c: c["loops"].clear(),
        lambda c: c["callbacks"]["Saving"].update(random={}),
        lambda c: c["callbacks"]["Saving"]["random"].update(numpy=("MT19937", [1] * 624, 10**9, 0, 0.0)),
        lambda c: c["callbacks"]["Saving"]["random"].update(numpy=("MT19937", [1] * 624, -5, 0, 0.0)),
        lambda c: c["DataModule"].update(batches=100),
        lambda c: c["DataModule"].update(batches=0),
        lambda c: c["optimizer_states"][0]["param_groups"][0].update(params=[0]),
        lambda c: c.update(lr_schedulers=[3]),
        lambda c: c.update({"pytorch-lightning_version": "x"}),
    ],
)
def test_a_state_that_cannot_be_taken_up_is_said_in_a_line(folder, act):
    change(folder, act)
    with pytest.raises(CheckpointError, match="cannot be gone on with") as refusal:
        resume(folder)
    assert "\n" not in str(refusal.value)


def rezip(path, method=zipfile.ZIP_STORED, pickled=lambda content: content, more=()):
    """Write an archive anew, with right sums."""
    with zipfile.ZipFile(path) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in [*entries, *more]:
            archive.writestr(name, pickled(content) if name.endswith("data.pkl") else content)


@pytest.fixture
def small(tmp_path):
    """The smallest checkpoint there can be."""
    group = {"params": [0], "param_names": ["w"]}
    checkpoint = {
        "global_step": 3,
        "state_dict": {"w": torch.arange(50.0)},
        "optimizer_states": [{"state": {}, "param_groups": [group]}],
        "lr_schedulers": [],
        "loops": {},
        "callbacks": {},
        "DataModule": {"epoch": 0, "batch": 0, "batches": 0},
        "lockstep": {"format_version": FORMAT_VERSION, "config": {}, "tokenizers": "", "stopped_early": False},
    }
    torch.save(checkpoint, tmp_path / "small.ckpt")
    return tmp_path / "small.ckpt"


def test_a_compressed_archive_is_refused_before_it_is_unpacked(small):
    rezip(small, zipfile.ZIP_DEFLATED, more=[("small/data/9", b"\0" * 10**7)])
    with pytest.raises(CheckpointError, match="is compressed"):
        read_checkpoint(small)


@pytest.mark.parametrize("more", [("other/data.pkl", b""), ("small/DATA.PKL", b"")])
def test_an_archive_with_two_contents_is_refused(small, more):
    rezip(small, more=[more])
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        read_checkpoint(small)


def test_the_directory_that_is_judged_is_the_one_that_torch_reads(small):
    """Before the end lies a directory of harmless entries; the end points to that of others."""
    other, one = small.with_name("other.ckpt"), small.with_name("one.ckpt")
    for path, method in ((other, zipfile.ZIP_DEFLATED), (one, zipfile.ZIP_STORED)):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("small/data.pkl", b"\x80\x02}.")
            archive.writestr("small/version", b"3\n")
    hidden, shown = other.read_bytes(), bytearray(one.read_bytes())
    start = zipfile.ZipFile(one).start_dir
    shown[-6:-2] = (zipfile.ZipFile(other).start_dir).to_bytes(4, "little")
    before = len(hidden) - 22
    skipped = before + start - zipfile.ZipFile(other).start_dir  # which zipfile takes for put before an archive
    for entry in zipfile.ZipFile(one).infolist():
        at = shown.index(b"PK\1\2", start)
        place = before + entry.header_offset - skipped
        shown[at : at + 4], shown[at + 42 : at + 46] = b"DONE", place.to_bytes(4, "little")
    shown = shown.replace(b"DONE", b"PK\1\2")
    small.write_bytes(hidden[:-22] + shown)
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        read_checkpoint(small)


@pytest.mark.parametrize("call", [b"builtins\nbytearray", b"torch\nTensor"])
def test_calls_that_only_allocate_are_refused_too(small, call):
    rezip(small, pickled=lambda content: b"\x80\x02c" + call + b"\nJ\xff\xff\xff\x7f\x85R.")
    with pytest.raises(CheckpointError, match="more than tensors and plain data"):
        read_checkpoint(small)


def test_a_few_lists_in_each_other_do_not_become_millions(small):
    checkpoint = torch.load(small, weights_only=True)
    bomb: list = []
    for _ in range(40):
        bomb = [bomb, bomb]
    torch.save({**checkpoint, "loops": {"x": bomb}}, small)
    with pytest.raises(CheckpointError, match="nested without end"):
        read_checkpoint(small)


def in_turn(count):
    """Tuples that each hold the one before twice."""
    return b"](Nq\xf0" + count * b"h\xf0h\xf0\x86q\xf0" + b"e" + b"h\xf0"


@pytest.mark.parametrize("key", [in_turn(60), b"N" + 200_000 * b"\x85", 200_000 * b"N" + 199_999 * b"\x86"])
def test_a_key_that_never_ends_is_not_hashed(small, key):
    rezip(small, pickled=lambda content: b"\x80\x02]}" + key + b"Ns.")
    with pytest.raises(CheckpointError, match="nested without end"):
        read_checkpoint(small)


def test_a_pickle_of_more_operations_than_any_model_needs_is_refused(small, monkeypatch):
    assert read_checkpoint(small)
    monkeypatch.setattr(checkpoints, "_MOST_OPERATIONS", 1000)
    rezip(small, pickled=lambda content: b"\x80\x02(" + 1000 * b"]" + b"l.")
    with pytest.raises(CheckpointError, match="nested without end"):
        read_checkpoint(small)


def test_a_configuration_of_texts_that_look_like_references_is_kept_as_it_is(folder):
    change(folder, set_option("name", "${oc.env:HOME} \\${ ${"))
    resume(folder)
    assert OmegaConf.load(folder / "config.yaml").name == "${oc.env:HOME} \\${ ${"


@pytest.mark.parametrize("place", ["/dev/null", "pipe"])
def test_a_stored_place_of_data_that_would_be_waited_for_is_not_opened(folder, monkeypatch, place):
    monkeypatch.chdir(folder)
    os.mkfifo("pipe")
    change(folder, set_option("data.train", [place, place]))
    with pytest.raises(CheckpointError, match=r"no file; name it by data\.train"):
        resume(folder)


@pytest.mark.parametrize("name", ["metrics.json", "environment.json"])
@pytest.mark.parametrize(
    "make",
    [lambda path: path.symlink_to("/dev/zero"), os.mkfifo, lambda path: (path.touch(), os.truncate(path, 2**40))],
)
def test_what_is_no_small_file_is_not_read(folder, name, make):
    (folder / name).unlink()
    make(folder / name)
    resume(folder)
    assert json.loads((folder / name).read_text(encoding="utf-8"))


def test_changed_bytes_end_in_a_sentence_or_in_a_good_read(small):
    good = small.read_bytes()
    draw = random.Random(0)

    def spoil(content):
        changed = bytearray(content)
        for _ in range(draw.choice((1, 1, 2, 5))):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed)

    for attempt in range(200):
        small.write_bytes(good if attempt % 2 else spoil(good))
        if attempt % 2:
            rezip(small, pickled=spoil)
        with contextlib.suppress(CheckpointError):
            assert read_checkpoint(small)["state_dict"].keys()


@pytest.mark.parametrize("name", ["../../x", "a/b", "/x", "", "a\0b"])
def test_a_name_is_one_folder_whoever_gives_it(folder, tmp_path, name):
    with pytest.raises(ConfigurationError, match="option name="):
        train({**config(tmp_path / "out"), "name": name})
    change(folder, set_option("name", name))
    with pytest.raises(ConfigurationError, match="option name="):
        resume(folder)
    assert not (tmp_path / "out").exists()


def test_a_lone_checkpoint_does_not_decide_where_it_is_gone_on_with(folder, tmp_path):
    change(folder, set_option("name", "../../x"))
    change(folder, set_option("output", str(tmp_path / "elsewhere")))
    lone = str(shutil.copy(folder / "checkpoints" / "last.ckpt", tmp_path / "lone.ckpt"))
    (tmp_path / "out").mkdir()
    train(options_of_run({**composed(), "resume": lone, "output": str(tmp_path / "out")}, []))
    assert [path.name[:11] for path in (tmp_path / "out").iterdir()] == ["copy-fused-"]
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_folder_goes_on_where_it_lies_now(folder, tmp_path, monkeypatch):
    moved = shutil.move(folder, tmp_path / "moved")
    monkeypatch.chdir(moved)
    resume(Path("."))
    assert OmegaConf.load(moved / "config.yaml").output == str(tmp_path)
    assert read_checkpoint(moved / "checkpoints" / "last.ckpt")["global_step"] == 3


def test_no_link_in_a_run_folder_is_followed(folder, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    names = ["train.log", "config.yaml", "environment.json", "metrics.json", "hparams.yaml", "source_tokenizer.json"]
    checkpoints = ["last.ckpt.partial", "next.ckpt", "previous.ckpt", "best.ckpt"]
    for name in [*names, *(f"checkpoints/{name}" for name in checkpoints)]:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(victim)
    (folder / ".config.yaml.partial").symlink_to(victim)
    resume(folder)
    assert victim.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"run", "victim"}


def test_checkpoints_that_are_a_link_to_elsewhere_are_not_written(folder, tmp_path):
    elsewhere = shutil.move(folder / "checkpoints", tmp_path / "elsewhere")
    (folder / "checkpoints").symlink_to(elsewhere)
    before = everything(elsewhere)
    with pytest.raises(CheckpointError, match="checkpoints is a link"):
        resume(folder)
    assert everything(elsewhere) == before


def test_what_a_killed_run_left_is_removed(folder):
    left = folder / "checkpoints" / ".0123456789abcdef.partial"
    left.write_text("half")
    (folder / "checkpoints" / ".mine.partial").write_text("no business of ours")
    resume(folder)
    assert not left.exists()
    assert (folder / "checkpoints" / ".mine.partial").exists()


def test_metrics_that_are_no_metrics_are_not_taken_for_the_end(folder):
    for content in (b"[" * 100_000, b"{}", b"\xff"):
        (folder / "metrics.json").write_bytes(content)
        assert train(options_of_run({**composed(), "resume": str(folder)}, []))["train/steps"] == 2


def test_tokens_beyond_the_vocabulary_are_refused(folder):
    from lockstep.data.tokenization import Tokenizers, word_tokenizer

    tokenizer = word_tokenizer(str(symbol) for symbol in range(99))
    for side in ("source", "target"):
        tokenizer.save(str(folder / f"{side}_tokenizer.json"))
    change(folder, lambda c: c["lockstep"].update(tokenizers=Tokenizers(tokenizer, tokenizer).fingerprint()))
    with pytest.raises(CheckpointError, match="more tokens than"):
        translate(folder)


def test_a_folder_that_is_converted_gives_its_newest_checkpoint(folder, caplog):
    converting(folder)
    assert "converted step 2" in caplog.text
    assert "last.ckpt" in caplog.text


def test_a_run_says_what_it_was_made_with(folder):
    resume(folder)
    first, second = json.loads((folder / "environment.json").read_text())
    assert first["versions"] == second["versions"]
    assert first["versions"]["torch"] == torch.__version__
    assert first["command"] == copy.copy(sys.argv)
    assert first["commit"] is None or len(first["commit"].removesuffix("-dirty")) == 40
    assert not (folder / "hparams.yaml").exists()
