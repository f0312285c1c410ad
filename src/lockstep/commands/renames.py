"""Classes that have moved since a configuration was written: old names are read as the new ones."""

from typing import Any

RENAMED = {"lockstep.attention.adapter.ForeignAttention": "lockstep.verification.adapter.ForeignAttention"}


def up_to_date(node: Any) -> Any:
    """The same plain configuration, with the present name in each ``_target_``."""
    if isinstance(node, dict):
        return {
            key: RENAMED.get(value, value) if key == "_target_" and isinstance(value, str) else up_to_date(value)
            for key, value in node.items()
        }
    return [up_to_date(each) for each in node] if isinstance(node, list) else node
