"""The command, run as a user runs it: from a folder of their own."""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("mine", None)
    return tmp_path


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The script's ``main``, its configuration copied so that ``save`` writes into a folder of the test."""
    spec = importlib.util.spec_from_file_location("verify_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shutil.copytree(SCRIPT.parent.parent / "conf", tmp_path / "conf")
    monkeypatch.setattr(module, "CONF", tmp_path / "conf")
    main: Command = module.main
    return main


def test_from_the_users_folder_in_a_process_of_its_own(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "target=child.py:Child"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("EQUIVALENT: child.py:Child")
    assert done.stderr == ""
    written = {path.name for path in folder.iterdir()} - {"__pycache__"}
    assert written == {"mine.py", "child.py", "certificate.json"}
    assert json.loads((folder / "certificate.json").read_text())["verdict"] == "equivalent"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["target=mine.MultiHeadAttention"], 0),
        (["attention=per_head"], 0),
        (["attention=shared_heads"], 1),
        (["target=mine.py:MultiHeadAttention", "arguments.d_model=64", "arguments.num_heads=4"], 0),
        (["target=mine.py:MultiHeadAttention", "conventions.mask_shape=b k"], 2),
        (["target=mine.py:MultiHeadAttention", "conventions.inputs={q: query, k: key, v: value}"], 0),
    ],
)
def test_exit_status(folder: Path, command: Command, words: list[str], status: int) -> None:
    assert command([*words, "output=null"]) == status
    assert not (folder / "certificate.json").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["targte=mine.py:X"], "there is no option 'targte'; did you mean target=?"),
        (["target=none.py:X"], "there is no file"),
        (["target=mine.py:MultiHeadAttn"], "it has MultiHeadAttention"),
        (["target=nowhere.Class"], "there is no module 'nowhere'"),
        (["attention=fusde"], "did you mean attention=fused?"),
        (["target=mine.py:MultiHeadAttention", "conventions.layuot=time_first"], "did you mean 'layout'?"),
        ([], "nothing to verify"),
        (["target=mine.py:MultiHeadAttention", "arguments.a={"], "arguments.a={"),
    ],
)
def test_mistakes_are_one_line_without_a_traceback(
    folder: Path, command: Command, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert command(words) == 2
    said = capsys.readouterr()
    assert line in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_a_path_is_taken_as_it_stands(folder: Path, command: Command) -> None:
    strange = folder / "a b=é 数据" / "it's #1%.py"
    strange.parent.mkdir()
    shutil.copy(folder / "mine.py", strange)
    assert command([f"target={strange}:MultiHeadAttention", f"output={strange.parent}"]) == 0
    assert (strange.parent / "certificate.json").is_file()


def test_only_an_equivalent_class_is_saved(folder: Path, command: Command) -> None:
    saved = folder / "conf" / "attention" / "mine.yaml"
    assert command(["attention=shared_heads", "save=mine", "output=null"]) == 1
    assert not saved.exists()
    assert command(["target=mine.py:MultiHeadAttention", "save=mine", "output=null"]) == 0
    assert "lockstep.attention.adapter.ForeignAttention" in saved.read_text()
