"""A certificate is void where its checks would pass anything."""

from pathlib import Path

import pytest

import lockstep
from lockstep.verification import certification, checks
from lockstep.verification.foreign import load_class

# The class with the fewest situations: x alone, always causal.
GPT = f"{Path(__file__).parent}/foreign/gpt.py:CausalSelfAttention"


def test_a_check_that_cannot_fail_voids_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks._situation_checks
    blunt = checks.Check("blunt", 0.0, 1e-10)
    monkeypatch.setattr(checks, "_situation_checks", lambda *asked: [*found(*asked), blunt])
    certificate = lockstep.verify(GPT, thorough=False)
    assert certificate.verdict == "could not tell"
    assert [finding.code for finding in certificate.findings] == ["void"]
    assert "blunt" in certificate.findings[0].sentence


@pytest.mark.usefixtures("few_mutants")
def test_mutants_that_survive_void_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit that passes everything no mutant is caught, whatever becomes of the spoiled module."""
    monkeypatch.setattr(checks, "LIMITS", dict.fromkeys(checks.LIMITS, 1e9))
    monkeypatch.setattr(certification, "blunt_checks", lambda *asked: [])
    certificate = lockstep.verify(GPT, thorough=False)
    assert certificate.verdict == "could not tell"
    assert "causal_inverted" in certificate.findings[0].sentence


@pytest.mark.usefixtures("few_mutants")
def test_a_module_is_left_as_it_was_found_to_be() -> None:
    """Spoiling, single precision and dropout are undone: the same module is certified twice."""
    module = load_class("torch.nn.MultiheadAttention")(24, 3)
    assert lockstep.verify(module, thorough=False).verdict == "equivalent"
    assert lockstep.verify(module, thorough=False).verdict == "equivalent"
