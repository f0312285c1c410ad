"""From options to what a run is made of: data, model, optimiser; every argument is checked before a class is called."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lockstep.attention import MultiHeadAttention
from lockstep.base.errors import AttentionError
from lockstep.commands.options import ConfigurationError, ModelOptions, Node, TrainOptions, check_arguments
from lockstep.commands.targets import attention_class, locate
from lockstep.data.datamodule import DataModule
from lockstep.training.module import TranslationModule
from lockstep.training.schedules import schedule
from lockstep.transformer import Transformer
from lockstep.transformer.initialization import initialize
from lockstep.verification.trial import ContractError, try_out


def attention_factory(attention: Node, model: ModelOptions) -> Callable[[], MultiHeadAttention]:
    """Makes one attention module of the model's size; its arguments are checked here, once."""
    cls = attention_class(attention, "attention")
    arguments = check_arguments(
        cls, {**attention, "bias": model.bias, "dropout": model.attention_dropout}, "attention.", positional=2
    )
    return lambda: cls(model.d_model, model.num_heads, **arguments)


def try_attention(attention: Node, model: ModelOptions, *, masks: bool = True) -> None:
    """Refuse, before any work, an attention that no model can be made of (see :func:`try_out`).

    Raises:
        ConfigurationError: what it refuses, in one line.
        AttentionError: what it does.
    """
    try:
        try_out(attention_factory(attention, model), masks=masks)
    except ContractError as error:
        name = attention.get("target", attention["_target_"])
        raise AttentionError(f"option attention: {name} cannot serve: {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"model: {error}") from error


def build_data(options: TrainOptions) -> DataModule:
    """The task's data, tokenised."""
    make_task = locate(options.data, "data")
    if not (isinstance(make_task, type) and all(hasattr(make_task, method) for method in ("splits", "prepare"))):
        raise ConfigurationError(
            f"option data._target_={options.data['_target_']} is not a task: a class with splits and prepare, as "
            "lockstep.data.datamodule.Task has them"
        )
    arguments = check_arguments(make_task, options.data, "data.")
    batches = {"batch_tokens": options.batch_tokens, "length_jitter": options.length_jitter}
    try:
        return DataModule(make_task(**arguments), **batches, seed=options.seed)
    except ValueError as error:
        raise ConfigurationError(f"data: {error}") from error


def build_model(options: TrainOptions, data: DataModule) -> Transformer:
    """The model, initialised from the run's seed."""
    if options.model.tied_embeddings == "all" and not data.tokenizers.joint:
        # Two vocabularies may well be of one size; their ids mean other texts all the same.
        raise ConfigurationError(
            "option model.tied_embeddings=all takes one vocabulary for both sides: data.joint_vocabulary=true; where "
            "each side has its own, model.tied_embeddings=output or none"
        )
    sizes = (side.get_vocab_size() for side in (data.tokenizers.source, data.tokenizers.target))
    model = transformer(options.attention, options.model, *sizes)
    initialize(model, options.seed)
    return model


def transformer(attention: Node, model: ModelOptions, source_vocabulary: int, target_vocabulary: int) -> Transformer:
    """The model without its initial weights."""
    sizes = asdict(model)
    for name in ("num_heads", "bias", "attention_dropout"):  # the attention's own
        del sizes[name]
    try:
        return Transformer(attention_factory(attention, model), source_vocabulary, target_vocabulary, **sizes)
    except ValueError as error:
        raise ConfigurationError(f"model: {error}") from error


def optimizer_factory(options: TrainOptions) -> Callable[[Any], Optimizer]:
    """Makes the optimiser of named parameters or parameter groups; its arguments are checked here, once."""
    cls = locate(options.optimizer, "optimizer")
    if not (isinstance(cls, type) and issubclass(cls, Optimizer)):
        raise ConfigurationError(
            f"option optimizer._target_={options.optimizer['_target_']} is not a torch.optim.Optimizer"
        )
    arguments = check_arguments(cls, options.optimizer, "optimizer.", positional=1)
    return lambda parameters: cls(parameters, **arguments)


def build_module(options: TrainOptions, model: Transformer, natural_language: bool = False) -> TranslationModule:
    """The model with its loss and optimiser."""
    optimizer = optimizer_factory(options)
    if options.average_decay is not None and options.trainer.precision == "bf16-true":
        raise ConfigurationError(
            "option average_decay: an average in bfloat16 stands still; trainer.precision=bf16-mixed keeps float32"
        )
    _try(optimizer)
    factor = schedule(options.schedule.name, options.schedule.warmup_steps, options.trainer.max_steps)
    return TranslationModule(
        model,
        optimizer,
        factor,
        options.label_smoothing,
        average_decay=options.average_decay,
        natural_language=natural_language,
    )


def _try(optimizer: Callable[[Any], Optimizer]) -> None:
    """Refuse an optimiser that cannot be made, or takes no step on a vector and a matrix with dense gradients."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((2,), (2, 2))]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer(parameters).step(lambda: torch.zeros(()))  # type: ignore[arg-type, return-value]
    except (ValueError, RuntimeError, TypeError) as error:
        raise ConfigurationError(f"optimizer: {str(error).splitlines()[0]}") from error
