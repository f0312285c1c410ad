"""What a configuration's ``_target_`` names."""

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from lockstep.attention import MultiHeadAttention
from lockstep.base.errors import ConfigurationError
from lockstep.base.hints import nearest
from lockstep.commands.options import Node
from lockstep.verification.foreign import importable


def locate(node: Node, path: str) -> Callable[..., Any]:
    """The class or function that a node's ``_target_`` names, in the libraries or else in the working folder.

    Raises:
        ConfigurationError: there is no such name. What goes wrong inside an imported file is raised as it is.
    """
    target = node.get("_target_") if isinstance(node, Mapping) else None
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")) or "." not in target:
        raise ConfigurationError(f"option {path}._target_ must be a dotted name of a class, got {target!r}")
    module_name, _, name = target.rpartition(".")
    try:
        with importable(target):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise  # the file was found; something it imports was not
        raise ConfigurationError(
            f"option {path}._target_={target}: no module named {error.name}, neither installed nor here"
        ) from None
    if not hasattr(module, name):
        classes = [
            n for n, value in vars(module).items() if isinstance(value, type) and value.__module__ == module_name
        ]
        raise ConfigurationError(f"option {path}._target_={target}: no {name} in {module_name}{nearest(name, classes)}")
    return getattr(module, name)


def attention_class(node: Any, path: str) -> type[MultiHeadAttention]:
    """The attention that a node names."""
    cls = locate(node, path)
    if not (isinstance(cls, type) and issubclass(cls, MultiHeadAttention)):
        refusal = f"option {path}._target_={node['_target_']} is not a lockstep.attention.MultiHeadAttention"
        if isinstance(cls, type) and issubclass(cls, nn.Module):
            module, _, name = node["_target_"].rpartition(".")
            file = f"{module.replace('.', '/')}.py"
            refusal += (
                f"; first python scripts/verify.py target={file if os.path.isfile(file) else module}:{name} save=NAME, "
                "then attention=NAME, or compare.variants=[fused,NAME]"
            )
        raise ConfigurationError(refusal)
    return cls
