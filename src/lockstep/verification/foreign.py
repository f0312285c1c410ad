"""Finding and constructing a class that somebody else wrote."""

import hashlib
import importlib
import importlib.util
import inspect
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lockstep.base.errors import InputError

PROJECT = Path(__file__).resolve().parents[3]
"""The folder that this project lies in, wherever it is by now."""


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
    """The target names no class that could be attention."""


class NoSuchArgument(ValueError):
    """Its constructor has no argument of this name."""


def load_class(target: str, folder: Path | None = None) -> type[nn.Module]:
    """The class named by ``file.py:Class``, ``package.module:Class`` or ``package.module.Class``.

    Imports the file, which runs its code: this is no sandbox. A file is loaded under a name of its own, so that one
    called ``datasets.py`` is no library to others. What it imports is looked for as :func:`importable` says.

    Args:
        target: the file, or the module, and the class.
        folder: from which a relative path starts; None for the working directory.

    Raises:
        NoSuchTarget: no class is named, or none of that name is there, or it is no ``nn.Module``.
        InputError: there is no such file or module, or it cannot be imported; the message says in which line.
    """
    place, name = _parts(target)
    try:
        module = _load_file(_path(place, folder)) if _is_file(place) else importlib.import_module(place)
        found = getattr(module, name, None)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{place}.".startswith(f"{missing}."):
            raise InputError(f"target={target}: there is no module {missing}, neither installed nor here") from None
        raise InputError(f"target={target} cannot be imported: {failure(error)}") from error
    if inspect.isclass(found) and issubclass(found, nn.Module):
        return found
    classes = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    modules = [c.__name__ for c in classes if issubclass(c, nn.Module)]
    likely = [n for n in modules if "att" in n.lower() or "mha" in n.lower()] or modules
    problem = f"{name} in {place} is no torch.nn.Module" if found else f"{place} has no class {name!r}"
    hint = f": python scripts/verify.py {shlex.quote(f'target={place}:{likely[0]}')}" if likely else ""
    raise NoSuchTarget(
        f"target={target}: {problem if name else 'name a class'}; it has {', '.join(likely) or 'none'}{hint}"
    )


@contextmanager
def importable(target: str, folder: Path | None = None, *, forget: bool = False) -> Iterator[None]:
    """Meanwhile, what is found nowhere else is looked for beside the target's file and in the working directory.

    Args:
        target: of :func:`load_class`.
        folder: instead of the working directory.
        forget: modules that come from there are forgotten afterwards: those of another target are others.
    """
    place, _ = _parts(target)
    beside = [_path(place, folder).parent] if _is_file(place) else []
    added = {str(f) for f in (*beside, (folder or Path.cwd()).resolve())} - set(sys.path)
    path, known = list(sys.path), set(sys.modules)
    importlib.invalidate_caches()  # a file may have been written just now
    sys.path += sorted(added, key=lambda f: f not in map(str, beside))
    try:
        yield
    finally:
        sys.path[:] = path
        new = {name: sys.modules.get(name.partition(".")[0]) for name in set(sys.modules) - known if forget}
        for name, package in new.items():
            if str(_home(getattr(package, "__spec__", None))) in added:
                del sys.modules[name]


def portable(target: str, folder: Path) -> tuple[str, str | None]:
    """The target as a configuration keeps it, to be found from anywhere; and the folder from which it starts.

    That is a folder within the project, and relative to it, so that both may move together; or an absolute one.
    """
    place, name = _parts(target)
    if _is_file(place):
        path = _path(place, folder)
        inside = path.is_relative_to(PROJECT)
        return (f"{path.relative_to(PROJECT)}:{name}", ".") if inside else (f"{path}:{name}", None)
    top = place.partition(".")[0]
    spec = sys.modules[top].__spec__ if top in sys.modules else importlib.util.find_spec(top)
    if _home(spec) not in (None, folder):
        return target, None
    return target, str(folder.relative_to(PROJECT) if folder.is_relative_to(PROJECT) else folder)


def _parts(target: str) -> tuple[str, str]:
    """The file or module, and the class, which may be empty."""
    place, colon, name = target.rpartition(":")
    if place.endswith(":"):
        raise NoSuchTarget(f"target={target} names no class; one colon is enough: {place.rstrip(':')}:{name}")
    if not (colon and name.isidentifier()):
        place, _, name = (target, "", "") if target.endswith(".py") else target.rpartition(".")
    if not place or "\0" in place or not (name.isidentifier() or target.endswith(".py")):
        raise NoSuchTarget(f"target={target} names no class; write file.py:Class, or package.module:Class")
    return place, name


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place


def _path(place: str, folder: Path | None) -> Path:
    return ((folder or Path.cwd()) / place).resolve()


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{path} is a folder" if path.is_dir() else f"there is no file {path}")
    name = f"_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where a dataclass looks its own module up
    spec.loader.exec_module(module)
    return module


def _home(spec: ModuleSpec | None) -> Path | None:
    """The folder in which a module or package of the first level was found."""
    if spec is None:
        return None
    place = next(iter(spec.submodule_search_locations or []), spec.origin if spec.has_location else None)
    return Path(place).resolve().parent if place else None


def failure(error: BaseException) -> str:
    """What went wrong in somebody else's code, and where, in one line."""
    message = " ".join(str(error).split())
    message = f"{message[:300]}…" if len(message) > 300 else message  # torch can list all its backends
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_NOT_THEIRS)]
    place = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
    return f"{place}{message}" if type(error) is ValueError else f"{place}{type(error).__name__}: {message}"


_NOT_THEIRS = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), "<frozen ")


def resolve(arguments: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments with the words d_model, num_heads, head_dim, bias and dropout replaced by their values.

    A mapping among them becomes a configuration object: of the class that it names as ``_class_``, its other entries
    set on it, or one of entries alone.
    """
    resolved: dict[str, Any] = {}
    for name, given in arguments.items():
        if isinstance(given, Mapping) and "_class_" in given:
            module, _, cls = given["_class_"].partition(":")
            resolved[name] = getattr(importlib.import_module(module), cls)()
            for entry, value in resolve({k: v for k, v in given.items() if k != "_class_"}, values).items():
                setattr(resolved[name], entry, value)
        elif isinstance(given, Mapping):
            resolved[name] = Settings(resolve(given, values))
        else:
            resolved[name] = values.get(given, given) if isinstance(given, str) else given
    return resolved
