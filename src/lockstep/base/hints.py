"""What was probably meant, and how it is typed. Imports nothing slow."""

import difflib
import re
import shlex
from collections.abc import Iterable

# What other tools, and habits, call an option; the first that the command has is meant.
MEANT = {
    "attention": ["compare.variants", "variants"],
    "variants": ["compare.variants", "attention"],
    "experiment": ["comparison"],
    "comparison": ["experiment"],
    "lr": ["optimizer.lr"],
    "learning_rate": ["optimizer.lr"],
    "scheduler": ["schedule.name"],
    "lr_scheduler": ["schedule.name"],
    "warmup": ["schedule.warmup_steps"],
    "num_warmup_steps": ["schedule.warmup_steps"],
    "epochs": ["trainer.max_steps"],
    "max_epochs": ["trainer.max_steps"],
    "num_epochs": ["trainer.max_steps"],
    "num_train_epochs": ["trainer.max_steps"],
    "steps": ["trainer.max_steps"],
    "max_tokens": ["batch_tokens"],
    "batch_size": ["batch_tokens"],
    "train_batch_size": ["batch_tokens"],
    "device": ["trainer.accelerator"],
    "devices": ["trainer.accelerator"],
    "gpu": ["trainer.accelerator"],
    "gpus": ["trainer.accelerator"],
    "cuda": ["trainer.accelerator"],
    "fp16": ["trainer.precision"],
    "bf16": ["trainer.precision"],
    "amp": ["trainer.precision"],
    "dtype": ["trainer.precision"],
    "clip": ["trainer.gradient_clip_val"],
    "grad_clip": ["trainer.gradient_clip_val"],
    "clip_norm": ["trainer.gradient_clip_val"],
    "max_grad_norm": ["trainer.gradient_clip_val"],
    "gradient_accumulation_steps": ["trainer.accumulate_grad_batches"],
    "eval_steps": ["trainer.val_check_interval"],
    "eval_every": ["trainer.val_check_interval"],
    "val_every": ["trainer.val_check_interval"],
    "logging_steps": ["trainer.log_every_n_steps"],
    "log_every": ["trainer.log_every_n_steps"],
    "save_steps": ["checkpoint_every"],
    "heads": ["model.num_heads", "num_heads"],
    "n_head": ["model.num_heads", "num_heads"],
    "n_heads": ["model.num_heads", "num_heads"],
    "nhead": ["model.num_heads", "num_heads"],
    "dim": ["model.d_model", "d_model"],
    "n_embd": ["model.d_model", "d_model"],
    "embed_dim": ["model.d_model", "d_model"],
    "hidden_size": ["model.d_model", "d_model"],
    "layers": ["model.encoder_layers"],
    "num_layers": ["model.encoder_layers"],
    "n_layer": ["model.encoder_layers"],
    "dim_feedforward": ["model.d_ff"],
    "ffn_dim": ["model.d_ff"],
    "vocab_size": ["data.vocabulary_size"],
    "weight_decay": ["optimizer.weight_decay"],
    "ema": ["average_decay"],
    "ema_decay": ["average_decay"],
    "early_stopping": ["patience"],
    "beam": ["search.beam_size"],
    "beams": ["search.beam_size"],
    "num_beams": ["search.beam_size"],
    "lenpen": ["search.length_penalty"],
    "seq_len": ["length"],
    "output_dir": ["output"],
    "out": ["output"],
    "ckpt": ["checkpoint", "resume"],
    "checkpoint": ["resume"],
    "resume_from_checkpoint": ["resume"],
    "model_path": ["checkpoint"],
    "random_seed": ["seed"],
}


def meant(key: str, known: Iterable[str]) -> str:
    """A hint at the known dotted option that ``key`` stands for: by its last part, by habit, or by its letters."""
    options = list(known)
    last = key.rpartition(".")[2]
    same = [option for option in options if option.rpartition(".")[2] == last]
    habit = [option for option in MEANT.get(last.lower().replace("-", "_"), []) if option in options]
    if len(same) == 1 or habit:
        return f"; did you mean {(same if len(same) == 1 else habit)[0]}?"
    if last in MEANT and options:
        return f"; {' or '.join(MEANT[last])} would be meant, which is not an option here"
    return nearest(key, options)


def nearest(key: str, known: Iterable[str], path: str = "") -> str:
    """A hint at the known option most like ``key``, or the list of all where none is like it."""
    names = list(known)
    close = [name for name in names if name.lower() == key.lower()]
    close = close or difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {path}{close[0]}?"
    return f"; there are {', '.join(path + name for name in names)}" if names else ""


def as_argument(key: str, value: str) -> str:
    """``key=value`` as it can be typed: quoted for Hydra's grammar and for the shell, where these ask for it."""
    value = _as_value(value)
    return shlex.quote(f"{key}={value}") if shlex.quote(value) != value else f"{key}={value}"


def as_list(key: str, items: Iterable[str]) -> str:
    """``key=[items]``, likewise."""
    values = [_as_value(item) for item in items]
    word = f"{key}=[{','.join(values)}]"
    return shlex.quote(word) if any(shlex.quote(value) != value for value in values) else word


def _as_value(text: str) -> str:
    if re.fullmatch(r"[\w./+:@%-]+", text, re.ASCII):
        return text
    escaped = text.replace('"', '\\"')
    return f'"{escaped}"'
