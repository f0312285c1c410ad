"""From texts to token ids: a tokenizer trained, every text encoded; kept for next time by what the texts say."""

import hashlib
import inspect
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers as library
import torch
from datasets import DatasetDict
from numpy.typing import NDArray
from torch import Tensor

from lockstep.data import tokenization
from lockstep.data.tokenization import Tokenizers, encode, subword_tokenizers, tokenizer_from
from lockstep.files import whole_file

Pairs = list[tuple[Tensor, Tensor]]
Arrays = dict[str, NDArray[np.generic]]
SIDES = ("source", "target")

logger = logging.getLogger("lockstep")


class Prepared(NamedTuple):
    """What is trained on: ``texts`` with columns ``source`` and ``target``, and the ids of each of their pairs."""

    tokenizers: Tokenizers
    texts: DatasetDict
    pairs: dict[str, Pairs]


def prepare(texts: DatasetDict, tokenizers: Tokenizers) -> Prepared:
    """Encode all texts."""
    pairs = {}
    for name, split in texts.items():
        source, target = (encode(split[side][:], getattr(tokenizers, side)) for side in SIDES)
        pairs[name] = list(zip(source, target, strict=True))
    return Prepared(tokenizers, texts, pairs)


def prepare_subwords(texts: DatasetDict, *, vocabulary_size: int, joint: bool) -> Prepared:
    """Train subword tokenizers on the training split and encode all texts, or find that done.

    What was prepared lies in a file whose name is a hash of everything it was made from: the texts themselves, the
    settings, the tokenizers library, and the source of this code. So nothing stale is ever found, and any file may be
    deleted. It appears whole or not at all, and one that is damaged is made again.
    """
    path = cache_folder() / f"{_key(texts, vocabulary_size, joint)}.npz"
    try:
        return _load(path, texts)
    except FileNotFoundError:
        pass
    except Exception as error:  # whatever a damaged file may lead to
        logger.warning("%s is damaged and made again: %s", path, error)
    began = time.perf_counter()
    prepared = prepare(texts, subword_tokenizers(texts["train"], vocabulary_size=vocabulary_size, joint=joint))
    seconds = time.perf_counter() - began
    logger.info("tokenizer trained and %d pairs encoded in %.1f s", sum(map(len, texts.values())), seconds)
    _store(path, prepared)
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
            digest.update(json.dumps([name, side, split[side][:]]).encode())
    return digest.hexdigest()


def _store(path: Path, prepared: Prepared) -> None:
    arrays: Arrays = {"source": _bytes(prepared.tokenizers.source.to_str())}
    if not prepared.tokenizers.joint:
        arrays["target"] = _bytes(prepared.tokenizers.target.to_str())
    for name, pairs in prepared.pairs.items():
        for side, ids in zip(SIDES, zip(*pairs, strict=True), strict=True):
            arrays[f"{name}.{side}.lengths"] = np.array([len(i) for i in ids], dtype=np.int32)
            arrays[f"{name}.{side}.ids"] = np.concatenate([i.numpy() for i in ids]).astype(np.int32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub takes the names for options
    except OSError as error:
        logger.warning("what was prepared is not kept for next time: %s", error)


def _load(path: Path, texts: DatasetDict) -> Prepared:
    with path.open("rb") as file, np.load(file) as arrays:  # each array has its checksum
        source = tokenizer_from(arrays["source"].tobytes().decode())
        target = tokenizer_from(arrays["target"].tobytes().decode()) if "target" in arrays else source
        pairs = {}
        for name in texts:
            sides = [_sequences(arrays[f"{name}.{side}.ids"], arrays[f"{name}.{side}.lengths"]) for side in SIDES]
            pairs[name] = list(zip(*sides, strict=True))
    return Prepared(Tokenizers(source, target), texts, pairs)


def _sequences(ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> tuple[Tensor, ...]:
    return torch.split(torch.from_numpy(ids.astype(np.int64)), lengths.tolist())


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), dtype=np.uint8)
