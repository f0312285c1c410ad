"""Verdicts on classes as people write them; none of them knows this project."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from certificates import FOREIGN, certificate_of
from torch import nn

import lockstep
from lockstep.attention.contract import MultiHeadAttention
from lockstep.verification import judge, user_code
from lockstep.verification.formula import FAULTS

SIX = [
    "question.py:MultiHeadAttention",
    "fused01.py:MultiHeadAttention",
    "gpt.py:CausalSelfAttention",
    "time_first.py:MultiheadAttention",
    "interleaved.py:InterleavedAttention",
    "einsum3d.py:Attention",
]
OWN = [
    "per_head.PerHeadAttention",
    "fused.FusedAttention",
    "packed.PackedAttention",
    "einsum.EinsumAttention",
    "sdpa.SdpaAttention",
    "torch_mha.TorchAttention",
]


@pytest.fixture(scope="module")
def odd() -> ModuleType:
    spec = importlib.util.spec_from_file_location("odd", FOREIGN / "odd.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def codes(certificate: judge.Certificate) -> set[str]:
    return {finding.code for finding in certificate.findings}


@pytest.mark.usefixtures("few_mutants")
@pytest.mark.parametrize("name", OWN)
def test_the_equivalent_variants_are_certified(name: str) -> None:
    certificate = lockstep.verify(f"lockstep.attention.{name}", thorough=False)
    assert certificate.verdict == "equivalent", certificate.table()


@pytest.mark.parametrize(
    ("target", "least"),
    [("lockstep.attention.fused.FusedAttention", 40), (f"{FOREIGN}/gpt.py:CausalSelfAttention", 20)],
)
def test_every_fault_that_a_class_could_have_is_caught_in_a_mutant(target: str, least: int) -> None:
    outcomes = list(lockstep.verify(target, thorough=False).mutants.values())
    assert len(outcomes) == len(FAULTS)
    assert "NOT CAUGHT" not in outcomes
    assert sum(outcome.startswith("caught") for outcome in outcomes) >= least


def test_shared_heads_is_told_by_name() -> None:
    certificate = lockstep.verify("lockstep.attention.shared_heads.SharedHeadsAttention", thorough=False)
    assert certificate.verdict == "different"
    assert codes(certificate) == {"heads_share_weights"}


@pytest.mark.parametrize("target", SIX)
def test_user_classes_are_certified_with_nothing_but_the_target(target: str) -> None:
    certificate = certificate_of(target)
    assert certificate.verdict == "equivalent", certificate.table()
    assert all(check.passed for check in certificate.checks)


@pytest.mark.usefixtures("few_mutants")
@pytest.mark.parametrize(("batch_first", "bias"), [(False, True), (True, False)])
def test_torch_itself_is_certified(batch_first: bool, bias: bool) -> None:
    """An instance, as in a user's own test suite."""
    lockstep.assert_multi_head_attention(
        nn.MultiheadAttention(24, 3, bias=bias, batch_first=batch_first), thorough=False
    )


@pytest.mark.usefixtures("few_mutants")
@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("InOut", None),
        ("NoKeyBias", "no key bias"),
        ("NoBiases", None),
        ("OutputBiasOnly", None),
        ("HeadsReversed", "heads come in another order"),
        ("Relabelled", "q_proj.weight acts as key"),
        ("HeadsLast", None),
        ("LinearList", None),
        ("BooleanOnly", "True hides"),
        ("Prints", "it prints"),
        ("OwnDevice", None),
        ("CopiesConfig", None),
        ("SingleSoftmax", None),
    ],
)
def test_no_false_alarm(odd: ModuleType, name: str, remark: str | None) -> None:
    certificate = lockstep.verify(getattr(odd, name), thorough=False)
    assert certificate.verdict == "equivalent", certificate.table()
    assert remark is None or any(remark in said for said in certificate.remarks)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("Tied", "tied_weights"),
        ("WrongCorner", "causal_wrong_corner"),
        ("ExtraParameter", "unused_parameters"),
        ("UnusedNorm", "unused_parameters"),
        ("InputSliced", "input_sliced"),
        ("Grouped", "heads_share_weights"),
        ("EqualLengths", "unequal_lengths"),
        ("Squeezes", "shape"),
        ("AttributeDropout", "dropout_in_eval"),
        ("PostNorm", "core_equivalent"),
        ("InPlaceMask", "changes_inputs"),
        ("ScaledInEval", "dropout_in_eval"),
        ("DetachedKey", "unknown"),
        ("ReturnsNan", "not_finite"),
    ],
)
def test_no_false_certificate(odd: ModuleType, name: str, code: str) -> None:
    certificate = lockstep.verify(getattr(odd, name), thorough=False)
    assert certificate.verdict == "different", certificate.table()
    assert code in codes(certificate)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Raises", "calling it raised KeyError"),
        ("Exits", "constructing it raised SystemExit"),
        ("HiddenBuffer", "unknown difference, first seen in the value path"),
        ("Linear", "it does nothing that multi-head attention never does"),
        ("WrongShape", r"it returned shape \(2, 7, 79\)"),
        ("UnknownArgument", "arguments.flavour="),
        ("UnknownInputs", "conventions.inputs="),
        ("OnesBlock", "conventions.mask=one_blocks"),
        ("InPlainList", r"a weight of shape \(16, 80\) which is none of its parameters.*nn.ModuleList"),
    ],
)
def test_what_cannot_be_told_is_said_in_a_sentence(odd: ModuleType, name: str, says: str) -> None:
    certificate = lockstep.verify(getattr(odd, name), thorough=False)
    assert certificate.verdict == "could not tell"
    assert certificate.exit_status == 2
    (finding,) = certificate.findings
    assert re.search(says, finding.sentence)


def test_the_users_own_traceback_is_shown(odd: ModuleType) -> None:
    (finding,) = lockstep.verify(odd.Raises, thorough=False).findings
    assert 'raise KeyError("no such luck")' in finding.trace
    assert "lockstep/verification" not in finding.trace


def test_a_class_that_hangs_is_interrupted(odd: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code, "TIME_LIMIT", 0.3)
    certificate = lockstep.verify(odd.Hangs, thorough=False)
    assert certificate.verdict == "could not tell"
    assert "took longer than 0.3 s" in certificate.findings[0].sentence


@pytest.mark.usefixtures("few_mutants")
@pytest.mark.parametrize(
    ("name", "conventions"),
    [
        ("OnesBlock", {"mask": "one_blocks"}),
        ("UnknownInputs", {"inputs": {"a": "query", "b": "key", "c": "value"}}),
        ("Base", {"mask": "zero_blocks", "mask_shape": "b 1 q k", "layout": "batch_first", "num_heads": 4}),
    ],
)
def test_a_stated_convention_settles_it(odd: ModuleType, name: str, conventions: dict[str, Any]) -> None:
    certificate = lockstep.verify(getattr(odd, name), conventions=conventions, thorough=False)
    assert certificate.verdict == "equivalent", certificate.table()


@pytest.mark.usefixtures("few_mutants")
def test_a_stated_argument_settles_it(odd: ModuleType) -> None:
    certificate = lockstep.verify(
        odd.Base, arguments={"d_model": 48, "num_heads": 4, "key_bias": False}, thorough=False
    )
    assert certificate.verdict == "equivalent"
    assert certificate.arguments == {"d_model": "d_model", "num_heads": "num_heads", "key_bias": False, "bias": "bias"}


@pytest.mark.parametrize(
    ("options", "nearest"),
    [({"msk": "additive"}, "did you mean 'mask'"), ({"mask": "zero_block"}, "did you mean 'zero_blocks'")],
)
def test_misspelt_conventions(odd: ModuleType, options: dict[str, str], nearest: str) -> None:
    with pytest.raises(ValueError, match=nearest):
        lockstep.verify(odd.Base, conventions=options, thorough=False)


def test_the_assertion_carries_the_certificate() -> None:
    with pytest.raises(AssertionError, match="heads_share_weights"):
        lockstep.assert_multi_head_attention("lockstep.attention.shared_heads.SharedHeadsAttention")


@pytest.mark.usefixtures("few_mutants")
def test_nothing_is_drawn_from_the_global_generator(odd: ModuleType) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    lockstep.verify(odd.Base, thorough=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_figures_limits_and_what_is_only_reported(tmp_path: Path) -> None:
    """Initial weights of torch's packed layout are smaller by 1 / sqrt(2), and a row that sees nothing is NaN: both are
    reported, neither is judged."""
    certificate = certificate_of("time_first.py:MultiheadAttention")
    certificate.save(tmp_path / "certificate.json")
    saved = json.loads((tmp_path / "certificate.json").read_text())
    assert set(saved) >= {"verdict", "findings", "mapping", "conventions", "checks", "mutants"}
    checks = {check["what"]: check for check in saved["checks"]}
    outputs = [check for what, check in checks.items() if what.startswith("output, ")]
    assert all(check["limit"] <= 1e-7 and check["figure"] < 1e-12 for check in outputs)
    assert checks["output in float32, float32"]["limit"] >= 1e-5
    assert checks["a query that may see nothing gets"]["figure"] == "NaN"
    assert not checks["a query that may see nothing gets"]["judged"]
    assert "query 0.71" in checks["initial weights, deviation over the reference's"]["figure"]
    assert any("key_padding_mask" in what and "attn_mask" in what for what in checks), "two masks are asked together"


def test_importing_the_package_imports_no_torch() -> None:
    code = "import lockstep, sys; assert 'torch' not in sys.modules; lockstep.verify; assert 'hydra' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_contract_is_not_what_makes_a_class_right() -> None:
    """A class of the contract that breaks it is told so."""

    class Halved(MultiHeadAttention):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__(d_model, num_heads)
            self.core = nn.MultiheadAttention(d_model, num_heads, batch_first=True)

        def forward(self, query, key, value, mask=None, is_causal=False):  # type: ignore[no-untyped-def]
            return self.core(query, key, value, need_weights=False)[0]

        def to_canonical(self, tensors: Any) -> Any:
            return tensors

        def from_canonical(self, tensors: Any) -> Any:
            return tensors

    assert {"mask_ignored", "causal_ignored"} <= codes(lockstep.verify(Halved, thorough=False))
