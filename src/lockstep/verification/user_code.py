"""Running somebody else's code: it may raise, print, warn, exit or never return."""

import contextlib
import io
import signal
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from lockstep.base.errors import InputError
from lockstep.verification.foreign import NoSuchArgument, NoSuchTarget

TIME_LIMIT = 10.0
"""Seconds for one call of the user's code."""

_OWN_CODE = str(Path(__file__).resolve().parent.parent)


class CannotTell(Exception):
    """What could not be found, and the option that settles it."""

    code, trace = "could_not_tell", ""


class UserCodeError(Exception):
    """The user's code failed.

    Args:
        sentence: what was being done, and how it failed.
        trace: the user's own part of the traceback.
    """

    code = "failed"

    def __init__(self, sentence: str, trace: str = "") -> None:
        super().__init__(sentence)
        self.trace = trace


class _TookTooLong(BaseException):
    """Not an Exception, so that a broad handler in the user's code does not swallow it."""


def _alarm(signum: int, frame: FrameType | None) -> None:
    raise _TookTooLong


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    """Interrupts Python code in the main thread, where signals arrive; elsewhere there is no limit."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    previous = signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _own_traceback(error: BaseException) -> str:
    """The traceback without the frames of this project."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OWN_CODE)]
    frames = [frame for frame in frames if Path(frame.filename).name != "contextlib.py"]
    name = [] if isinstance(error, _TookTooLong) else traceback.format_exception_only(error)
    return "".join(traceback.format_list(frames) + name)


@contextlib.contextmanager
def user_code(doing: str) -> Iterator[io.StringIO]:
    """Run user code within a time limit, its output captured and its warnings silenced.

    Raises:
        UserCodeError: it raised, exited or took too long.
    """
    printed = io.StringIO()
    try:
        with (
            _time_limit(),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield printed
    except _TookTooLong as error:
        raise UserCodeError(f"{doing} took longer than {TIME_LIMIT:g} s", _own_traceback(error)) from None
    except (CannotTell, NoSuchArgument, NoSuchTarget, InputError):
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"{doing} raised {type(error).__name__}: {error}", _own_traceback(error)) from None
