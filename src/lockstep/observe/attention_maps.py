"""What every head attends to, as pictures.

Shapes: L layers, H heads, T_q and T_k query and key length.
"""

import inspect
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from matplotlib import get_data_path
from matplotlib.font_manager import findSystemFonts
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from tokenizers import Tokenizer
from tokenizers.models import BPE
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lockstep.attention import MultiHeadAttention
from lockstep.base.terminal import printable
from lockstep.data.batching import Batch
from lockstep.data.tokenization import REPLACEMENT, token_bytes
from lockstep.transformer import Transformer

logger = logging.getLogger("lockstep")

CELL = 14  # pixels to a weight
GAP = 10  # pixels between panels
# What a picture may hold, so that it can be drawn and looked at: tokens of a side, pixels of all panels together, and
# characters of a label.
MOST_TOKENS, MOST_PIXELS, MOST_CHARACTERS = 100, 25_000_000, 24
# Anchors of a dark-to-bright colour scale, equally spaced from weight 0 to weight 1.
COLOURS = np.array([(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)])


@torch.no_grad()
def attention_maps(model: Transformer, batch: Batch) -> dict[str, Tensor]:
    """Attention weights of one example, by kind: "encoder", "decoder" and "cross", each (L, H, T_q, T_k).

    The decoder reads the given target. Of either side no more tokens are shown than a picture holds: the first 100,
    or fewer where there are many layers and heads. The model's mode is restored; nothing is drawn at random.
    """
    maps: dict[str, list[Tensor]] = {}

    def watch(kind: str, layers: nn.ModuleList, part: str) -> list[RemovableHandle]:
        def before(module: MultiHeadAttention, args: Any, kwargs: Any) -> None:
            # By the contract's names: a variant may name what it takes otherwise.
            call = inspect.signature(MultiHeadAttention.forward).bind(module, *args, **kwargs)
            call.apply_defaults()
            seen = {name: call.arguments[name] for name in ("query", "key", "mask", "is_causal")}
            weights = module.attention_weights(**seen)[0]
            most = max(1, min(MOST_TOKENS, int((MOST_PIXELS / (len(layers) * len(weights))) ** 0.5 / CELL)))
            maps.setdefault(kind, []).append(weights[:, :most, :most].clone())

        return [getattr(layer, part).register_forward_pre_hook(before, with_kwargs=True) for layer in layers]

    hooks = watch("encoder", model.encoder, "self_attention") + watch("decoder", model.decoder, "self_attention")
    hooks += watch("cross", model.decoder, "cross_attention")
    was_training = model.training
    try:
        model.eval()
        model(batch.source, batch.source_mask, batch.prefix)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return {kind: torch.stack(layers) for kind, layers in maps.items()}


def draw_attention(weights: Tensor, queries: Sequence[str], keys: Sequence[str]) -> NDArray[np.uint8]:
    """One panel for each layer (downwards) and head (across): queries down, keys across, colours fixed from 0 to 1.

    Args:
        weights: (L, H, T_q, T_k).
        queries: at least T_q labels.
        keys: at least T_k labels.

    Returns:
        An image (height, width, 3).
    """
    layers, heads, T_q, T_k = weights.shape
    queries, keys = (
        [label if len(label) <= MOST_CHARACTERS else f"{label[: MOST_CHARACTERS - 1]}…" for label in labels]
        for labels in (queries[:T_q], keys[:T_k])
    )
    left, top = _label_width(queries), _label_width(keys) + CELL
    image = Image.new("RGB", (left + heads * (T_k * CELL + GAP), layers * (top + T_q * CELL + GAP)), "white")
    values = weights.detach().float().cpu().numpy()
    scale = np.linspace(0, 1, len(COLOURS))
    colours = np.stack([np.interp(values, scale, COLOURS[:, c]) for c in range(3)], axis=-1).round().astype(np.uint8)
    row_labels, column_labels = _labels(queries, left), _labels(keys, top - CELL).rotate(90, expand=True)
    draw = ImageDraw.Draw(image)
    for layer in range(layers):
        y = layer * (top + T_q * CELL + GAP)
        image.paste(row_labels, (0, y + top))
        for head in range(heads):
            x = left + head * (T_k * CELL + GAP)
            draw.text((x, y + 1), _title(layer + 1, head + 1, T_k * CELL), fill="black", font=_font())
            # The labels were written downwards; rotated, they run bottom to top and left to right.
            image.paste(column_labels, (x, y + CELL))
            panel = Image.fromarray(colours[layer, head]).resize((T_k * CELL, T_q * CELL), Image.Resampling.NEAREST)
            image.paste(panel, (x, y + top))
    return np.asarray(image)


def _title(layer: int, head: int, width: int) -> str:
    """The longest of its forms that fits above a panel."""
    forms = f"layer {layer}, head {head}", f"l. {layer}, h. {head}"
    return next((form for form in forms if _font().getlength(form) <= width), f"{layer}.{head}")


# The font that comes with matplotlib: Pillow's own has hardly a letter beyond ASCII.
DEJAVU = Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"


@cache
def _font(path: Path = DEJAVU) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, size=10)


@cache
def _letters(path: Path) -> frozenset[str]:
    """The characters that a font has."""
    with suppress(RuntimeError, OSError):  # what FreeType or Pillow cannot draw in this size
        _font(path)
        return frozenset(map(chr, FT2Font(str(path)).get_charmap()))
    return frozenset()


@cache
def _font_of(text: str) -> ImageFont.FreeTypeFont:
    """A font that has all letters of a text; the usual one where there is none, which the log says."""
    if _letters(DEJAVU).issuperset(text):
        return _font()
    best = max([DEJAVU, *sorted(map(Path, findSystemFonts()))], key=lambda path: len(_letters(path).intersection(text)))
    if not _letters(best).issuperset(text):
        _say_missing()
    return _font(best)


@cache
def _say_missing() -> None:
    """Once: a machine without a font for one token has none for the next."""
    logger.warning(
        "pictures of attention show boxes: no font of this machine has the letters of all tokens; there are fonts for "
        "all scripts, such as Noto Sans CJK (on Debian and Ubuntu fonts-noto-cjk)"
    )


def _label_width(labels: Sequence[str]) -> int:
    return 8 + max(int(_font_of(label).getlength(label)) for label in labels)


def token_labels(tokenizer: Tokenizer, ids: Tensor) -> list[str]:
    """Each token by itself in one line, special ones too; a part of a character as its bytes, such as <e4 bd>."""
    labels = []
    for index in ids.tolist():
        text = tokenizer.decode([index], skip_special_tokens=False)
        if REPLACEMENT in text and isinstance(tokenizer.model, BPE):
            labels.append(f"<{token_bytes(tokenizer, index).hex(' ')}>")
        else:
            labels.append(printable(text).replace("\n", "\\n"))
    return labels


def _labels(labels: Sequence[str], width: int) -> Image.Image:
    """A column of right-aligned labels, a cell apart."""
    image = Image.new("RGB", (width, len(labels) * CELL), "white")
    draw = ImageDraw.Draw(image)
    for index, label in enumerate(labels):
        draw.text((width - 4, index * CELL + CELL / 2), label, fill="black", font=_font_of(label), anchor="rm")
    return image


class AttentionMaps(L.Callback):
    """Draws the heads of one validation example to TensorBoard, before training and every ``every_n_steps``."""

    def __init__(
        self, example: Batch, source_tokens: Sequence[str], target_tokens: Sequence[str], every_n_steps: int
    ) -> None:
        self._example = example
        self._source = source_tokens
        self._prefix = target_tokens[:-1]
        self._every = every_n_steps
        self._drawn_at = -1

    def state_dict(self) -> dict[str, Any]:
        return {"drawn_at": self._drawn_at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._drawn_at = state_dict["drawn_at"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step == 0:
            self._draw(trainer, pl_module)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if trainer.global_step % self._every == 0:
            self._draw(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._draw(trainer, pl_module)

    def _draw(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step == self._drawn_at:  # an accumulated batch, or the end of training
            return
        self._drawn_at = trainer.global_step
        writer = trainer.logger.experiment  # type: ignore[union-attr]
        example = Batch(*(x.to(pl_module.device) for x in self._example))
        axes = {
            "encoder": (self._source, self._source),
            "decoder": (self._prefix, self._prefix),
            "cross": (self._prefix, self._source),
        }
        for kind, weights in attention_maps(pl_module.evaluated, example).items():  # type: ignore[arg-type]
            tokens = [len(labels) for labels in axes[kind]]
            if trainer.global_step == 0 and tokens != [*weights.shape[2:]]:
                shown = "pictures attention/%s show the first %d of %d queries and %d of %d keys"
                logger.info(shown, kind, weights.size(2), tokens[0], weights.size(3), tokens[1])
            image = draw_attention(weights, *axes[kind])
            writer.add_image(f"attention/{kind}", image, trainer.global_step, dataformats="HWC")
