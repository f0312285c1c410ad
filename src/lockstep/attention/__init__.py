"""Multi-head attention: the contract, the reference formula, and one file for each variant."""

from lockstep.attention.contract import Arithmetic, MultiHeadAttention

__all__ = ["Arithmetic", "MultiHeadAttention"]
