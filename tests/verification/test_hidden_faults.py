"""Faults that show only where somebody looks, and right classes that look like them."""

import re
from pathlib import Path
from typing import Any

import pytest
from certificates import FOREIGN, certificate_of

import lockstep
from lockstep.verification.certificate import Certificate

pytestmark = pytest.mark.usefixtures("few_mutants")


def verify(name: str, **options: Any) -> Certificate:
    target = f"hidden.py:{name}"
    return (
        lockstep.verify(str(FOREIGN / target), **{"thorough": False, **options}) if options else certificate_of(target)
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("MaskLostInTraining", "mask: .*training"),
        ("MaskLostWithoutGrad", "mask: .*training"),
        ("MaskInFirstHead", "when 'mask' is given"),
        ("FirstMaskKept", "output, mask: "),
        ("MaskTooWeak", "large scores|far from zero"),
        ("ScaleAcrossInTraining", "T_q = .*(training|mixed)"),
        ("SingleSample", "B = 1"),
        ("FirstKeys", "T = 128"),
        ("LocalWindow", "T = 128"),
        ("SmallConstant", "adds a small constant"),
        ("BiasBlocksInEval", "training"),
        ("ScaledBeforeBias", "the biases"),
        ("CausalLostWithWeights", "causal, .*need_weights=True"),
        ("CausalLostWithPadding", "padding_mask.*causal"),
        ("FloatPaddingLost", "attn_mask: .*key_padding_mask: additive"),
        ("HiddenDropout", "dropout stays active in eval"),
        ("WritesInput", "writes into its inputs"),
        ("RunningMean", "carried over from call to call"),
        ("Frozen", r"its constructor freezes k_proj\.weight, k_proj\.bias"),
        ("OneShapeInverted", "ones in 'mask' hide where it has the shape b 1 q k"),
        ("MemoryConfused", "key and value one tensor"),
    ],
)
@pytest.mark.slow
def test_it_is_found(name: str, says: str) -> None:
    certificate = verify(name, thorough=True)
    assert certificate.verdict == "different", certificate.table()
    assert any(re.search(says, finding.sentence) for finding in certificate.findings), certificate.table()


@pytest.mark.parametrize("name", ["Hooks", "Causal", "FixedDropout", "Passes", "NotANumber"])
def test_its_right_neighbour_is_certified(name: str) -> None:
    certificate = verify(name)
    assert certificate.verdict == "equivalent", certificate.table()


def test_fewer_key_heads_are_named() -> None:
    assert [finding.code for finding in verify("PackedGrouped").findings] == ["fewer_key_heads"]


def test_what_is_not_zero_hides_is_asked_about() -> None:
    """-inf hides as well, by accident: that makes no additive mask of it."""
    certificate = verify("NonzeroHides")
    assert certificate.verdict == "could not tell"
    assert [finding.code for finding in certificate.findings] == ["mask_inverted"]
    stated = verify("NonzeroHides", conventions={"mask": "one_blocks"})
    assert stated.verdict == "equivalent"


@pytest.mark.parametrize(
    ("name", "conventions"),
    [("NonzeroHides", {"mask": "zero_blocks"}), ("OneShapeInverted", {}), ("MaskInFirstHead", {})],
)
def test_the_row_in_which_a_mask_fails_is_shown_as_failed(name: str, conventions: dict[str, str]) -> None:
    table = verify(name, conventions=conventions).table()
    row = re.search(r"^    output, .*FAILED.*$", table, re.MULTILINE)
    assert row is not None, table
    assert "mask: " in row[0]


def test_a_width_of_its_own_is_asked_for() -> None:
    certificate = verify("ForeignWidth")
    assert certificate.verdict == "could not tell"
    assert "state its sizes" in certificate.findings[0].sentence
    assert verify("ForeignWidth", arguments={"num_heads": 3, "head_size": 8}).verdict == "equivalent"


def test_a_shape_that_is_ignored_is_a_fault() -> None:
    (finding,) = verify("OneShapeIgnored").findings
    assert finding.code == "mask_ignored"
    assert "mask: zero_blocks (q k)" in finding.sentence


def test_an_argument_given_none_is_said() -> None:
    certificate = verify("Passes")
    assert certificate.conventions is not None
    assert certificate.conventions.none == ("valid_lens",)
    assert "valid_lens=None" in certificate.table()
    assert any("'valid_lens'" in remark for remark in certificate.remarks)


@pytest.mark.parametrize(
    ("name", "row"), [("NotANumber", "zero weights: the output bias alone"), ("Hooks", "the mean of all values")]
)
def test_a_row_that_sees_nothing_is_reported(name: str, row: str) -> None:
    """Judged is no row of the kind: either is equivalent."""
    (check,) = [check for check in verify(name).checks if check.what == "a query that may see nothing gets"]
    assert check.figure == row
    assert not check.judged


def test_a_wrong_scale_fails_in_single_precision_too(tmp_path: Path) -> None:
    source = (FOREIGN / "fused01.py").read_text()
    (tmp_path / "scaled.py").write_text(source.replace("/ self.d_k**0.5", "/ self.d_model**0.5"))
    checks = lockstep.verify(f"{tmp_path}/scaled.py:MultiHeadAttention", thorough=False).checks
    single = next(check for check in checks if check.what.startswith("output in float32"))
    assert single.limit is not None
    assert isinstance(single.figure, float)
    assert single.figure > 1000 * single.limit
