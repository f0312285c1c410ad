"""One certificate of each user file, for all tests that need it."""

from functools import cache
from pathlib import Path

import pytest

import lockstep
from lockstep.verification import mutants
from lockstep.verification.certificate import Certificate
from lockstep.verification.formula import FAULTS

FOREIGN = Path(__file__).parent / "foreign"


@cache
def certificate_of(target: str) -> Certificate:
    """Of ``FILE.py:CLASS`` among the user files, quick, with nothing stated and a few mutants; nobody changes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mutants, "FAULTS", FAULTS[::9])
        return lockstep.verify(str(FOREIGN / target), thorough=False)
