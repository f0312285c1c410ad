"""The judge alone, on figures written by hand."""

import math
from dataclasses import replace

import pytest

from lockstep.comparison.record import Exercised, Record, VariantRecord
from lockstep.comparison.resync import Difference, Excess, Resync
from lockstep.comparison.verdict import Kind, Verdict, exit_status, judge, smallest_seen


def excess(noise=1.0, kind="gradient", identical=False):
    differences = dict.fromkeys(("loss", "gradient", "update", "key_bias"), Difference())
    differences[kind] = Difference(noise, "decoder.0.cross_attention.value.weight", 0.25)
    return Excess(**differences, identical=identical)


def resync(step=0, loss=2.0, variant=None, nulls=None, controls=(1e4, 1e3, 100.0)):
    return Resync(
        step,
        loss,
        {"mine": variant or excess()},
        [excess() for _ in range(5)] if nulls is None else nulls,
        dict(zip((1e-3, 1e-4, 1e-5), map(excess, controls), strict=True)),
    )


ALL = Exercised(padded_keys=True, rectangular=True, batched=True)


def record(**changes):
    """Figures of a sound comparison, in which only bits differ."""
    figures = {
        "reference": "theirs",
        "setting": {"precision": "float32", "optimizer": "Adam"},
        "not_exercised": [],
        "checks": {"in eval mode": resync(), "in training mode": resync()},
        "check_exercised": ALL,
        "losses": [3 - 0.01 * step for step in range(100)],
        "variants": {"mine": VariantRecord(first_difference=(7, "encoder.0.self_attention.query.weight"))},
        "resyncs": [resync(step) for step in (0, 10, 99)],
        "exercised": ALL,
        "moved": 0.5,
    }
    return Record(**(figures | changes))


def test_differing_bits_within_the_noise_are_rounding():
    verdict = judge(record(), "mine")
    assert verdict.kind is Kind.EQUIVALENT
    assert verdict.reason == (
        "first differing bit at step 7 in encoder.0.self_attention.query.weight; at most 1 times the noise in 3 "
        "recorded steps of 100; a scale error of 1e-05 would have been seen (float32, Adam)"
    )


def test_no_differing_bit_is_identity():
    verdict = judge(record(variants={"mine": VariantRecord()}), "mine")
    assert str(verdict) == "IDENTICAL: no differing bit in 100 steps, in any loss or weight (float32, Adam)"


@pytest.mark.parametrize("first_difference", [None, (7, "the loss")])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"moved": 0.01}, "the weights moved by 1.00% only"),
        ({"moved": math.nan}, "the weights moved by nan% only"),
        ({"losses": [2.0] * 100}, "the loss did not fall"),
        ({"losses": [2 + 0.1 * step for step in range(100)]}, "the loss did not fall"),
        ({"losses": [3.0] * 50 + [math.nan] * 50}, "the loss did not fall"),
        ({"exercised": replace(ALL, padded_keys=False)}, "no key was padding"),
        ({"exercised": replace(ALL, rectangular=False)}, "T_q != T_k"),
        ({"exercised": replace(ALL, batched=False)}, "no batch held two sequences"),
        ({"check_exercised": replace(ALL, padded_keys=False)}, "the checks on random weights: no key was padding"),
        ({"resyncs": []}, "the recorded steps: there are none"),
        ({"resyncs": [resync(), resync(5, loss=math.nan)]}, "not finite"),
        ({"resyncs": [resync(), resync(5, nulls=[excess(), excess(0, identical=True)])]}, "at step 5 a null equals"),
        ({"resyncs": [resync(nulls=[])]}, "there is no noise"),
        ({"resyncs": [resync(controls=(10, 9, 8))]}, "no control was detected"),
        (
            {"checks": {"in eval mode": resync(controls=(10, 9, 8))}},
            "the checks on random weights: no control was detected",
        ),
    ],
)
def test_without_power_or_training_it_is_inconclusive_and_says_why(changes, reason, first_difference):
    verdict = judge(
        record(**changes | {"variants": {"mine": VariantRecord(first_difference=first_difference)}}), "mine"
    )
    assert verdict.kind is Kind.INCONCLUSIVE
    assert reason in verdict.reason


def test_the_limit_is_ten_times_the_noise():
    def at(noise):
        return judge(record(resyncs=[resync(), resync(5, variant=excess(noise)), resync(9)]), "mine")

    assert at(10.0).kind is Kind.EQUIVALENT
    assert at(10.1).kind is Kind.DIFFERENT
    assert at(math.inf).kind is Kind.DIFFERENT
    assert str(at(2e7)) == (
        "DIFFERENT: at step 5 the gradient of decoder.0.cross_attention.value.weight differs by 0.25 of its size, "
        "2e+07 times the noise"
    )


@pytest.mark.parametrize("kind", ["loss", "gradient", "update"])
def test_each_kind_of_difference_counts(kind):
    assert judge(record(resyncs=[resync(variant=excess(11, kind))]), "mine").kind is Kind.DIFFERENT


def test_a_fault_is_a_fault_even_where_agreement_would_prove_nothing():
    assert judge(record(moved=0.0, resyncs=[resync(variant=excess(11))]), "mine").kind is Kind.DIFFERENT


@pytest.mark.parametrize("mode", ["in eval mode", "in training mode"])
def test_the_checks_on_random_weights_count(mode):
    checks = {"in eval mode": resync(), "in training mode": resync()} | {mode: resync(variant=excess(11))}
    verdict = judge(record(checks=checks), "mine")
    assert verdict.kind is Kind.DIFFERENT
    assert f"on random weights in float64, {mode}, the gradient" in verdict.reason


def test_key_biases_do_not_count():
    assert judge(record(resyncs=[resync(variant=excess(1e6, "key_bias"))]), "mine").kind is Kind.EQUIVALENT


def test_a_thing_is_no_evidence_for_itself():
    assert judge(record(variants={"mine": VariantRecord(is_reference=True)}), "mine").kind is Kind.INCONCLUSIVE


def test_without_a_canonical_layout_agreement_cannot_be_claimed():
    assert judge(record(variants={"mine": VariantRecord(has_layout=False)}), "mine").kind is Kind.INCONCLUSIVE


def learner(which, **changes):
    found = VariantRecord(first_difference=(0, "the loss"), learner={which: [f"its {which}"]})
    return judge(record(**changes | {"variants": {"mine": found}}), "mine")


@pytest.mark.parametrize("check", ["initialisation", "draws", "update"])
def test_another_learner_of_the_same_function_is_named(check):
    verdict = learner(check)
    assert verdict.kind is Kind.LEARNER
    assert f"different: its {check}" in verdict.reason


def test_another_learner_is_no_excuse_for_another_function():
    wrong = excess(11)
    assert learner("update", resyncs=[resync(variant=wrong)]).kind is Kind.DIFFERENT
    assert learner("initialisation", checks={"in training mode": resync(variant=wrong)}).kind is Kind.DIFFERENT
    assert learner("draws", checks={"in training mode": resync(variant=wrong)}).kind is Kind.DIFFERENT


def test_another_learner_explains_another_update_and_other_draws_another_loss():
    assert learner("update", resyncs=[resync(variant=excess(1e5, "update"))]).kind is Kind.LEARNER
    assert learner("draws", resyncs=[resync(variant=excess(1e5, "loss"))]).kind is Kind.LEARNER


def test_the_same_function_is_claimed_only_where_the_check_had_power():
    verdict = learner("update", check_exercised=replace(ALL, padded_keys=False))
    assert verdict.kind is Kind.INCONCLUSIVE


def test_the_power_is_the_smallest_control_seen_in_half_the_steps_with_all_larger_ones():
    assert smallest_seen([resync(controls=(100, 11, 5))]) == 1e-4
    assert smallest_seen([resync(controls=(100, 11, 5)), resync(controls=(100, 5, 5))]) == 1e-4
    assert smallest_seen([resync(controls=(100, 11, 5)), *[resync(controls=(100, 5, 5))] * 2]) == 1e-3
    assert smallest_seen([resync(controls=(5, 100, 100))]) is None


def test_exit_status():
    def status(*kinds):
        return exit_status(Verdict(kind, "") for kind in kinds)

    assert status(Kind.IDENTICAL, Kind.EQUIVALENT) == 0
    assert status(Kind.IDENTICAL, Kind.DIFFERENT) == 1
    assert status(Kind.LEARNER, Kind.INCONCLUSIVE) == 1
    assert status(Kind.IDENTICAL, Kind.INCONCLUSIVE) == 2
    assert status() == 2
