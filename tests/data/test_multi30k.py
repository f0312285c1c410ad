"""Multi30k from its raw files."""

import gzip
import os
from pathlib import Path

import pytest

from lockstep.base.errors import InputError
from lockstep.data.datamodule import DataModule
from lockstep.data.multi30k import FILES, Multi30kTask

REAL = Path(__file__).parents[3] / "shared" / "multi30k"
OPTIONS = {
    "source_language": "en",
    "target_language": "fr",
    "vocabulary_size": 8000,
    "joint_vocabulary": True,
    "max_tokens": 256,
    "over_long": "drop",
}


def test_the_raw_files_are_the_three_splits(tmp_path):
    for split, file in FILES.items():
        for language in ("en", "fr"):
            (tmp_path / f"{file}.{language}.gz").write_bytes(gzip.compress(f"{split} {language}\n".encode() * 3))
    splits = Multi30kTask(path=str(tmp_path), **OPTIONS).splits(0)
    assert {name: (split["source"][0], split["target"][0], len(split)) for name, split in splits.items()} == {
        name: (f"{name} en", f"{name} fr", 3) for name in ("train", "validation", "test")
    }


def test_a_pipe_in_the_folder_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "train.en.gz")
    with pytest.raises(InputError, match=r"train\.en\.gz is no file"):
        Multi30kTask(path=str(tmp_path), **OPTIONS).splits(0)


def test_other_languages_need_the_raw_files():
    with pytest.raises(ValueError, match=r"Hub's copy of Multi30k is en and de only; for fr .* data\.path=FOLDER"):
        Multi30kTask(path=None, **OPTIONS)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")
def test_the_real_corpus_is_whole_and_little_of_it_is_padding():
    for language in ("de", "fr"):
        task = Multi30kTask(path=str(REAL), **{**OPTIONS, "target_language": language})
        module = DataModule(task, batch_tokens=4096, length_jitter=0, seed=0)
        assert [len(module.references(split)) for split in FILES] == [29000, 1014, 1000]
        assert module.tokenizers.source.get_vocab_size() == 8000
        padding = module.batches("train").summary().rpartition(" ")[2]
        assert float(padding.removesuffix("%")) < 6
