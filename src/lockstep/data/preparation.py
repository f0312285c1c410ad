"""From texts to token ids: a tokenizer trained, every text encoded; kept for next time by what the texts say."""

import hashlib
import inspect
import json
import logging
import os
import stat
import sys
import time
import zipfile
from pathlib import Path
from typing import IO, Annotated, NamedTuple

import numpy as np
import tokenizers as library
from annotated_types import Ge, Le
from datasets import DatasetDict
from numpy.typing import NDArray

from lockstep.base.files import plain_file, whole_file
from lockstep.data import tokenization
from lockstep.data.encoded import Encoded, Pairs
from lockstep.data.tokenization import Tokenizers, encode, subword_tokenizers, tokenizer_from
from lockstep.data.tokenization import texts as texts_of

Arrays = dict[str, NDArray[np.generic]]
SIDES = ("source", "target")
SplitSize = Annotated[int, Ge(2), Le(10_000_000)]  # of made-up texts: what a batch needs, and what memory holds

logger = logging.getLogger("lockstep")


class Prepared(NamedTuple):
    """What is trained on: ``texts`` with columns ``source`` and ``target``, and the ids of each of their pairs."""

    tokenizers: Tokenizers
    texts: DatasetDict
    pairs: dict[str, Pairs]


def prepare(texts: DatasetDict, tokenizers: Tokenizers) -> Prepared:
    """Encode all texts."""
    pairs = {
        name: Pairs(*(encode(texts_of(split, side), getattr(tokenizers, side)) for side in SIDES))
        for name, split in texts.items()
    }
    return Prepared(tokenizers, texts, pairs)


def prepare_subwords(texts: DatasetDict, *, vocabulary_size: int, joint: bool) -> Prepared:
    """Train subword tokenizers on the training split and encode all texts, or find that done.

    What was prepared lies in a file whose name is a hash of everything it was made from: the texts themselves, the
    settings, the tokenizers library, and the source of this code. So nothing stale is ever found, and any file may be
    deleted. It appears whole or not at all; one that is damaged, or that others could have written, is made again.
    """
    key = _key(texts, vocabulary_size, joint)
    path = cache_folder() / f"{key}.npz"
    try:
        return _load(path, key, texts)
    except FileNotFoundError:
        pass
    except Exception as error:  # whatever a damaged file may lead to
        logger.warning("%s is not used, and made again: %s", path, error)
    began = time.perf_counter()
    prepared = prepare(texts, subword_tokenizers(texts["train"], vocabulary_size=vocabulary_size, joint=joint))
    seconds = time.perf_counter() - began
    logger.info("tokenizer trained and %d pairs encoded in %.1f s", sum(map(len, texts.values())), seconds)
    _store(path, key, prepared)
    return prepared


def cache_folder() -> Path:
    """``$LOCKSTEP_CACHE``; else ``lockstep`` in the user's folder of caches."""
    if chosen := os.environ.get("LOCKSTEP_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lockstep"


def _key(texts: DatasetDict, vocabulary_size: int, joint: bool) -> str:
    code = [inspect.getsource(module) for module in (tokenization, sys.modules[__name__])]
    made_by = [library.__version__, code, vocabulary_size, joint]
    digest = hashlib.sha256(json.dumps(made_by).encode())
    for name, split in texts.items():
        for side in SIDES:
            digest.update(json.dumps([name, side, len(split)]).encode())
            for text in texts_of(split, side):
                digest.update(json.dumps(text).encode())
    return digest.hexdigest()


def _store(path: Path, key: str, prepared: Prepared) -> None:
    arrays: Arrays = {"source": _bytes(prepared.tokenizers.source.to_str())}
    if not prepared.tokenizers.joint:
        arrays["target"] = _bytes(prepared.tokenizers.target.to_str())
    for name, pairs in prepared.pairs.items():
        for side in SIDES:
            encoded: Encoded = getattr(pairs, side)
            arrays |= {f"{name}.{side}.lengths": encoded.lengths, f"{name}.{side}.ids": encoded.ids}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            np.savez(file, digest=_bytes(_digest(key, arrays)), **arrays)  # type: ignore[arg-type]  # names for options
    except OSError as error:
        logger.warning("what was prepared is not kept for next time: %s", error)


def _load(path: Path, key: str, texts: DatasetDict) -> Prepared:
    with _own(path) as file:
        if not zipfile.is_zipfile(file):  # numpy would advise to trust it
            raise ValueError("it is cut, or none of these files")
        if sum(entry.file_size for entry in zipfile.ZipFile(file).infolist()) > file.seek(0, os.SEEK_END):
            raise ValueError("it unpacks to more than it is")
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            arrays = dict(stored)
    if arrays.pop("digest").tobytes().decode() != _digest(key, arrays):
        raise ValueError("the content is not what was kept under this name")
    source = tokenizer_from(arrays["source"].tobytes().decode())
    target = tokenizer_from(arrays["target"].tobytes().decode()) if "target" in arrays else source
    tokenizers = Tokenizers(source, target)
    pairs = {}
    for name, split in texts.items():
        sides = {side: Encoded(arrays[f"{name}.{side}.ids"], arrays[f"{name}.{side}.lengths"]) for side in SIDES}
        for side, encoded in sides.items():
            _check(encoded, len(split), getattr(tokenizers, side).get_vocab_size())
        pairs[name] = Pairs(**sides)
    return Prepared(tokenizers, texts, pairs)


def _own(path: Path) -> IO[bytes]:
    """A file that only the user could have written: what it says is taken for true, since anybody can make a digest.

    Raises:
        OSError: a link, no plain file, another user's, or one that everybody may write.
    """
    file = plain_file(path)
    found = os.fstat(file.fileno())
    if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH):
        file.close()
        raise PermissionError("another user could have written it")
    return file


def _digest(key: str, arrays: Arrays) -> str:
    """Of an entry's content, and of what it was made from."""
    digest = hashlib.sha256(key.encode())
    for name, array in sorted(arrays.items()):
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _check(encoded: Encoded, count: int, vocabulary: int) -> None:
    """Raise ValueError unless these can be the ids of so many texts."""
    ids, lengths = encoded.ids, encoded.lengths
    if lengths.shape != (count,) or lengths.min() < 2 or ids.shape != (int(lengths.sum()),):
        raise ValueError(f"it does not hold the ids of {count} texts")
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise ValueError("it holds ids that no token has")


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), dtype=np.uint8)
