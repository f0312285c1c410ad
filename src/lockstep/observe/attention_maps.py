"""What every head attends to, as pictures.

Shapes: L layers, H heads, T_q and T_k query and key length.
"""

import inspect
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from matplotlib import get_data_path
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from tokenizers import Tokenizer
from torch import Tensor, nn

from lockstep.attention import MultiHeadAttention
from lockstep.data.batching import Batch
from lockstep.transformer import Transformer

CELL = 14  # pixels to a weight
GAP = 10  # pixels between panels
# Anchors of a dark-to-bright colour scale, equally spaced from weight 0 to weight 1.
COLOURS = np.array([(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)])


@torch.no_grad()
def attention_maps(model: Transformer, batch: Batch) -> dict[str, Tensor]:
    """Attention weights of one example, by kind: "encoder", "decoder" and "cross", each (L, H, T_q, T_k).

    The decoder reads the given target. The model's mode is restored; nothing is drawn at random.
    """
    maps: dict[str, list[Tensor]] = {"encoder": [], "decoder": [], "cross": []}

    def watch(kind: str, attention: nn.Module) -> Any:
        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            call = inspect.signature(module.forward).bind(*args, **kwargs)
            call.apply_defaults()
            seen = {name: call.arguments[name] for name in ("query", "key", "mask", "is_causal")}
            assert isinstance(module, MultiHeadAttention)
            maps[kind].append(module.attention_weights(**seen)[0])

        return attention.register_forward_pre_hook(before, with_kwargs=True)

    hooks = [watch("encoder", layer.self_attention) for layer in model.encoder]  # type: ignore[arg-type]
    hooks += [watch("decoder", layer.self_attention) for layer in model.decoder]  # type: ignore[arg-type]
    hooks += [watch("cross", layer.cross_attention) for layer in model.decoder]  # type: ignore[arg-type]
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
        queries: T_q labels.
        keys: T_k labels.

    Returns:
        An image (height, width, 3).
    """
    layers, heads, T_q, T_k = weights.shape
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
            draw.text((x, y + 1), f"layer {layer + 1}, head {head + 1}"[: T_k * 2], fill="black", font=_font())
            # The labels were written downwards; rotated, they run bottom to top and left to right.
            image.paste(column_labels, (x, y + CELL))
            panel = Image.fromarray(colours[layer, head]).resize((T_k * CELL, T_q * CELL), Image.Resampling.NEAREST)
            image.paste(panel, (x, y + top))
    return np.asarray(image)


@cache
def _font() -> ImageFont.FreeTypeFont:
    """The font that comes with matplotlib: Pillow's own has hardly a letter beyond ASCII."""
    return ImageFont.truetype(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size=10)


def _label_width(labels: Sequence[str]) -> int:
    return 8 + max(int(_font().getlength(label)) for label in labels)


def token_labels(tokenizer: Tokenizer, ids: Tensor) -> list[str]:
    """Each token by itself, special ones too."""
    return [tokenizer.decode([index], skip_special_tokens=False) for index in ids.tolist()]


def _labels(labels: Sequence[str], width: int) -> Image.Image:
    """A column of right-aligned labels, a cell apart."""
    image = Image.new("RGB", (width, len(labels) * CELL), "white")
    draw = ImageDraw.Draw(image)
    for index, label in enumerate(labels):
        draw.text((width - 4, index * CELL + CELL / 2), label, fill="black", font=_font(), anchor="rm")
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

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
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
        for kind, weights in attention_maps(pl_module.judged, example).items():  # type: ignore[arg-type]
            image = draw_attention(weights, *axes[kind])
            writer.add_image(f"attention/{kind}", image, trainer.global_step, dataformats="HWC")
