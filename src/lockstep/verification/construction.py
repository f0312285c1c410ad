"""First stage: sizes, and the constructor arguments that give a class these sizes, found by the names they bear."""

import contextlib
import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lockstep.verification.foreign import NoSuchArgument, Settings, resolve
from lockstep.verification.user_code import CannotTell

_NAMES = {
    "d_model": "d_model embed_dim embed_size embedding_dim embedding_size emb_dim emb_size embed emb hidden_size "
    "hidden_dim hid_dim d_hidden hidden dim dims n_embd n_embed d_embed model_dim dim_model model_size n_state n_feat "
    "num_hiddens n_hidden d_in d_out dim_in dim_out in_dim out_dim input_dim output_dim in_features out_features "
    "query_dim d units channels width size",
    "num_heads": "num_heads n_heads n_head nhead nheads heads head h num_head head_num heads_num heads_count "
    "num_attention_heads n_attention_heads attention_heads encoder_attention_heads decoder_attention_heads head_count "
    "num_key_value_heads num_kv_heads n_kv_heads",
    "head_dim": "head_dim head_size dim_head d_head d_k d_v d_q depth dim_k dim_v d_kv key_dim dim_per_head "
    "attention_head_size",
    "bias": "bias use_bias qkv_bias attention_bias",
    "dropout": "dropout dropout_rate dropout_prob dropout_p drop_prob drop_rate p_dropout attn_dropout attn_drop "
    "attn_pdrop attention_dropout resid_dropout resid_pdrop residual_dropout proj_drop attn_dropout_rate embd_pdrop "
    "attention_probs_dropout_prob hidden_dropout_prob dropout_ratio drop p",
}
_SYMBOL = {name: symbol for symbol, names in _NAMES.items() for name in names.split()}
_LENGTHS = (
    "block_size context_length context_size max_len max_length max_seq_len max_seq_length seq_len seq_length n_ctx "
    "n_positions max_position_embeddings maxlen num_positions ctx_len"
)
LENGTH = 256
_CONFIGS = {"config", "cfg", "conf", "args", "configuration", "hparams", "params", "model_args", "opt"}

D_MODEL, NUM_HEADS = 80, 5
"""Sizes where the class leaves them open: with B = 2, T_q = 7, T_k = 11 and head_dim = 16 no two are the same, and
the root of head_dim is exact, so that a scale kept in single precision is no difference."""
_WIDEST = 1024
UNREGISTERED = (
    "it has a weight of shape {} which is none of its parameters(), so that no checkpoint would hold it: a list of "
    "layers is an nn.ModuleList, a tensor an nn.Parameter"
)


@dataclass(frozen=True)
class Sizes:
    d_model: int
    num_heads: int

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    def values(self, bias: bool = True, dropout: float = 0.0) -> dict[str, Any]:
        """The words a constructor argument may be given as, and what they stand for."""
        return {
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "bias": bias,
            "dropout": dropout,
        }


class _Recording(Settings):
    """A configuration object that answers by the names it is asked for, and keeps what it answered."""

    def __init__(self, sizes: Sizes, given: Mapping[str, Any]) -> None:
        super().__init__(resolve(given, sizes.values()))
        self._answered = dict(given)
        self._values = sizes.values()
        self._unknown: list[str] = []

    def __missing__(self, name: str) -> Any:
        word = _word(name)
        if word is None:
            self._unknown.append(name)
            raise KeyError(name)
        self._answered[name] = word
        self[name] = self._values.get(word, word)
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


def _word(name: str) -> Any:
    """What to give for a constructor argument of this name, or None."""
    if name.lower() in _LENGTHS.split():
        return LENGTH
    if name.lower() in ("layer_idx", "layer_id", "layer_index"):
        return 0
    return "cpu" if name.lower() == "device" else _symbol(name)


def _symbol(name: str) -> str | None:
    """The size or switch that goes by this name; whatever has "drop" in it is a dropout."""
    return _SYMBOL.get(name.lower(), "dropout" if "drop" in name.lower() else None)


def signature(cls: type, method: str) -> dict[str, inspect.Parameter]:
    """The parameters of a method without ``self``; ``*args`` and ``**kwargs`` are those of the class it inherits."""
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if method in vars(base):
            own = list(inspect.signature(vars(base)[method]).parameters.values())[1:]
            found |= {p.name: p for p in own if p.name not in found and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
            if all(p.kind is not p.VAR_KEYWORD for p in own) or base is nn.Module:
                break
    return found


def construct(cls: type, given: Mapping[str, Any], num_heads: int | None) -> tuple[nn.Module, dict[str, Any], Sizes]:
    """An instance, the arguments that made it (as words where they depend on sizes), and its sizes.

    Raises:
        NoSuchArgument: one that is given does not exist.
        CannotTell: an argument cannot be guessed.
    """
    if not issubclass(cls, nn.Module):
        raise CannotTell(f"{cls.__name__} is not a torch.nn.Module")
    parameters = signature(cls, "__init__")
    open_ended = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())
    for name in given:
        if name not in parameters and not open_ended:
            nearest = get_close_matches(name, parameters, 1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise NoSuchArgument(
                f"option arguments.{name}: the constructor of {cls.__name__} has no such argument; it has "
                f"{', '.join(parameters) or 'none'}{hint}"
            )
    sizes = _stated_sizes(given, num_heads)
    arguments = {name: _as_word(name, value, sizes) for name, value in given.items()}
    actual = resolve(given, sizes.values())
    recordings: dict[str, _Recording] = {}
    unknown: list[str] = []
    for name, parameter in parameters.items():
        word = _word(name)
        config = _config(cls, name) if isinstance(given.get(name, {}), Mapping) else None
        if config is not None:
            arguments[name] = config | dict(arguments.get(name, {}))
            actual |= resolve({name: arguments[name]}, sizes.values())
        elif name in _CONFIGS and isinstance(given.get(name, {}), Mapping):
            actual[name] = recordings[name] = _Recording(sizes, given.get(name, {}))
        elif name in given:
            continue
        elif word is not None:
            arguments[name], actual[name] = word, sizes.values().get(word, word)
        elif parameter.default is parameter.empty:
            unknown.append(name)
    if unknown:
        names = " and ".join(map(repr, unknown))
        settle = " ".join(f"arguments.{name}=..." for name in unknown)
        raise CannotTell(
            f"of {cls.__name__} the constructor argument{'s' * (len(unknown) > 1)} {names} cannot be guessed by name; "
            f"settle with {settle}, a value or one of the words {', '.join(sizes.values())}"
        )
    try:
        module = cls(**actual)
    except (KeyError, AttributeError):
        unknown = [f"{name}.{asked}" for name, r in recordings.items() for asked in r._unknown]
        if not unknown:
            raise
        raise CannotTell(
            f"{cls.__name__} asks its configuration for {unknown[-1]!r}, which cannot be guessed from its name; "
            f"settle it with arguments.{unknown[-1]}=..."
        ) from None
    for name, recording in recordings.items():
        arguments[name] = recording._answered
    if not any(f"'{word}'" in str(arguments) for word in ("d_model", "num_heads", "head_dim")):
        sizes = replace(sizes, d_model=_width(module))
    return module, arguments, sizes


def _config(cls: type, name: str) -> dict[str, Any] | None:
    """What an argument is told that takes a configuration class: ``_class_``, and the words for its attributes.

    The class is the one that annotates the argument, or one that the class's own file knows, best of its name
    (``BertConfig`` for ``BertSelfAttention``), and has a width and a number of heads.
    """
    annotation = signature(cls, "__init__")[name].annotation
    beside = vars(sys.modules[cls.__module__]) if name in _CONFIGS else {}
    kin = [of for known, of in beside.items() if known.endswith("Config") and isinstance(of, type)]
    kin.sort(key=lambda of: not cls.__name__.startswith(of.__name__.removesuffix("Config")))
    for config in (annotation, *get_args(annotation), *kin):
        if isinstance(config, type) and (config.__name__.endswith("Config") or is_dataclass(config)):
            with contextlib.suppress(Exception):
                attributes = vars(config())
                words = {
                    name: word
                    for name, value in attributes.items()
                    if (word := _symbol(name)) is not None and isinstance(value, bool) <= (word == "bias")
                }
                if not {"d_model", "num_heads"} <= set(words.values()):
                    continue
                eager = {"_attn_implementation": "eager"} if hasattr(config, "_attn_implementation") else {}
                return {"_class_": f"{config.__module__}:{config.__name__}"} | words | eager
    return None


def _width(module: nn.Module) -> int:
    """The width of a class whose constructor does not ask for it: the commonest extent of its matrices."""
    extents = Counter(extent for p in module.parameters() if p.dim() > 1 for extent in p.shape)
    return extents.most_common(1)[0][0] if extents else D_MODEL


def other_heads(sizes: Sizes) -> list[Sizes]:
    """The other numbers of heads that the width can have, the commonest first."""
    known = (8, 4, 12, 16, 1, 2, 6)
    return [Sizes(sizes.d_model, heads) for heads in known if sizes.d_model % heads == 0 and heads != sizes.num_heads]


def _stated_sizes(given: Mapping[str, Any], num_heads: int | None) -> Sizes:
    """The sizes stated among the arguments, ours for those that are not."""
    flat = {**given, **{k: v for c in given.values() if isinstance(c, Mapping) for k, v in c.items()}}
    stated = {_word(name): value for name, value in flat.items() if isinstance(value, int)}
    heads = num_heads or stated.get("num_heads") or NUM_HEADS
    d_model = stated.get("d_model") or heads * stated.get("head_dim", D_MODEL // NUM_HEADS)
    return _checked(d_model, heads)


def sizes_of(module: nn.Module, num_heads: int | None) -> Sizes:
    """The sizes of a module that is already constructed, by the names of its attributes.

    Raises:
        CannotTell: it has no such attribute.
    """
    found: dict[str, int] = {}
    for name, value in vars(module).items():
        word = _symbol(name)
        if isinstance(value, int) and not isinstance(value, bool) and word is not None:
            found.setdefault(word, value)
    heads = num_heads or found.get("num_heads")
    if heads is None:
        raise CannotTell("the module does not say how many heads it has; settle it with conventions.num_heads=...")
    d_model = found.get("d_model") or heads * found.get("head_dim", 0)
    if not d_model:
        raise CannotTell("the module does not say how wide it is; pass its class, with arguments.<width>=...")
    return _checked(d_model, heads)


def refuse_unregistered(module: nn.Module) -> None:
    """Weights in plain lists, and plain tensors, are none of the parameters.

    Raises:
        CannotTell: there is one.
    """
    own = {id(parameter) for parameter in module.parameters()}

    def weights(value: Any) -> Iterator[Tensor]:
        if isinstance(value, list | tuple | dict):
            for each in value.values() if isinstance(value, dict) else value:
                yield from weights(each)
        elif isinstance(value, nn.Module):
            yield from value.parameters()
        elif isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
            yield value

    for part in module.modules():
        for weight in weights([value for name, value in vars(part).items() if name != "_buffers"]):
            if id(weight) not in own:
                raise CannotTell(UNREGISTERED.format(tuple(weight.shape)))


def _checked(d_model: int, num_heads: int) -> Sizes:
    if not (num_heads > 0 and 0 < d_model <= _WIDEST):
        raise CannotTell(
            f"a width of {d_model} with {num_heads} heads: state sizes up to {_WIDEST} by arguments; more take hours"
        )
    if d_model % num_heads:
        raise CannotTell(f"the width {d_model} is not divisible by {num_heads} heads; state both by arguments")
    if d_model // num_heads < 4:
        raise CannotTell(f"a head dimension of {d_model // num_heads} is too small to tell weights from biases")
    return Sizes(d_model, num_heads)


def _as_word(name: str, value: Any, sizes: Sizes) -> Any:
    """A stated size as the word it stands for, so that the saved class can take other sizes."""
    if isinstance(value, Mapping):
        return {key: _as_word(key, entry, sizes) for key, entry in value.items()}
    word = _symbol(name)
    if word in ("d_model", "num_heads", "head_dim") and value == sizes.values()[word]:
        return word
    return value


class WithoutDropout(TorchFunctionMode):
    """Nothing is dropped, at whatever rate: for rates that no attribute tells."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (F.dropout, torch.dropout):
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            args, kwargs = (
                (*args[:4], *((0.0,) if len(args) > 4 else ()), *args[5:]),
                kwargs | ({} if len(args) > 4 else {"dropout_p": 0.0}),
            )
        return func(*args, **kwargs)


def set_dropout(module: nn.Module, p: float) -> int:
    """Set every dropout probability, of layers and of attributes named as such; returns how many there are."""
    count = 0
    for part in module.modules():
        for name, value in list(vars(part).items()):
            is_layer = isinstance(part, nn.modules.dropout._DropoutNd) or "Dropout" in type(part).__name__
            named = _symbol(name) == "dropout" and (name != "p" or is_layer)
            if named and isinstance(value, float | int) and not isinstance(value, bool):
                setattr(part, name, p)
                count += 1
    return count
