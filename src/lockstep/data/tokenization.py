"""Tokenizers (Hugging Face ``tokenizers``), the four special tokens, and texts to token ids."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Digits, WhitespaceSplit
from tokenizers.pre_tokenizers import Sequence as InTurn
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from torch import Tensor

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
PAD, BOS, EOS, UNK = range(4)
NEVER = (PAD, BOS, UNK)  # what no translation may hold
CHUNK = 10_000  # texts encoded at a time: the library's record of one is far larger than its ids


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

    Raises:
        ValueError: a smaller vocabulary.
    """
    alphabet = ByteLevel.alphabet()
    least = len(alphabet) + len(SPECIAL_TOKENS)
    if vocabulary_size < least:
        raise ValueError(f"vocabulary_size={vocabulary_size} cannot hold 256 bytes and the special tokens, {least}")
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = InTurn([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return with_ends(tokenizer)


def subword_tokenizers(train: Dataset, *, vocabulary_size: int, joint: bool) -> Tokenizers:
    """A subword tokenizer of both sides' texts together, or one for each side, each of ``vocabulary_size``."""
    if joint:
        tokenizer = subword_tokenizer([*train["source"][:], *train["target"][:]], vocabulary_size)
        return Tokenizers(tokenizer, tokenizer)
    return Tokenizers(*(subword_tokenizer(train[side][:], vocabulary_size) for side in ("source", "target")))


def with_ends(tokenizer: Tokenizer) -> Tokenizer:
    """Every text is encoded as ``<s> text </s>``; special tokens written in a text are text."""
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)])
    tokenizer.encode_special_tokens = True
    return tokenizer


def until_end(ids: Iterable[int]) -> list[int]:
    """What a sequence says: its ids up to EOS, without padding."""
    tokens = [token for token in ids if token != PAD]
    return tokens[: tokens.index(EOS)] if EOS in tokens else tokens


def to_line(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """What a sequence says, as one line of text: bytes can spell line breaks, and what is no UTF-8 becomes U+FFFD."""
    return tokenizer.decode(until_end(ids)).replace("\r", " ").replace("\n", " ")


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer from the file it was saved in."""
    return tokenizer_from(path.read_text(encoding="utf-8"))


def tokenizer_from(saved: str) -> Tokenizer:
    """A tokenizer as it was saved; that special tokens in texts are text is not kept there."""
    tokenizer = Tokenizer.from_str(saved)
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode(texts: Sequence[str], tokenizer: Tokenizer) -> list[Tensor]:
    """The ids of each text."""
    ids: list[Tensor] = []
    for start in range(0, len(texts), CHUNK):
        ids += [torch.tensor(e.ids) for e in tokenizer.encode_batch_fast(texts[start : start + CHUNK])]
    return ids
