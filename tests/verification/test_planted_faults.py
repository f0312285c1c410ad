"""Every single fault, planted into user files by changing their text, is named and never certified."""

from pathlib import Path

import pytest
from plants import CLASSES, PLANTS, Plant, planted

import lockstep

# Each fault once in the one file or the other; where else it can be planted is a longer proof.
ONCE = {plant.code: plant for name in ("gpt", "question") for plant in PLANTS[name]}
CASES = [
    pytest.param(
        name,
        plant,
        id=f"{name}: {plant.code}: {plant.new[:40]}",
        marks=() if plant is ONCE.get(plant.code) and name != "fused01" else pytest.mark.slow,
    )
    for name, plants in PLANTS.items()
    for plant in plants
]


@pytest.mark.parametrize(("name", "plant"), CASES)
def test_a_planted_fault_is_named(name: str, plant: Plant, tmp_path: Path) -> None:
    source = (Path(__file__).parent / "foreign" / f"{name}.py").read_text()
    (tmp_path / "planted.py").write_text(planted(source, plant))
    certificate = lockstep.verify(
        f"{tmp_path}/planted.py:{CLASSES[name]}", conventions=plant.conventions, thorough=False
    )
    assert certificate.verdict != "equivalent"
    assert plant.code in {finding.code for finding in certificate.findings}, certificate.table()
