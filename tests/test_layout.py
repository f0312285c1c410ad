"""Imports run one way, and files stay short."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "lockstep"
ROOMS = {
    "base": set(),
    "attention": {"base"},
    "transformer": {"attention"},
    "data": {"base"},
    "training": {"base", "attention", "transformer", "data"},
    "observe": {"base", "attention", "transformer", "data", "training"},
    "verification": {"base", "attention"},
    "comparison": {"base", "attention", "transformer", "data", "training"},
    "commands": {"base", "attention", "transformer", "data", "training", "observe", "verification", "comparison"},
}
ONLY_TORCH = ("attention", "transformer", "verification")
VARIANTS = {"per_head", "fused", "packed", "einsum", "sdpa", "torch_mha", "shared_heads"}
HYDRA = {"train.py", "compare.py", "composition.py"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_a_newcomer_finds_the_rooms():
    found = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert found == set(ROOMS)
    assert {path.name for path in SOURCE.iterdir() if path.is_file()} == {"__init__.py", "py.typed"}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_one_way(room):
    for path in (SOURCE / room).glob("*.py"):
        for name in imports(path):
            if name.startswith("lockstep"):
                assert name.split(".")[1] in ROOMS[room] | {room}, f"{path.name} imports {name}"


@pytest.mark.parametrize("room", ONLY_TORCH)
def test_attention_the_transformer_and_verify_need_only_torch(room):
    allowed = {"torch", "lockstep", *sys.stdlib_module_names}
    for path in [*(SOURCE / room).glob("*.py"), SOURCE / "base" / "files.py", SOURCE / "base" / "errors.py"]:
        for name in imports(path):
            assert name.split(".")[0] in allowed, f"{path.name} imports {name}"


def test_the_transformer_knows_no_variant():
    for path in (SOURCE / "transformer").glob("*.py"):
        assert not [name for name in imports(path) if name.split(".")[-1] in VARIANTS], path.name


def test_hydra_is_known_to_the_composition_root_alone():
    for path in SOURCE.rglob("*.py"):
        if path.name not in HYDRA:
            assert not [name for name in imports(path) if name.split(".")[0] in {"hydra", "omegaconf"}], path.name


def test_no_file_is_over_350_lines():
    assert {p.name for p in SOURCE.rglob("*.py") if len(p.read_text().splitlines()) > 350} == set()
