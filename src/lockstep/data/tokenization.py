"""Tokenizers (Hugging Face ``tokenizers``), the four special tokens, and texts to token ids."""

from collections.abc import Iterable
from dataclasses import dataclass

from datasets import Dataset, DatasetDict
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
PAD, BOS, EOS, UNK = range(4)


@dataclass(frozen=True)
class Tokenizers:
    """The two sides' tokenizers; one object twice where the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target


def word_tokenizer(words: Iterable[str]) -> Tokenizer:
    """One token a word, separated by white space; ids in the order given, after the special tokens."""
    vocabulary = {word: index for index, word in enumerate((*SPECIAL_TOKENS, *words))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return with_ends(tokenizer)


def with_ends(tokenizer: Tokenizer) -> Tokenizer:
    """Every text is encoded as ``<s> text </s>``; special tokens written in a text are text."""
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)])
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode(splits: DatasetDict, tokenizers: Tokenizers) -> DatasetDict:
    """Add the columns ``source_ids`` and ``target_ids`` to text columns ``source`` and ``target``."""

    def batch(rows: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {
            "source_ids": [e.ids for e in tokenizers.source.encode_batch(rows["source"])],
            "target_ids": [e.ids for e in tokenizers.target.encode_batch(rows["target"])],
        }

    def whole(split: Dataset) -> Dataset:
        return split.map(batch, batched=True, keep_in_memory=True)

    return DatasetDict({name: whole(split) for name, split in splits.items()})
