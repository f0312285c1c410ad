"""A class that is right in plain use and wrong in one context is found there, and its right neighbours are not."""

import re

import pytest
from certificates import FOREIGN

import lockstep
from lockstep.verification.certificate import Certificate


def verify(name: str, *, thorough: bool = True) -> Certificate:
    return lockstep.verify(f"{FOREIGN}/contexts.py:{name}", thorough=thorough)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("KeyDetachedInTraining", "gradients, training"),
        ("BackwardRaisesInTraining", "training .*no backward"),
        ("ParameterHook", "gradients, .*value.weight"),
        ("PostAccumulateHook", "gradients, .*value.weight"),
        ("ModuleBackwardHook", "gradients"),
        ("WeightGradientWithoutInputs", "gradients of the weights alone"),
        ("BufferOverwritten", "inference_mode|no_grad"),
        ("FirstKeyShown", "hidden: (the first key|leading keys)"),
        ("LeadingKeysShown", "hidden: (the first key|leading keys)"),
        ("DroppedWhereOneSampleIsBlind", "hidden: one sample blind"),
        ("AdditiveDoubled", "numbers other than 0 and -inf"),
        ("AdditiveDoubledInTraining", "finite biases, training"),
        ("BooleanRefusedInEval", "no booleans"),
        ("BooleanWrong", "true_attends"),
        ("SecondBranch", "without context"),
        ("NormInInferenceMode", "inference_mode"),
        ("UnderAutocast", "under autocast"),
        ("OneHead", "one head of 64"),
        ("OddHead", "3 heads of 7"),
        ("WideHead", "2 heads of 32"),
        ("WithoutBias", "no biases"),
        ("Clamped", "scores beyond 500"),
        ("EqualScores", "equal keys|one query position"),
        ("DropsTwice", "twice over"),
        ("DropsScores", "another mean or variance"),
        ("DropsOutput", "falls on the output"),
        ("DropsUnscaled", "not divided by 1 - p"),
        ("DropsAllHeads", "the same keys in every head"),
        ("MoreSamples", "how many samples"),
        ("OneSample", "B = 1"),
        ("SamplesAsPositions", "T = 2"),
        ("SamplesBeyondPositions", "how many samples"),
        ("EvenLength", "T = "),
        ("TwoPositions", "T = 2"),
        ("Beyond512", "T = 577"),
        ("QueryIsKey", "query and key one tensor"),
        ("QueryIsValue", "query and value one tensor"),
        ("SharedStorage", "the first part of the key"),
        ("Transposed", "transposed inputs"),
        ("Expanded", "one sample expanded"),
        ("ZeroRows", "rows of zeros"),
        ("Single", "in float32"),
        ("Training", "output, training"),
        ("NoGrad", "no_grad"),
    ],
)
def test_it_is_found_where_it_is_wrong(name: str, says: str) -> None:
    certificate = verify(name)
    assert certificate.verdict == "different", certificate.table()
    assert re.search(says, certificate.findings[0].sentence), certificate.table()


@pytest.mark.parametrize(
    ("name", "precision", "dropout"),
    [
        ("Float32Softmax", "float32 inside", "attention weights are dropped, each for itself"),
        pytest.param(
            "RefusesDouble", "float32 only", "attention weights are dropped, each for itself", marks=pytest.mark.slow
        ),
        ("OptionalContext", "float64", "attention weights are dropped, each for itself"),
        pytest.param("OwnDropout", "float64", "attention weights are dropped, each for itself", marks=pytest.mark.slow),
        pytest.param(
            "OutputDropoutToo", "float64", "attention weights and then outputs are dropped", marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.usefixtures("few_mutants")
def test_its_right_neighbour_is_certified(name: str, precision: str, dropout: str) -> None:
    certificate = verify(name, thorough=False)
    assert certificate.verdict == "equivalent", certificate.table()
    assert certificate.precision == precision
    assert certificate.reach["dropout in training"].startswith(dropout)


@pytest.mark.slow
def test_a_scale_in_single_precision_is_rounding() -> None:
    """Its error is the same whatever the inputs are, unlike that of a softmax in single precision."""
    certificate = verify("Float32Scale")
    assert certificate.verdict == "equivalent", certificate.table()
    assert certificate.precision == "float32 inside"


@pytest.mark.slow
def test_the_certificate_states_its_reach() -> None:
    certificate = verify("Right")
    assert certificate.verdict == "equivalent", certificate.table()
    reach = certificate.as_dict()["reach"]
    assert reach["sizes"].startswith("5 heads of 16; 3 heads of 7; 2 heads of 32, no biases; one head of 64")
    assert "577" in reach["lengths"]
    assert reach["batches"] == "B of 1, 2, 3, 5, 16"
    assert "autocast" in reach["precision"]
    assert "one sample blind" in reach["masks"]
    assert all(f"    {axis}" in certificate.table() for axis in reach)
    assert sum(outcome.startswith("caught") for outcome in certificate.mutants.values()) > 55
    assert not any(outcome == "NOT CAUGHT" for outcome in certificate.mutants.values())


@pytest.mark.usefixtures("few_mutants")
def test_an_argument_that_nobody_knows_is_listed() -> None:
    certificate = verify("Optional", thorough=False)
    assert certificate.reach["arguments left as they are"] == "past"


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("KeyAndValueIgnored", ["value_reads_query", "key_reads_query"]),
        ("Divided", ["factor"]),
        pytest.param("ScaleAndSoftmax", ["scale_d_model", "softmax_over_queries"], marks=pytest.mark.slow),
        pytest.param("KeyAndValueSwapped", ["value_reads_key", "key_reads_value"], marks=pytest.mark.slow),
    ],
)
def test_several_faults_have_their_names(name: str, codes: list[str]) -> None:
    certificate = verify(name, thorough=False)
    assert certificate.verdict == "different"
    assert [finding.code for finding in certificate.findings] == codes


@pytest.mark.parametrize(
    ("sizes", "code", "says"),
    [
        pytest.param({"num_heads": 4, "num_kv": 2}, "fewer_key_heads", "2 heads of .* serve 4", marks=pytest.mark.slow),
        ({"num_heads": 4, "num_kv": 2, "packed": True}, "fewer_key_heads", "2 heads of key and value serve 4"),
        ({"num_heads": 4, "num_kv": 4, "inner": 32}, "other_sizes", "a head has 8 channels, where .* is 16"),
        pytest.param(
            {"num_heads": 4, "num_kv": 4, "inner": 96, "packed": True},
            "other_sizes",
            "a head has 24 channels",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_other_sizes_are_named_as_what_they_are(sizes: dict[str, int], code: str, says: str) -> None:
    certificate = lockstep.verify(f"{FOREIGN}/contexts.py:Grouped", arguments={"d_model": 64, **sizes}, thorough=False)
    assert certificate.verdict == "different", certificate.table()
    (finding,) = certificate.findings
    assert finding.code == code
    assert re.search(says, finding.sentence)
