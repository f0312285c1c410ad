"""A task of natural language, small enough for whole runs in a test."""

import random
from dataclasses import dataclass
from typing import ClassVar

from conftest import compose
from datasets import Dataset, DatasetDict

from lockstep.data.tokenization import subword_tokenizers

WORDS = {"the": "das", "old": "alte", "red": "rote", "house": "Haus", "horse": "Pferd", "car": "Auto", "sees": "sieht"}
TINY = [
    "model.d_model=64",
    "model.num_heads=2",
    "model.d_ff=64",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "batch_tokens=64",
    "trainer.accelerator=cpu",
    "trainer.log_every_n_steps=1",
    "attention_maps_every=0",
    "schedule.warmup_steps=10",
    "optimizer.lr=5e-3",
    "name=tiny",
]


@dataclass(frozen=True)
class Captions:
    """Word by word translations of 1 to 9 words; half the targets begin with a capital, which nobody can know."""

    natural_language: ClassVar[bool] = True

    def splits(self, seed):
        draw = random.Random(3)
        splits = {}
        for name, size in (("train", 60), ("validation", 12), ("test", 14)):
            words = [draw.choices(list(WORDS), k=draw.randint(1, 9)) for _ in range(size)]
            ends = [draw.choice([".", "!"]) for _ in range(size)]
            source = [" ".join(line) + end for line, end in zip(words, ends, strict=True)]
            target = [" ".join(WORDS[w] for w in line) + end for line, end in zip(words, ends, strict=True)]
            target = [line[0].upper() + line[1:] if draw.random() < 0.5 else line for line in target]
            splits[name] = Dataset.from_dict({"source": source, "target": target})
        return DatasetDict(splits)

    def tokenizers(self, train):
        return subword_tokenizers(train, vocabulary_size=320, joint=True)


def config(folder, *overrides):
    composed = compose(*TINY, f"output={folder}", *overrides)
    return {**composed, "data": {"_target_": "training.translating.Captions"}}
