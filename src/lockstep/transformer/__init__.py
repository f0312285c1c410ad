"""The encoder-decoder Transformer of Vaswani et al. (2017), with multi-head attention left open."""

from lockstep.transformer.model import Transformer

__all__ = ["Transformer"]
