"""Finding and constructing a class that somebody else wrote."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Settings(dict[str, Any]):
    """A configuration object whose entries are attributes as well."""

    def __getattr__(self, name: str) -> Any:
        # What copy and pickle look for is no entry.
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r}") from None


class NoSuchTarget(ValueError):
    """There is no such file, module or class."""


def load_class(target: str) -> type:
    """The class named by ``file.py:Class``, or by an importable path ``package.module.Class``.

    Imports the file, which runs its code: this is no sandbox. Its folder and the working directory become importable.

    Raises:
        NoSuchTarget: there is no such file, module or class.
    """
    place, _, name = target.rpartition(":" if ":" in target else ".")
    if not place:
        raise NoSuchTarget(f"target={target!r}: write it as file.py:Class, or as package.module.Class")
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise NoSuchTarget(f"target={target!r}: there is no file {path}")
        _importable(path.parent)
        _importable(Path.cwd())
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # A dataclass looks its own module up; a module of the same name that is already imported stays.
        sys.modules.setdefault(path.stem, module)
        spec.loader.exec_module(module)
    else:
        _importable(Path.cwd())
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise
            raise NoSuchTarget(f"target={target!r}: there is no module {place!r}") from None
    found = getattr(module, name, None)
    if not inspect.isclass(found):
        classes = sorted(n for n, c in vars(module).items() if inspect.isclass(c) and c.__module__ == module.__name__)
        raise NoSuchTarget(f"target={target!r}: {place} has no class {name!r}; it has {', '.join(classes) or 'none'}")
    return found


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def resolve(arguments: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments with the words d_model, num_heads, head_dim, bias and dropout replaced by their values.

    A mapping among them becomes a configuration object.
    """
    resolved: dict[str, Any] = {}
    for name, given in arguments.items():
        if isinstance(given, Mapping):
            resolved[name] = Settings(resolve(given, values))
        else:
            resolved[name] = values.get(given, given) if isinstance(given, str) else given
    return resolved
