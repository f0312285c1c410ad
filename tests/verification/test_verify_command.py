"""The command, run as a user runs it: from a folder of their own."""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate_of
from omegaconf import OmegaConf
from torch import nn

import lockstep
from lockstep.base.errors import InputError
from lockstep.commands import verify as verify_command
from lockstep.commands.command_line import run
from lockstep.commands.run_folder import shown
from lockstep.verification import adapter, foreign
from lockstep.verification.certificate import Certificate

HERE = Path(__file__).parent
SCRIPT = HERE.parent.parent / "scripts" / "verify.py"

Command = Callable[..., int]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with two files in it; the one imports from the other."""
    shutil.copy(HERE / "foreign" / "fused01.py", tmp_path / "mine.py")
    (tmp_path / "child.py").write_text(
        "from mine import MultiHeadAttention\n\n\nclass Child(MultiHeadAttention):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The script's command in this process, its configuration copied so that ``save`` writes into a folder of the
    test: a project of its own."""
    spec = importlib.util.spec_from_file_location("verify_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shutil.copytree(SCRIPT.parent.parent / "conf", tmp_path / "conf")
    monkeypatch.setattr(module, "CONF", tmp_path / "conf")
    monkeypatch.setattr(foreign, "PROJECT", tmp_path)
    monkeypatch.setattr(adapter, "PROJECT", tmp_path)
    return partial(run, replace(module.COMMAND, folder=tmp_path / "conf"))


def test_from_the_users_folder_in_a_process_of_its_own(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "target=child.py:Child", "thorough=false"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("EQUIVALENT: child.py:Child")
    assert done.stderr == ""
    written = {path.name for path in folder.iterdir()} - {"__pycache__"}
    assert written == {"mine.py", "child.py", "certificate.json"}
    assert json.loads((folder / "certificate.json").read_text())["verdict"] == "equivalent"


@pytest.mark.usefixtures("few_mutants")
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["attention=per_head", "thorough=false"], 0),
        (["attention=shared_heads"], 1),
        (
            [
                "target=mine.MultiHeadAttention",
                "arguments={d_model:64,num_heads:4}",
                "conventions.inputs={q:query,k:key,v:value}",
                "thorough=false",
            ],
            0,
        ),
        (["target=mine.py:MultiHeadAttention", "arguments.d_model=1e30"], 2),
        (["target=mine.py:MultiHeadAttention", "arguments.d_model=-80", "arguments.num_heads=-5"], 2),
        (["target=mine.py:MultiHeadAttention", "arguments.d_model=4096"], 2),
        (["target=mine.py:MultiHeadAttention", "conventions.mask_shape=b k"], 2),
    ],
)
def test_exit_status(folder: Path, command: Command, words: list[str], status: int) -> None:
    assert command([*words, "output=null"]) == status
    assert not (folder / "certificate.json").exists()


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        ("targte=mine.py:X", 64, "did you mean target?"),
        ("target=mine.py:MultiHeadAttn", 64, "it has MultiHeadAttention"),
        ("target=mine.py", 64, "it has MultiHeadAttention: python scripts/verify.py target=mine.py:MultiHeadAttention"),
        ("target=mine.py:F", 64, "F in mine.py is no torch.nn.Module"),
        ("target=mine", 64, "write file.py:Class"),
        ("target=mine.py::MultiHeadAttention", 64, "one colon is enough: mine.py:MultiHeadAttention"),
        ("target=mine.py:MultiHeadAttention arguments.x=1", 64, "it has d_model, num_heads"),
        ("attention=fusde", 64, "did you mean attention=fused?"),
        ("target=mine.py:MultiHeadAttention attention=fused", 64, "either target="),
        ("target=mine.py:MultiHeadAttention conventions.layuot=time_first", 64, "did you mean 'layout'?"),
        ("target=mine.py:MultiHeadAttention conventions.layout=1", 64, "it is one of batch_first, time_first"),
        ("target=mine.py:MultiHeadAttention conventions.inputs=[query]", 64, "must say {NAME: query}"),
        ("target=mine.py:MultiHeadAttention conventions.inputs={q:[query]}", 64, "must say {NAME: query}"),
        ("target=mine.py:MultiHeadAttention conventions.num_heads=-1", 64, "must be a number of heads"),
        ("", 64, "what to verify?"),
        ("-m target=mine.py:MultiHeadAttention", 64, "verify runs once"),
        ("target=mine.py:MultiHeadAttention arguments.a={", 64, "arguments.a={"),
        ("target=mine.py:MultiHeadAttention arguments=[1]", 64, "arguments=[1]"),
        ("target=mine.py:MultiHeadAttention conventions=null", 64, "option conventions=null"),
        ("target=mine.py:MultiHeadAttention save=fused overwrite=true", 64, "was not written by verify, and stays"),
        ("target=mine.py:MultiHeadAttention save=../../evil", 64, "save=../../evil must be a name"),
        ("target=mine.py:MultiHeadAttention save=a/b", 64, "save=a/b must be a name"),
        ("target=mine.py:MultiHeadAttention save='Inf'", 64, "must be a name"),
        ("target=mine.py:MultiHeadAttention output=no/such.json", 64, "there is no folder"),
        ("target=mine.py:MultiHeadAttention output=mine.py", 64, "is no certificate; say overwrite=true"),
        ("target=none.py:X", 65, "there is no file"),
        ("target=conf:X", 64, "conf has no class 'X'"),
        ("target=./conf:X", 65, "conf is a folder"),
        ("target=nowhere.Class", 65, "there is no module nowhere"),
        ("target=broken.py:X", 65, "broken.py, line 2: "),
        ("target=importing.py:X", 65, "importing.py, line 1: ModuleNotFoundError: No module named 'nowhere'"),
        ("target=exiting.py:X", 65, "exiting.py, line 3: SystemExit: 0"),
    ],
)
def test_mistakes_are_one_line_without_a_traceback(
    folder: Path, command: Command, capsys: pytest.CaptureFixture[str], words: str, status: int, line: str
) -> None:
    (folder / "broken.py").write_text("import torch\nclass X(\n")
    (folder / "importing.py").write_text("import nowhere\n")
    (folder / "exiting.py").write_text("import sys\n\nsys.exit(0)\n")
    before = sorted(path.name for path in (folder / "conf" / "attention").iterdir())
    source = (folder / "mine.py").read_text()
    assert command(words.split()) == status
    said = capsys.readouterr()
    assert line in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert sorted(path.name for path in (folder / "conf" / "attention").iterdir()) == before
    assert (folder / "mine.py").read_text() == source


def test_what_fails_inside_the_class_is_no_verdict(
    folder: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "failing.py").write_text(
        "from torch import nn\n\n\nclass A(nn.Module):\n    def __init__(self, d_model, num_heads):\n"
        "        raise KeyError('no such luck')\n"
    )
    assert command(["target=failing.py:A", "output=null"]) == 2
    assert "constructing it raised KeyError: 'no such luck'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--help", "conventions: {}"),
        ("target=mine.py:A --cfg job", "target: mine.py:A"),
        ("arguments={d_model:64} --cfg job", "  d_model: 64"),
    ],
)
def test_flags_of_all_commands(
    folder: Path, command: Command, capsys: pytest.CaptureFixture[str], words: str, line: str
) -> None:
    assert command(words.split()) == 0
    assert line in capsys.readouterr().out


@pytest.mark.usefixtures("few_mutants")
def test_a_path_is_taken_as_it_stands(folder: Path, command: Command) -> None:
    strange = folder / "a b=é 数据" / "it's #1%.py"
    strange.parent.mkdir()
    shutil.copy(folder / "mine.py", strange)
    assert command([f"target={strange}:MultiHeadAttention", f"output={strange.parent}", "thorough=false"]) == 0
    assert (strange.parent / "certificate.json").is_file()


def test_only_an_equivalent_class_is_saved_and_once(
    folder: Path, command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_command, "verify", lambda target, *_, **__: replace(equivalent(), target=target))
    saved = folder / "conf" / "attention" / "mine.yaml"
    assert command(["target=mine.py:MultiHeadAttention", "save=mine", "output=null"]) == 0
    said = capsys.readouterr().out
    assert "Train it with: python scripts/train.py attention=mine" in said
    assert "Certificate: " not in said
    before = saved.read_text()
    assert "lockstep.verification.adapter.ForeignAttention" in before
    assert command(["target=child.py:Child", "save=mine", "output=null"]) == 64
    assert saved.read_text() == before
    assert command(["target=child.py:Child", "save=mine", "output=null", "overwrite=true"]) == 0
    assert "child.py:Child" in saved.read_text()
    monkeypatch.setattr(verify_command, "verify", lambda *_, **__: Certificate("mine.py:M", verdict="different"))
    assert command(["target=mine.py:MultiHeadAttention", "save=wrong", "output=null"]) == 1
    assert not saved.with_name("wrong.yaml").exists()
    assert (
        "Not saved as wrong: that takes an equivalent class, and the verdict is: different" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("lacking", "sentence"),
    [
        ({"masks": ()}, "It takes no mask, and so cannot be trained here."),
        ({"inputs": {"x": "query"}}, "It attends only to itself, and so cannot be trained here."),
    ],
)
def test_a_class_that_cannot_be_trained_is_saved_and_not_advised(
    folder: Path,
    command: Command,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    lacking: dict[str, Any],
    sentence: str,
) -> None:
    conventions = equivalent().conventions
    assert conventions is not None
    limited = replace(equivalent(), conventions=replace(conventions, **lacking))
    monkeypatch.setattr(verify_command, "verify", lambda *_, **__: limited)
    assert command(["target=mine.py:MultiHeadAttention", "save=mine"]) == 0
    said = capsys.readouterr().out
    assert sentence in said
    assert "Train it with" not in said
    assert f"Certificate: {folder / 'certificate.json'}\n" in said


def test_a_path_is_as_short_as_it_can_be_and_never_without_its_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert shown(Path("/tmp/a")) == shown(Path("tmp/a")) == "/tmp/a"
    monkeypatch.chdir("/tmp")
    assert shown(Path("/tmp/a")) == "a"


def equivalent() -> Certificate:
    return certificate_of("fused01.py:MultiHeadAttention")


def save(target: str, folder: Path) -> Path:
    """As the command saves it for somebody who stands in the folder."""
    saved = folder / "conf" / "attention" / "saved.yaml"
    saved.parent.mkdir(parents=True, exist_ok=True)
    saved.write_text(replace(equivalent(), target=target, folder=str(folder)).yaml(), encoding="utf-8")
    return saved


def build(saved: Path) -> nn.Module:
    """As every command makes it."""
    node = OmegaConf.to_container(OmegaConf.load(saved), resolve=True)
    assert isinstance(node, dict)
    del node["_target_"]
    return adapter.ForeignAttention(32, 4, **{str(key): value for key, value in node.items()})


@pytest.mark.parametrize(
    "target",
    ["child.py:Child", "child:Child", "sub folder=[ü$]/\\${it}.py:Child", "pack.inner:Child", "pack.inner.Child"],
)
@pytest.mark.parametrize("inside", [True, False])
def test_a_saved_class_is_found_from_anywhere_and_moves_with_its_project(
    folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, inside: bool
) -> None:
    """What it imports is beside it; of a package, within it."""
    strange = folder / "sub folder=[ü$]" / "\\${it}.py"
    strange.parent.mkdir()
    shutil.copy(folder / "child.py", strange)
    shutil.copy(folder / "mine.py", strange.parent)
    (folder / "pack").mkdir()
    shutil.copy(folder / "mine.py", folder / "pack")
    (folder / "pack" / "inner.py").write_text((folder / "child.py").read_text().replace("from mine", "from .mine"))
    elsewhere, moved = folder.parent / f"{folder.name}-elsewhere", folder.parent / f"{folder.name}-moved"
    elsewhere.mkdir()
    for module in (foreign, adapter):
        monkeypatch.setattr(module, "PROJECT", folder if inside else elsewhere)
    saved = save(target, folder)
    monkeypatch.chdir(elsewhere)
    with clean_imports():
        build(saved)
    monkeypatch.setattr(adapter, "PROJECT", moved if inside else elsewhere)
    shutil.copytree(folder, moved)
    for gone in (folder / "child.py", strange, folder / "pack" / "inner.py"):
        gone.unlink()
    with clean_imports():
        if inside:
            build(moved / "conf" / "attention" / "saved.yaml")
        else:
            with pytest.raises(InputError, match="there is no"):
                build(moved / "conf" / "attention" / "saved.yaml")


@contextmanager
def clean_imports() -> Iterator[None]:
    """As in a process of its own, which must not find anything by what it imported before."""
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]
    assert sys.path == path


def test_one_saved_before_is_found_where_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a folder, it is named from where one stands."""
    monkeypatch.setattr(foreign, "PROJECT", folder)
    saved = save("child.py:Child", folder)
    lines = [line for line in saved.read_text().splitlines() if not line.startswith("folder: ")]
    assert len(lines) == len(saved.read_text().splitlines()) - 1
    saved.write_text("\n".join(lines))
    with clean_imports():
        build(saved)
    monkeypatch.chdir(folder / "conf")
    with clean_imports(), pytest.raises(InputError, match="there is no file"):
        build(saved)


def test_what_is_imported_for_a_target_is_no_library_to_others(folder: Path) -> None:
    """Neither a user's ``datasets.py``, nor what is beside it; another folder's helpers are others."""
    source = "from mine import MultiHeadAttention\n\n\nclass Child(MultiHeadAttention):\n    pass\n"
    (folder / "datasets.py").write_text(source)
    (folder / "second").mkdir()
    (folder / "second" / "child.py").write_text(source)
    (folder / "second" / "mine.py").write_text("class MultiHeadAttention:\n    pass\n")
    path, modules = list(sys.path), set(sys.modules)
    assert lockstep.verify("datasets.py:Child", conventions={"mask_shape": "b k"}).findings[0].code == "could_not_tell"
    with pytest.raises(ValueError, match=r"Child in second/child.py is no"):
        lockstep.verify("second/child.py:Child")
    assert sys.path == path
    files = [getattr(sys.modules[name], "__file__", None) or "" for name in set(sys.modules) - modules]
    assert not [file for file in files if file.startswith(str(folder))]


def test_verifying_imports_neither_lightning_nor_datasets() -> None:
    code = (
        "import sys, lockstep.commands.verify, lockstep.commands.composition\n"
        "assert not {'lightning', 'datasets', 'pandas', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_whoever_reads_the_first_line_alone_gets_no_error(folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; $0 $1 target=mine.py:MultiHeadAttention | head -1', sys.executable, SCRIPT],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "certificate.json").is_file()
