"""A trained model, as its run left it: the weights of a checkpoint, and the tokenizers they belong to."""

from pathlib import Path
from typing import NamedTuple

from lockstep.configuration import TrainOptions, parse
from lockstep.data.tokenization import Tokenizers, load_tokenizer
from lockstep.errors import CheckpointError
from lockstep.experiment import transformer
from lockstep.runs import saved_config, shown
from lockstep.training.checkpoints import BEST, newest_checkpoint, read_checkpoint
from lockstep.training.conversion import AVERAGE, MODEL, saved_weights
from lockstep.transformer import Transformer


class Trained(NamedTuple):
    """A model on the CPU, in its run's precision, with its tokenizers and where it came from."""

    model: Transformer
    tokenizers: Tokenizers
    path: Path
    step: int


def load_trained(run: Path) -> Trained:
    """Load a run folder's best checkpoint, or its newest where it has not validated yet; or a checkpoint file.

    Raises:
        CheckpointError: there is no usable checkpoint, or its tokenizers are not with it.
        ConfigurationError: the run's attention cannot be made here.
    """
    best = run / "checkpoints" / BEST
    path = best if best.exists() else newest_checkpoint(run) if run.is_dir() else run
    checkpoint = read_checkpoint(path)
    tokenizers = _tokenizers(path, checkpoint["lockstep"]["tokenizers"])
    weights = saved_weights(checkpoint, AVERAGE) or saved_weights(checkpoint, MODEL)
    embedding, output = weights["source_embedding.weight"], weights["output.weight"]
    model = transformer(parse(TrainOptions, saved_config(checkpoint)), len(embedding), len(output))
    model.to(output.dtype).load_state_dict(weights)
    return Trained(model, tokenizers, path, int(checkpoint["global_step"]))


def _tokenizers(checkpoint: Path, fingerprint: str) -> Tokenizers:
    """Those saved in the checkpoint's run folder, or beside a checkpoint that was taken out of it."""
    names = ("source_tokenizer.json", "target_tokenizer.json")
    checkpoint = checkpoint.absolute()
    folder = next((f for f in checkpoint.parents[:2] if all((f / name).exists() for name in names)), None)
    if folder is None:
        raise CheckpointError(
            f"checkpoint {shown(checkpoint)} has no tokenizers: put {' and '.join(names)} of its run folder beside it"
        )
    try:
        tokenizers = Tokenizers(*(load_tokenizer(folder / name) for name in names))
    except Exception as error:  # the library raises nothing more definite
        raise CheckpointError(f"the tokenizers in {shown(folder)} cannot be read: {error}") from None
    if tokenizers.fingerprint() != fingerprint:
        raise CheckpointError(
            f"the tokenizers in {shown(folder)} are not those that {shown(checkpoint)} was trained with: its token "
            f"ids mean other texts. Put {' and '.join(names)} of its run folder beside it"
        )
    return tokenizers
