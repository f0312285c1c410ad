"""Tokenizers (Hugging Face ``tokenizers``), the four special tokens, and texts to token ids."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Digits, WhitespaceSplit
from tokenizers.pre_tokenizers import Sequence as InTurn
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from lockstep.base.errors import InputError
from lockstep.data.encoded import Encoded

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
PAD, BOS, EOS, UNK = range(4)
REPLACEMENT = "\ufffd"  # what decoding makes of bytes that are no UTF-8
NEVER = (PAD, BOS, UNK)  # what no translation may hold
CHUNK = 1_000_000  # characters encoded at a time: the library's record of a text is far larger than its ids
ROWS = 1000  # texts of a dataset held at a time
LONGEST_TRAINED_ON = 10_000  # characters of a text: training takes the square of the longest word
LONGEST_TOKEN = 4 * LONGEST_TRAINED_ON  # bytes of one that training can make
LEAST, MOST = 256 + len(SPECIAL_TOKENS), 2**17  # tokens of a subword vocabulary
LARGEST_FILE = 2**25  # bytes of a saved tokenizer: one of as many tokens takes half of it

VocabularySize = Annotated[int, Ge(LEAST), Le(MOST)]


@dataclass(frozen=True)
class Tokenizers:
    """The two sides' tokenizers; one object twice where the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def fingerprint(self) -> str:
        """SHA-256 of both: weights fit these token ids and no others."""
        return hashlib.sha256("\n".join(side.to_str() for side in (self.source, self.target)).encode()).hexdigest()


def word_tokenizer(words: Iterable[str]) -> Tokenizer:
    """One token a word, separated by white space; ids in the order given, after the special tokens."""
    vocabulary = {word: index for index, word in enumerate((*SPECIAL_TOKENS, *words))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return with_ends(tokenizer)


def subword_tokenizer(texts: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """Byte-level byte-pair encoding, trained on ``texts``: nothing is unknown, and decoding gives any text back.

    Digits stand alone: a number never seen is spelled as those seen were. Words are split off before pairs are merged,
    and with them punctuation, so that no merge can make a token that reads like a special one.

    Args:
        texts: to train on.
        vocabulary_size: most tokens; at least the 256 bytes and the special tokens.
    """
    tokenizer = _of_subwords(BPE())
    trainer = BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator((text[:LONGEST_TRAINED_ON] for text in texts), trainer)
    return with_ends(tokenizer)


def _of_subwords(model: BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = InTurn([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def subword_tokenizers(train: Dataset, *, vocabulary_size: int, joint: bool) -> Tokenizers:
    """A subword tokenizer of both sides' texts together, or one for each side, each of ``vocabulary_size``."""
    if joint:
        tokenizer = subword_tokenizer(chain(texts(train, "source"), texts(train, "target")), vocabulary_size)
        return Tokenizers(tokenizer, tokenizer)
    return Tokenizers(*(subword_tokenizer(texts(train, side), vocabulary_size) for side in ("source", "target")))


def texts(split: Dataset, side: str) -> Iterator[str]:
    """A column, a few texts at a time: as Python's they take several times the room of the dataset's."""
    for start in range(0, len(split), ROWS):
        yield from split[start : start + ROWS][side]


def with_ends(tokenizer: Tokenizer) -> Tokenizer:
    """Every text is encoded as ``<s> text </s>``; special tokens written in a text are text."""
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)])
    tokenizer.encode_special_tokens = True
    return tokenizer


def to_line(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """What ids say, up to EOS and without padding, as one line: bytes can spell line breaks, or no UTF-8 (U+FFFD)."""
    tokens = [token for token in ids if token != PAD]
    said = tokens[: tokens.index(EOS)] if EOS in tokens else tokens
    return tokenizer.decode(said).replace("\r", " ").replace("\n", " ")


def token_bytes(tokenizer: Tokenizer, index: int) -> bytes:
    """The bytes of a subword token, which need not be whole characters; byte-level BPE spells each as a letter."""
    as_they_are = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in as_they_are]
    letters = {chr(byte): byte for byte in as_they_are} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
    return bytes(letters[letter] for letter in tokenizer.id_to_token(index) or "")


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer from the file it was saved in.

    Raises:
        OSError: the file cannot be read.
        InputError: it is none of this module's (see :func:`tokenizer_from`).
    """
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    try:
        return tokenizer_from(content.decode())
    except UnicodeDecodeError:
        raise InputError("not UTF-8") from None


def tokenizer_from(saved: str) -> Tokenizer:
    """A tokenizer as this module makes them, from what it was saved as.

    Only the vocabulary and its merges are taken from there; all else is made here and must be what was saved. So the
    library never sees a padding, pattern or template by which a file could exhaust the machine or end the process.

    Raises:
        InputError: it was saved by something else, or changed since.
    """
    if len(saved) > LARGEST_FILE or saved.count("[") + saved.count("{") > 2 * MOST:  # as objects, ten times as large
        raise InputError(f"larger than a vocabulary of {MOST:,} tokens")
    try:
        content = json.loads(saved)
        tokenizer = _from_parts(content["model"])
        unchanged = content == json.loads(tokenizer.to_str())
    except Exception as error:  # whatever any file may lead to; the library raises nothing more definite
        raise InputError(f"not a tokenizer: {error!r:.200}") from None
    if not unchanged:
        raise InputError("more than, or other than, a tokenizer that this project makes")
    return tokenizer


def _from_parts(model: dict[str, Any]) -> Tokenizer:
    vocabulary = model["vocab"]
    in_order = sorted(vocabulary, key=vocabulary.__getitem__)
    if max(map(len, vocabulary)) > LONGEST_TOKEN:  # a translation may say it hundreds of times
        raise ValueError(f"a token has over {LONGEST_TOKEN:,} characters")
    if [vocabulary[token] for token in in_order] != list(range(len(vocabulary))):
        raise ValueError("ids are not 0, 1, 2, ...")
    if tuple(in_order[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
        raise ValueError(f"the first tokens are not {' '.join(SPECIAL_TOKENS)}")
    if model["type"] == "WordLevel":
        return word_tokenizer(in_order[len(SPECIAL_TOKENS) :])
    if not vocabulary.keys() >= set(ByteLevel.alphabet()):
        raise ValueError("a byte has no token")
    return with_ends(_of_subwords(BPE(vocabulary, [(first, second) for first, second in model["merges"]])))


def encode(given: Iterable[str], tokenizer: Tokenizer) -> Encoded:
    """The ids of each text."""
    ids, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    for chunk in _chunks(given):
        encodings = [e.ids for e in tokenizer.encode_batch_fast(chunk)]
        lengths.append(np.array([len(i) for i in encodings], np.int32))
        ids.append(np.fromiter(chain.from_iterable(encodings), np.int32, lengths[-1].sum()))
    return Encoded(np.concatenate(ids), np.concatenate(lengths))


def _chunks(given: Iterable[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for text in given:
        if chunk and size + len(text) > CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(text)
        size += len(text)
    if chunk:
        yield chunk
