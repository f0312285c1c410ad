"""All that is said to a person goes through here: what is not printable is shown, a closed terminal stops nothing."""

import logging
import os
import sys
import unicodedata
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Stream = Literal["stdout", "stderr"]


def printable(text: str) -> str:
    r"""The text with escapes such as ``\x1b`` for what would steer a terminal; line breaks stay.

    Names and texts come from anywhere: a control character in them could rewrite what was said before. The two joiners
    belong to the spelling of Persian and of Indic languages.
    """

    def plain(c: str) -> bool:
        return c in "\n\u200c\u200d" or c.isprintable() or unicodedata.category(c) == "Zs"

    return text if all(map(plain, text)) else "".join(c if plain(c) else ascii(c)[1:-1] for c in text)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A number and what it counts: ``1 pair``, ``2,000 pairs``; ``plural`` where it does not end in a mere s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def say(text: str, stream: Stream = "stdout") -> None:
    """Print a text to what the stream is now: a progress bar puts itself in its place."""
    out = getattr(sys, stream)
    encoding = getattr(out, "encoding", None) or "utf-8"
    try:
        print(printable(text).encode(encoding, "backslashreplace").decode(encoding), file=out, flush=True)
    except OSError as error:  # nobody listens, or the disk is full; what is still to be written is dropped
        hang_up(stream)
        if stream == "stdout" and not isinstance(error, BrokenPipeError):
            raise


def open_closed() -> None:
    """Give a process that was started without some of its standard streams empty ones."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # as long as the process


def hang_up(stream: Stream) -> None:
    """Whoever read has read enough, as ``head`` does: what is said from now on is said to nobody."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, getattr(sys, stream).fileno())
    os.close(null)


def console(**options: Any) -> "Console":
    """Rich's console on standard output, on which a closed pipe is no end of the program.

    Args:
        options: of rich's ``Console``.
    """
    from rich.console import Console

    class Lasting(Console):
        def on_broken_pipe(self) -> None:
            hang_up("stdout")

    return Lasting(**options)


def cell(text: str) -> "Text":
    """A table's cell that holds a text from elsewhere, as text: rich would read brackets as markup."""
    from rich.text import Text

    return Text(printable(text).replace("\n", "\\n"))


class TerminalHandler(logging.Handler):
    """Says each record."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record), self._stream)


class PrintableFormatter(logging.Formatter):
    """Of log files, which are read on terminals."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
