"""Lockstep: is this attention implementation the same function as that one, and does it learn the same?"""

from typing import Any

__all__ = ["assert_multi_head_attention", "verify"]


def __getattr__(name: str) -> Any:
    """Import the verifier, and with it torch, when it is first asked for."""
    if name in __all__:
        from lockstep.verification import judge

        return getattr(judge, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
