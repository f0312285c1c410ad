"""Scores are sacreBLEU's, of the right sentences, on detokenised text."""

import pytest

from lockstep.observe import segmentation
from lockstep.observe.scores import score
from lockstep.observe.segmentation import choose

HYPOTHESES = ["the cat sat here .", "we eat green pears now .", "birds go south in summer ."]
REFERENCES = ["the cat sat here .", "we eat red apples now .", "birds fly south in winter ."]


def test_all_sentences_count():
    scores = score(HYPOTHESES, REFERENCES, "13a")
    assert scores["bleu"].value == pytest.approx(40.18, abs=0.005)  # 13/17, 7/14, 3/11, 2/8
    assert {name: result.value for name, result in score(REFERENCES, REFERENCES, "13a").items()} == pytest.approx(
        dict.fromkeys(("bleu", "bleu_lowercased", "chrf"), 100)
    )


def test_case_counts_but_where_the_name_says_it_does_not():
    scores = score([line.title() for line in REFERENCES], REFERENCES, "13a")
    assert scores["bleu"].value < 50
    assert scores["bleu_lowercased"].value == pytest.approx(100)
    assert scores["chrf"].value < 90
    assert "case:mixed" in scores["bleu"].signature
    assert "case:lc" in scores["bleu_lowercased"].signature
    assert all("tok:13a" in scores[name].signature for name in ("bleu", "bleu_lowercased"))
    assert all("nrefs:1" in result.signature for result in scores.values())


def test_different_counts_are_refused():
    with pytest.raises(ValueError, match="3 translations cannot be scored by 2 references"):
        score(HYPOTHESES, REFERENCES[:2], "13a")


CHINESE = ["我喜欢吃苹果。", "他们在公园里跑步。", "猫坐在垫子上睡觉。"]
JAPANESE = ["私は林檎を食べます。", "犬が公園を走っている。", "猫はマットの上で寝る。"]
KOREAN = ["나는 사과를 먹는다.", "개가 공원에서 달린다."]
THAI = ["ฉันชอบกินแอปเปิล", "แมวนอนบนเสื่อ"]


@pytest.mark.parametrize(
    ("language", "texts", "expected"),
    [
        ("zh_CN", CHINESE, "zh"),
        ("target", CHINESE, "zh"),
        (None, JAPANESE, "ja-mecab"),
        ("jpn_Jpan", ["林檎"], "ja-mecab"),
        (None, KOREAN, "ko-mecab"),
        ("ko", KOREAN, "ko-mecab"),
        (None, THAI, "char"),
        ("km", [""], "char"),
        (None, ["ꦱꦼꦏꦢꦾꦤꦶꦁꦮꦶꦠꦶꦁ"], "char"),
        (None, ["ｺﾝﾋﾟｭｰﾀ"], "ja-mecab"),
        (None, ["ㄓㄨㄧㄣ"], "zh"),
        ("de", ["Ein Hund in 北京 läuft.", "Zwei Kinder spielen Fußball."], "13a"),
        (None, ["Собака бежит.", "12 !"], "13a"),
        (None, ["12 !"], "13a"),
    ],
)
def test_the_tokenizer_is_that_of_the_target_language_or_else_of_its_script(language, texts, expected, monkeypatch):
    monkeypatch.setattr(segmentation, "installed", lambda tokenizer: True)
    assert choose(None, language, texts).tokenizer == expected
    assert choose("intl", language, texts) == ("intl", "scores.tokenizer")
    monkeypatch.setattr(segmentation, "installed", lambda tokenizer: False)
    without = choose(None, language, texts)
    if expected in ("ja-mecab", "ko-mecab"):
        assert without.tokenizer == "char"
        assert (
            f"{expected}, which finds words, is not installed: pip install 'sacrebleu[{expected[:2]}]'"
            in without.reason
        )
    else:
        assert without.tokenizer == expected


@pytest.mark.parametrize("texts", [CHINESE, JAPANESE, THAI])
def test_a_perfect_translation_into_a_language_without_spaces_scores_100(texts):
    tokenizer, _ = choose(None, None, texts)
    perfect = score(texts, texts, tokenizer)
    assert {name: result.value for name, result in perfect.items()} == pytest.approx(dict.fromkeys(perfect, 100))
    assert f"tok:{tokenizer}" in perfect["bleu"].signature
    assert score(texts, texts, "13a")["bleu"].value == 0
    assert 0 < score([text[:-3] for text in texts], texts, tokenizer)["bleu"].value < 100
