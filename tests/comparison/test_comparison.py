"""Whole comparisons: variants that agree, faults that must be found, and the files left behind."""

import re

import faults
import hydra
import pytest
import yaml
from comparing import CONF, SMALL, compare, compared, compose, participants, verdicts
from matplotlib import rcParams
from omegaconf import OmegaConf

from lockstep.base.errors import NonFiniteError
from lockstep.commands.command_line import COULD_NOT_TELL
from lockstep.commands.compare import build_optimizer
from lockstep.commands.options import ConfigurationError
from lockstep.comparison.module import LockstepModule
from scripts import called

EXPERIMENTS = sorted(path.stem for path in (CONF / "comparison").glob("*.yaml"))
FAULTS = [f"faults.{fault.__name__}" for fault in faults.ALL]


@pytest.fixture(scope="session")
def output(tmp_path_factory):
    return tmp_path_factory.mktemp("comparisons")


@pytest.fixture(scope="session")
def ordered(output):
    return compared(
        output,
        "compare.variants=[per_head,fused,packed,einsum]",
        "compare.swap_at=8",
        "compare.recorded_steps=3",
        "trainer.max_steps=16",
    )


@pytest.fixture(scope="session")
def native(output):
    names = ["per_head", "sdpa", "torch_mha", "packed", "einsum", "shared_heads", *FAULTS]
    return compared(
        output,
        "arithmetic=native",
        f"compare.variants=[{','.join(names)},per_head]",
        "trainer.max_steps=20",
        "compare.recorded_steps=3",
    )


def test_ordered_arithmetic_leaves_no_differing_bit(ordered):
    status, result = ordered
    assert set(verdicts(result).values()) == {"IDENTICAL"}
    assert status == 0
    assert "no differing bit in 16 steps" in result["verdicts"]["fused"]
    assert "float32, Adam" in result["verdicts"]["fused"]


def test_a_copy_becomes_another_variant_without_a_differing_bit(ordered):
    _, result = ordered
    assert verdicts(result)["per_head, fused from step 8"] == "IDENTICAL"


def test_native_variants_differ_by_rounding_alone(native):
    _, result = native
    for name in ("sdpa", "torch_mha", "packed", "einsum"):
        assert verdicts(result)[name] == "EQUIVALENT UP TO ROUNDING"
        assert "a scale error of 1e-05 would have been seen" in result["verdicts"][name]


def test_planted_faults_are_found_and_training_steps_alone_would_have_found_them(native):
    status, result = native
    assert status == 1
    for name in [*(fault.__name__ for fault in faults.ALL), "shared_heads"]:
        assert verdicts(result)[name] == "DIFFERENT"
        steps = [step["variants"][name] for step in result["figures"]["resyncs"]]
        assert max(float(step[kind]["noise"]) for step in steps for kind in ("loss", "gradient")) > 100, name


def test_a_thing_is_no_evidence_for_itself(native):
    _, result = native
    assert verdicts(result)["per_head #2"] == "INCONCLUSIVE"
    assert "itself" in result["verdicts"]["per_head #2"]


def test_what_was_not_exercised_is_named(native):
    _, result = native
    assert "attention dropout" in result["figures"]["not_exercised"]
    assert "residual dropout" not in result["figures"]["not_exercised"]


def test_a_run_that_shows_nothing_is_inconclusive_and_says_why(output):
    status, result = compared(
        output, "data.min_length=8", "optimizer.lr=1e-9", "trainer.max_steps=4", "compare.recorded_steps=3"
    )
    assert status == 2
    assert verdicts(result) == {"fused": "INCONCLUSIVE"}
    for reason in (
        "the checks on random weights: no key was padding",
        "recorded steps: no key was padding",
        "moved by",
    ):
        assert reason in result["verdicts"]["fused"]


def test_a_reference_that_blows_up_ends_the_comparison(tmp_path):
    options = ["optimizer=sgd", "optimizer.lr=1e30", "trainer.max_steps=6", "compare.recorded_steps=3"]
    with pytest.raises(NonFiniteError, match=r"the loss of per_head is nan at step 2, .* a lower optimizer\.lr"):
        compare(compose(f"output='{tmp_path}'", *options), CONF)


def test_swapping_a_thing_for_itself_is_no_evidence():
    variants, _, _ = participants(
        "fused", "faults.FusedByAnotherName", overrides=("arithmetic=native", "compare.swap_at=9")
    )
    assert len({variant.identity for variant in variants}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_other_seeds_give_the_same_verdicts(output, seed):
    names = ["per_head", "sdpa", "torch_mha", "packed", "einsum", "shared_heads", *FAULTS]
    _, result = compared(
        output, f"seed={seed}", "arithmetic=native", f"compare.variants=[{','.join(names)}]", "trainer.max_steps=60"
    )
    found = verdicts(result)
    assert {found[name] for name in names[1:5]} == {"EQUIVALENT UP TO ROUNDING"}
    assert {found[name.rpartition(".")[2]] for name in names[5:]} == {"DIFFERENT"}


@pytest.mark.slow
def test_the_default_command_gives_the_verdict_at_its_head(tmp_path):
    overrides = [f"output='{tmp_path}'", "name=default", "trainer.accelerator=cpu"]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = OmegaConf.to_container(hydra.compose("compare", overrides), resolve=True)
    assert compare(config, CONF) == 0
    (path,) = tmp_path.glob("*/comparison.json")
    assert "IDENTICAL: no differing bit in 500 steps" in path.read_text()


def test_any_name_serves():
    names = ["v1.0", "keys", "half", "a/b", "$x_{", "[/b]", "\x1b[31m"]
    variants, _, options = participants("per_head", *({"attention": "fused", "name": name} for name in names))
    module = LockstepModule(variants, 0, build_optimizer(options, variants), lambda step: 1.0, 0.0)
    for name, copy in zip(names, module.copies[1:], strict=True):
        assert module.model(name) is copy
    groups = module.configure_optimizers()["optimizer"].param_groups
    assert {group["copy"] for group in groups} == {"per_head", *names}


def test_names_of_any_kind_are_drawn_and_shown_as_they_are(output, capsys, monkeypatch):
    """Also of a variant with weights that multi-head attention has not: they start as they were drawn."""
    monkeypatch.setitem(rcParams, "text.usetex", True)  # as a matplotlibrc in the working folder can say
    names = ["$x_{", "[/b]", "\x1b[31m"]
    kinds = zip(["fused", "fused", "faults.Gated"], names, strict=True)
    entries = ",".join(f"{{attention: {attention}, name: '{name}'}}" for attention, name in kinds)
    told = [f"compare.variants=[per_head,{entries}]", "trainer.max_steps=2", "compare.recorded_steps=2"]
    status, result = compared(output, *told)
    assert list(result["verdicts"]) == names
    assert (status, verdicts(result)[names[-1]]) == (1, "DIFFERENT")
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    for name in ("$x_{", "[/b]", r"\x1b[31m"):
        assert f"│ {name} " in shown


def test_a_variant_that_fails_cannot_be_judged(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert called("compare", *SMALL, "compare.variants=[per_head,faults.Failing]") == COULD_NOT_TELL
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: \S*/faults.py:\d+: RuntimeError: out of order\n", error)
    before = sorted(tmp_path.rglob("*"))
    assert called("compare", *SMALL, "compare.variants=[per_head,faults.ReturnsWeightsToo]") == COULD_NOT_TELL
    assert "faults.ReturnsWeightsToo cannot serve: under a padding mask" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_comparison_leaves_figures_a_picture_and_overlaid_scalars(ordered):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, result = ordered
    folder = result["folder"]
    assert (folder / "comparison.png").stat().st_size > 10_000
    assert not (folder / "hparams.yaml").exists()
    assert (folder / "environment.json").exists()
    board = EventAccumulator(str(folder))
    board.Reload()
    tags = board.Tags()["scalars"]
    assert {"loss/per_head", "loss/fused", "resync/fused", "resync/control 1e-04", "drift/fused"} <= set(tags)
    assert "epoch" not in tags
    # Steps are counted as in train.py: the first is 1.
    assert [event.step for event in board.Scalars("loss/fused")] == list(range(1, 17))
    recorded = [event.step for event in board.Scalars("resync/fused")]
    assert (recorded[0], recorded[-1]) == (1, 16)
    assert [step["step"] for step in result["figures"]["resyncs"]] == recorded
    assert [event.step for event in board.Scalars("drift/fused")] == recorded
    assert "custom_scalars__config__" in board.Tags()["tensors"]


def steps_of(experiment: str) -> int:
    """Checks before training decide most of them."""
    return 60 if experiment in {"attention_dropout", "bfloat16", "key_bias"} else 4


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_each_experiment_gives_the_verdict_at_its_head(output, experiment):
    lines = (CONF / "comparison" / f"{experiment}.yaml").read_text().splitlines()
    expected = dict(line.removeprefix("# Verdict of ").split(": ") for line in lines if line.startswith("# Verdict of"))
    _, result = compared(output, f"comparison={experiment}", f"trainer.max_steps={steps_of(experiment)}")
    assert expected
    assert verdicts(result) == expected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["compare.variants=[per_head]"], "at least one more"),
        (["compare.variants=[per_head,fusd]"], "attention fusd does not exist; did you mean fused?"),
        (["compare.variants=[shared_heads,per_head]"], "no canonical layout"),
        (["compare.variants=[per_head,{attention:fused,colour:red}]"], "may have name and learner"),
        (["compare.variants=[per_head,3]"], "cannot hold 3"),
        (["compare.swap_at=500"], "must be less than 500"),
        (["compare.swap_at=10", "compare.variants=[per_head,shared_heads]"], "no canonical layout to continue in"),
        (["compare.variants=[per_head,faults.ExtraParameter]"], "temperature does not come back"),
        (["trainer.accumulate_grad_batches=2"], "accumulate_grad_batches"),
        (["optimizer._target_=torch.optim.Muon", "~optimizer.betas"], "optimizer, for per_head"),
        (
            ["compare.variants=[per_head,{attention: fused, learner: {_target_: builtins.dict}}]"],
            "is not a lockstep.comparison",
        ),
        (
            ["compare.variants=[fused,torch.nn.Linear]"],
            "verify.py target=torch.nn:Linear save=NAME, then attention=",
        ),
        (["compare.variants=[per_head,json.loads]"], "is not a lockstep.attention.MultiHeadAttention"),
        (["trainer.precision=16-mixed"], "a CPU has bf16-mixed, or 32-true"),
        (["+compare.tolerance=1"], "unknown option compare.tolerance"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(tmp_path, overrides, message):
    with pytest.raises(ConfigurationError, match=r"option|optimizer|attention") as error:
        compare(compose(f"output='{tmp_path}'", *overrides), CONF)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_names_and_empty_subclasses_do_not_make_a_thing_another():
    entries = ["fused", "faults.FusedByAnotherName", {"attention": "fused", "name": "mine"}, "faults.QueryHeadsSwapped"]
    (reference, subclass, renamed, faulty), _, _ = participants(*entries, overrides=("arithmetic=native",))
    assert reference.identity == subclass.identity == renamed.identity != faulty.identity
    assert [v.name for v in (reference, subclass, renamed)] == ["fused", "FusedByAnotherName", "mine"]


def test_other_arguments_or_another_learner_make_a_thing_another():
    learner = {"_target_": "lockstep.comparison.contrasts.ClippedByTensor"}
    (ordered, clipped), _, _ = participants("fused", {"attention": "fused", "learner": learner})
    (native,) = participants("fused", "sdpa", overrides=("arithmetic=native",))[0][:1]
    assert len({ordered.identity, clipped.identity, native.identity}) == 3


def test_experiments_say_what_verdict_they_must_give():
    assert EXPERIMENTS
    for name in EXPERIMENTS:
        text = (CONF / "comparison" / f"{name}.yaml").read_text()
        assert f"# python scripts/compare.py comparison={name}\n" in text
        assert yaml.safe_load(text)["compare"]["variants"]
