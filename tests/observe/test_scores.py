"""Scores are sacreBLEU's, of the right sentences, on detokenised text."""

import pytest

from lockstep.observe.scores import score

HYPOTHESES = ["the cat sat here .", "we eat green pears now .", "birds go south in summer ."]
REFERENCES = ["the cat sat here .", "we eat red apples now .", "birds fly south in winter ."]


def test_c51_all_sentences_count():
    scores = score(HYPOTHESES, REFERENCES)
    assert scores["bleu"].value == pytest.approx(40.18, abs=0.005)  # 13/17, 7/14, 3/11, 2/8
    assert {name: result.value for name, result in score(REFERENCES, REFERENCES).items()} == pytest.approx(
        dict.fromkeys(("bleu", "bleu_lowercased", "chrf"), 100)
    )


def test_case_counts_but_where_the_name_says_it_does_not():
    scores = score([line.title() for line in REFERENCES], REFERENCES)
    assert scores["bleu"].value < 50
    assert scores["bleu_lowercased"].value == pytest.approx(100)
    assert scores["chrf"].value < 90
    assert "case:mixed" in scores["bleu"].signature
    assert "case:lc" in scores["bleu_lowercased"].signature
    assert all("tok:13a" in scores[name].signature for name in ("bleu", "bleu_lowercased"))
    assert all("nrefs:1" in result.signature for result in scores.values())


def test_c51_different_counts_are_refused():
    with pytest.raises(ValueError, match="3 translations cannot be scored by 2 references"):
        score(HYPOTHESES, REFERENCES[:2])
