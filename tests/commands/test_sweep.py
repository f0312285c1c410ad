"""The table of a sweep: what each job reached, the best first."""

import csv
import shlex
from pathlib import Path

from lockstep.commands.sweep import Sweep


def table(folder, outcomes):
    sweep = Sweep(folder, [[f"seed={seed}"] for seed in outcomes])
    for seed, outcome in outcomes.items():
        sweep.add({"seed": seed}, outcome)
    sweep.report()
    return list(csv.DictReader((folder / "results.csv").read_text().splitlines()))


def outcome(**tested):
    metrics = {f"test/{name}": value for name, value in tested.items()}
    return {**metrics, "train/steps": 9, "train/target_tokens_per_second": 5.0}


def test_translations_are_sorted_by_bleu(tmp_path):
    rows = table(tmp_path, {"0": outcome(bleu=9.5, loss=1.0), "1": "it broke", "2": outcome(bleu=30.25, loss=2.0)})
    assert [row["seed"] for row in rows] == ["2", "0", "1"]
    assert [row["BLEU"] for row in rows] == ["30.25", "9.50", ""]
    assert "exact match" not in rows[0]


def test_tasks_with_one_right_answer_are_sorted_by_exact_match(tmp_path):
    rows = table(tmp_path, {"0": outcome(exact_match=0.5, loss=1.0), "1": outcome(exact_match=1.0, loss=2.0)})
    assert [row["exact match"] for row in rows] == ["1.0000", "0.5000"]
    assert "BLEU" not in rows[0]


def test_several_tasks_are_one_table(tmp_path):
    rows = table(tmp_path, {"0": outcome(exact_match=0.5, loss=1.0), "1": outcome(bleu=30.0, loss=2.0)})
    assert {(row["exact match"], row["BLEU"]) for row in rows} == {("0.5000", ""), ("", "30.00")}


def test_what_did_not_run_is_told_with_its_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    sweep = Sweep(Path("here"), [["name='my run'", f"seed={seed}"] for seed in "012"])
    sweep.add({"attention": "fused", "seed": "0"}, "stopped by SIGINT")
    sweep.report()
    output = capsys.readouterr().out.splitlines()
    assert "1 of 3 jobs ran, 1 failed" in output[-3]
    assert [line.partition(": ")[0] for line in output[-2:]] == ["not run"] * 2
    words = shlex.split(output[-1].partition(": ")[2])
    assert words == ["python", "scripts/train.py", "name='my run'", "seed=2", "output=here"]
