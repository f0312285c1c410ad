"""Imports run one way, and files stay short."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "lockstep"
MAY_IMPORT = {
    "attention": {"attention"},
    "transformer": {"attention", "transformer"},
    "data": {"data"},
    "training": {"attention", "transformer", "data", "training"},
    "verification": {"attention", "verification"},
    "translation": {"transformer", "data"},
    "observe": {"attention", "transformer", "data", "training", "translation", "observe"},
    "equivalence": {"attention", "transformer", "data", "training", "equivalence"},
}
EVERYWHERE = {"files", "errors", "terminal"}  # these import no room
VARIANTS = {"per_head", "fused", "packed", "einsum", "sdpa", "torch_mha", "shared_heads"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_imports_run_one_way():
    for package, allowed in MAY_IMPORT.items():
        for path in [*(SOURCE / package).glob("*.py"), *SOURCE.glob(f"{package}.py")]:
            for name in imports(path):
                if name.startswith("lockstep."):
                    assert name.split(".")[1] in allowed | EVERYWHERE, f"{path.name} imports {name}"


def test_attention_and_transformer_need_only_torch():
    import sys

    for package in ("attention", "transformer", "verification", "files", "errors"):
        for path in [*(SOURCE / package).glob("*.py"), *SOURCE.glob(f"{package}.py")]:
            for name in imports(path):
                root = name.split(".")[0]
                assert root in {"torch", "lockstep"} or root in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_the_transformer_knows_no_variant():
    for path in (SOURCE / "transformer").glob("*.py"):
        assert not [name for name in imports(path) if name.split(".")[-1] in VARIANTS], path.name


def test_hydra_is_known_to_the_composition_root_alone():
    for path in SOURCE.rglob("*.py"):
        if path.name not in {"experiment.py", "comparison.py", "composition.py"}:
            assert not [name for name in imports(path) if name.split(".")[0] in {"hydra", "omegaconf"}], path.name


def test_no_file_is_over_350_lines():
    assert {p.name for p in SOURCE.rglob("*.py") if len(p.read_text().splitlines()) > 350} == set()
