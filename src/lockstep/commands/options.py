"""What a configuration may say: the options of a run, and the check of any node against what it configures.

Numbers and choices are in ``conf/``; here are only names, types and ranges. Pydantic judges the values.
"""

import dataclasses
import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from annotated_types import Ge, Gt, Lt
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from lockstep.attention import Arithmetic
from lockstep.base.errors import ConfigurationError as ConfigurationError
from lockstep.base.hints import as_argument as as_argument
from lockstep.base.hints import meant
from lockstep.base.hints import nearest as nearest
from lockstep.observe.segmentation import BleuTokenizer
from lockstep.training.schedules import ScheduleName
from lockstep.transformer.layers import Activation, Norm
from lockstep.transformer.model import TiedEmbeddings
from lockstep.transformer.search import SearchOptions

logger = logging.getLogger("lockstep")

Positive = Annotated[int, Ge(1), Lt(2**31)]  # what sizes and counts fit in, everywhere
Count = Annotated[int, Ge(0), Lt(2**31)]
Probability = Annotated[float, Ge(0), Lt(1)]
Node = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class ModelOptions:
    d_model: Positive
    num_heads: Positive
    encoder_layers: Positive
    decoder_layers: Positive
    d_ff: Positive
    bias: bool
    dropout: Probability
    attention_dropout: Probability
    activation: Activation
    norm: Norm
    tied_embeddings: TiedEmbeddings
    residual_gain: Annotated[float, Gt(0)]


@dataclass(frozen=True)
class ScheduleOptions:
    name: ScheduleName
    warmup_steps: Count


@dataclass(frozen=True)
class TrainerOptions:
    """Options of Lightning's Trainer, under its own names."""

    max_steps: Positive
    accelerator: Literal["auto", "cpu", "gpu"]
    precision: Literal["32-true", "64-true", "bf16-true", "bf16-mixed", "16-mixed"]
    gradient_clip_val: Annotated[float, Gt(0)] | None
    accumulate_grad_batches: Positive
    val_check_interval: Positive
    log_every_n_steps: Positive


@dataclass(frozen=True)
class ScoresOptions:
    tokenizer: BleuTokenizer | None


@dataclass(frozen=True)
class TrainOptions:
    """Everything ``scripts/train.py`` can be told."""

    seed: Annotated[int, Ge(0), Lt(2**32)]  # what numpy takes
    arithmetic: Arithmetic
    attention: dict[str, Any]
    data: dict[str, Any]
    batch_tokens: Positive
    length_jitter: Count
    model: ModelOptions
    optimizer: dict[str, Any]
    schedule: ScheduleOptions
    label_smoothing: Probability
    average_decay: Probability | None
    stop_at_exact_match: Annotated[float, Gt(0)] | None
    patience: Positive | None
    search: SearchOptions
    scores: ScoresOptions
    attention_maps_every: Count
    checkpoint_every: Positive
    trainer: TrainerOptions
    output: str
    name: str
    resume: str | None
    trust: bool

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^/\0]+", self.name):
            raise ValueError(f"name={self.name!r} must be the name of a folder, and no path: that is option output")


@dataclass(frozen=True)
class ConvertOptions:
    """Everything ``scripts/convert.py`` can be told."""

    checkpoint: str
    attention: dict[str, Any]
    arithmetic: Arithmetic
    output: str
    overwrite: bool
    trust: bool


@dataclass(frozen=True)
class TranslateOptions:
    """Everything ``scripts/translate.py`` can be told."""

    checkpoint: str
    search: SearchOptions
    batch_tokens: Positive
    cached: bool
    picture: str | None
    trust: bool


def parse(cls: type[T], node: Node, path: str = "") -> T:
    """Make a dataclass of options, nested ones included, from plain values.

    Raises:
        ConfigurationError: an unknown, missing or ill-typed option, or one that the dataclass itself refuses.
    """
    nested = {f.name: f.type for f in dataclasses.fields(cls) if dataclasses.is_dataclass(f.type)}  # type: ignore[arg-type]
    values = check_arguments(cls, _mapping(node, path.rstrip(".")), path)
    for name, child in nested.items():
        values[name] = parse(child, values[name], f"{path}{name}.")  # type: ignore[arg-type]
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigurationError(f"option {path}{error}") from None


def say_doubts(options: TrainOptions) -> None:
    """Say what is allowed and hardly meant."""
    warmup, steps = options.schedule.warmup_steps, options.trainer.max_steps
    if warmup > steps:
        logger.warning("schedule.warmup_steps=%d is over trainer.max_steps=%d: the rate never peaks", warmup, steps)


def check_arguments(target: Callable[..., Any], node: Node, path: str, positional: int = 0) -> dict[str, Any]:
    """Check a node's values as keyword arguments of ``target``, by its signature and type hints.

    Args:
        target: a class or function.
        node: keyword arguments; a ``_target_`` among them is left out.
        path: the node's place in the configuration, ending in a dot, for messages.
        positional: how many leading parameters the caller supplies itself.

    Raises:
        ConfigurationError: an unknown, missing or ill-typed argument.
    """
    try:
        found = list(inspect.signature(target).parameters.values())
    except ValueError:  # of some built-in classes
        raise ConfigurationError(
            f"option {path}_target_={node.get('_target_')} is not meant to be configured"
        ) from None
    # Of a constructor (*sizes, **options) nothing is positional but a part of its first.
    parameters = [p for i, p in enumerate(found) if i >= positional or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    known = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    values = {key: value for key, value in _mapping(node, path.rstrip(".")).items() if key != "_target_"}
    for key in values:
        if key not in known and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise ConfigurationError(
                f"unknown option {path}{key}{meant(f'{path}{key}', [f'{path}{name}' for name in known])}"
            )
    for key, parameter in known.items():
        if key not in values and parameter.default is parameter.empty:
            raise ConfigurationError(f"option {path}{key} is missing")
    try:
        hints = get_type_hints(_signature_owner(target), include_extras=True)
    except NameError:  # a user's annotations may name what is imported for type checkers only
        hints = {}
    return {key: _checked(value, hints.get(key, Any), f"{path}{key}") for key, value in values.items()}


def _signature_owner(target: Callable[..., Any]) -> Any:
    """Where the annotations of a class's constructor stand: in ``__init__``, whichever ancestor wrote it."""
    return getattr(target, "__init__") if isinstance(target, type) else target  # noqa: B009


def _checked(value: Any, annotation: Any, name: str) -> Any:
    if dataclasses.is_dataclass(annotation):
        return value
    if isinstance(value, list):  # YAML has no tuples
        value = tuple(value)
    try:
        adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticSchemaGenerationError:
        return value
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        reasons = {_reason(e["type"], e["msg"]) for e in error.errors() if e["type"] != "is_instance_of"}
        raise ConfigurationError(f"option {name}={_shown(value)}: {', or '.join(sorted(reasons))}") from None


def _reason(kind: str, message: str) -> str:
    """What pydantic found, said of a value in YAML."""
    return _REASONS.get(kind) or re.sub("^input should be ", "must be ", message[0].lower() + message[1:])


def _shown(value: Any) -> str:
    """A value as YAML and the command line write it."""
    if isinstance(value, tuple | list):
        return f"[{','.join(map(_shown, value))}]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


# By pydantic's types of errors, whose own words are of Python.
_REASONS = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "none_required": "must be null",
    "dict_type": "must hold options of its own",
    "tuple_type": "must be a list, as in [a,b]",
    "list_type": "must be a list, as in [a,b]",
    "missing": "has too few entries",
    "too_long": "has too many entries",
    "finite_number": "must be finite",
}


def _mapping(value: Any, name: str) -> Node:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"option {name} holds options of its own, it cannot be {_shown(value)}")
    return value
