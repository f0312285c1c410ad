"""A trained model, as its run left it: the weights of a checkpoint, and the tokenizers they belong to."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.base.errors import CheckpointError
from lockstep.commands.building import transformer
from lockstep.commands.options import ConfigurationError, ModelOptions, parse
from lockstep.commands.run_folder import saved_config, shown
from lockstep.commands.trust import is_known, refuse_unknown
from lockstep.data.tokenization import Tokenizers, load_tokenizer
from lockstep.training.checkpoints import BEST, Checkpoint, newest_checkpoint, read_checkpoint
from lockstep.training.conversion import AVERAGE, MODEL, saved_weights
from lockstep.transformer import Transformer

PRECISIONS = (torch.float32, torch.float64, torch.bfloat16)  # that weights are stored in


class Trained(NamedTuple):
    """A model on the CPU, in its run's precision, with its tokenizers and where it came from."""

    model: Transformer
    tokenizers: Tokenizers
    path: Path
    step: int


def load_trained(run: Path, trust: bool = False) -> Trained:
    """Load a run folder's best checkpoint, or its newest where it has not validated yet; or a checkpoint file.

    Args:
        run: the folder or the file.
        trust: whatever class it names as its attention may be run.

    Raises:
        CheckpointError: there is no usable checkpoint, or its tokenizers are not with it, or its attention is not
            trusted or cannot be made here.
    """
    best = run / "checkpoints" / BEST
    path = best if best.exists() else newest_checkpoint(run) if run.is_dir() else run
    checkpoint = read_checkpoint(path)
    if not trust:
        refuse_unknown(saved_config(checkpoint), ["attention"], f"checkpoint {shown(path)}", "say trust=true")
    model = described_model(checkpoint, path)
    weights = saved_weights(checkpoint, AVERAGE) or saved_weights(checkpoint, MODEL)
    try:
        model.to(weights["output.weight"].dtype).load_state_dict(weights)
    except RuntimeError as error:
        problem = " ".join(str(error).split())[:300]
        raise CheckpointError(f"checkpoint {shown(path)} holds other weights than its attention: {problem}") from None
    tokenizers = _tokenizers(path, checkpoint["lockstep"]["tokenizers"], weights)
    return Trained(model, tokenizers, path, int(checkpoint["global_step"]))


def described_model(checkpoint: Checkpoint, path: Path) -> Transformer:
    """The model that a checkpoint describes, without its weights; its attention must have been judged before.

    Raises:
        CheckpointError: it cannot be made here, or the checkpoint's weights are not those of such a model.
    """
    check_weights(checkpoint, path)
    config, weights = saved_config(checkpoint), saved_weights(checkpoint, MODEL)
    try:
        return transformer(config["attention"], parse(ModelOptions, config["model"], "model."), *_sizes(weights))
    except ConfigurationError as error:
        raise CheckpointError(f"checkpoint {shown(path)} cannot be used: {error}") from error


def check_weights(checkpoint: Checkpoint, path: Path) -> None:
    """Compare the weights of a checkpoint with its configuration before anything is made as large as that says.

    Raises:
        CheckpointError: names or shapes are others, or a weight is not finite.
    """
    try:
        _compare(checkpoint)
    except _Other as problem:
        raise CheckpointError(f"checkpoint {shown(path)} {problem}") from None
    except ConfigurationError as error:
        raise CheckpointError(f"checkpoint {shown(path)} cannot be used: {error}") from None


class _Other(Exception):
    """How weights and configuration differ, as the end of a sentence."""


def _compare(checkpoint: Checkpoint) -> None:
    config = saved_config(checkpoint)
    if not isinstance(config.get("model"), Mapping):
        raise _Other("says nothing of its model")
    model = parse(ModelOptions, config["model"], "model.")
    models = {prefix: weights for prefix in (MODEL, AVERAGE) if (weights := saved_weights(checkpoint, prefix))}
    if MODEL not in models or sum(map(len, models.values())) != len(checkpoint["state_dict"]):
        raise _Other("holds the weights of something else than this model")
    for weights in models.values():
        _sizes(weights)
        for name, tensor in weights.items():
            if tensor.dtype not in PRECISIONS or not tensor.isfinite().all():
                raise _Other(f"has weights that are no finite numbers, in {name[:100]!r}: its training went wrong")
        # A projection of D x D is the least that attention has; so no list of heads is longer than the file.
        if model.d_model**2 > sum(tensor.numel() for tensor in weights.values()):
            raise _Other(f"is too small for its model.d_model={model.d_model}")
        if is_known(config.get("attention")):
            found = 0
            for name, shape in _shapes(config["attention"], model, weights):
                if name not in weights or weights[name].shape != shape:
                    said = f"is {tuple(weights[name].shape)}" if name in weights else "is missing"
                    raise _Other(
                        f"holds other weights than its options say: {name} should be {tuple(shape)}, and {said}"
                    )
                found += 1
            if found < len(weights):
                raise _Other(f"holds {len(weights) - found} weights more than its options say")


def _shapes(
    attention: Mapping[str, Any], options: ModelOptions, weights: Mapping[str, Tensor]
) -> Iterator[tuple[str, torch.Size]]:
    """Name by name, without memory: however many layers the options ask for, one of each kind is made."""
    layers = {"encoder": options.encoder_layers, "decoder": options.decoder_layers}
    with torch.device("meta"):
        model = transformer(attention, replace(options, encoder_layers=1, decoder_layers=1), *_sizes(weights))
    for name, tensor in model.state_dict().items():
        stack, first, rest = name.partition(".0.")
        if first and stack in layers:
            yield from ((f"{stack}.{number}.{rest}", tensor.shape) for number in range(layers[stack]))
        else:
            yield name, tensor.shape


def _sizes(weights: Mapping[str, Tensor]) -> tuple[int, int]:
    """Of the source and the target vocabulary."""
    source, target = (weights.get(name) for name in ("source_embedding.weight", "output.weight"))
    if source is None or target is None or not source.dim() or not target.dim():
        raise _Other("holds no embedding of its vocabulary")
    return len(source), len(target)


def _tokenizers(checkpoint: Path, fingerprint: str, weights: Mapping[str, Tensor]) -> Tokenizers:
    """Those saved in the checkpoint's run folder, or beside a checkpoint that was taken out of it."""
    names = ("source_tokenizer.json", "target_tokenizer.json")
    checkpoint = checkpoint.absolute()
    folder = next((f for f in checkpoint.parents[:2] if all((f / name).is_file() for name in names)), None)
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
    for size, tokenizer in zip(_sizes(weights), (tokenizers.source, tokenizers.target), strict=True):
        if max(tokenizer.get_vocab().values(), default=0) >= size:
            raise CheckpointError(f"the tokenizers in {shown(folder)} have more tokens than {shown(checkpoint)}")
    return tokenizers
