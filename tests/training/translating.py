"""A parallel corpus small enough for whole runs in a test."""

import random

from conftest import compose

WORDS = {"the": "das", "old": "alte", "red": "rote", "house": "Haus", "horse": "Pferd", "car": "Auto", "sees": "sieht"}
TINY = [
    "data=parallel",
    "data.vocabulary_size=320",
    "model.d_model=64",
    "model.num_heads=2",
    "model.d_ff=64",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "batch_tokens=64",
    "length_jitter=0",
    "trainer.accelerator=cpu",
    "trainer.log_every_n_steps=1",
    "attention_maps_every=0",
    "schedule.warmup_steps=10",
    "optimizer.lr=5e-3",
    "name=tiny",
]


def pairs(count, draw):
    """Sentences of 1 to 9 words and translations word by word; half of these begin with a capital: nobody can know."""
    for _ in range(count):
        words, end = draw.choices(list(WORDS), k=draw.randint(1, 9)), draw.choice(".!")
        target = " ".join(WORDS[word] for word in words) + end
        yield " ".join(words) + end, target[0].upper() + target[1:] if draw.random() < 0.5 else target


def config(folder, *overrides):
    """Of a run in a folder, with the corpus beside it."""
    corpus = folder.with_name(f"{folder.name}-corpus")
    corpus.mkdir(exist_ok=True)
    draw = random.Random(3)
    files = {name: corpus / f"{name}.tsv" for name in ("train", "validation", "test")}
    for path, count in zip(files.values(), (60, 12, 14), strict=True):
        path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs(count, draw)))
    data = [f"data.{name}={path}" for name, path in files.items()]
    return compose(*TINY, *data, f"output={folder}", *overrides)
