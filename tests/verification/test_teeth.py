"""A certificate is void where its checks would pass anything."""

from pathlib import Path

import pytest

import lockstep
from lockstep.verification import checks, judge
from lockstep.verification.foreign import load_class

# The class with the fewest situations: x alone, always causal.
GPT = f"{Path(__file__).parent}/foreign/gpt.py:CausalSelfAttention"


def test_a_check_that_cannot_fail_voids_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_neighbours", lambda candidate, situation: checks.Check("blunt", 0.0, 1e-10))
    certificate = lockstep.verify(GPT)
    assert certificate.verdict == "could not tell"
    assert [finding.code for finding in certificate.findings] == ["void"]
    assert "blunt" in certificate.findings[0].sentence


@pytest.mark.usefixtures("few_mutants")
def test_mutants_that_survive_void_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit that passes everything no mutant is caught, whatever becomes of the spoiled module."""
    monkeypatch.setattr(checks, "FLOAT64", 1e9)
    monkeypatch.setattr(checks, "_single_precision", lambda candidate, asked: checks.Check("blunt", 0.0, 1e-5))
    monkeypatch.setattr(judge, "blunt_checks", lambda candidate, asked: [])
    certificate = lockstep.verify(GPT)
    assert certificate.verdict == "could not tell"
    assert "causal_inverted" in certificate.findings[0].sentence


@pytest.mark.usefixtures("few_mutants")
def test_a_module_is_left_as_it_was_found_to_be() -> None:
    """Spoiling, single precision and dropout are undone: the same module is certified twice."""
    module = load_class("torch.nn.MultiheadAttention")(24, 3)
    assert lockstep.verify(module).verdict == "equivalent"
    assert lockstep.verify(module).verdict == "equivalent"
