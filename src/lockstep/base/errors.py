"""How a command can end early; each message is one line for the user. Imports nothing: every script knows these."""


class ConfigurationError(Exception):
    """A configuration that cannot be run; the message is one line that names the option."""


class AttentionError(ConfigurationError):
    """An attention that fails, or breaks the contract: no run is made of it, and no verdict can be given."""


class CheckpointError(Exception):
    """A checkpoint that cannot be read or written; the message names the file."""


class InputError(Exception):
    """A corpus, a line or a tokenizer that cannot be used; the message names the file, and the line."""


class NonFiniteError(Exception):
    """Training has gone wrong for good: a loss or a gradient that is not finite."""


class Interrupted(BaseException):
    """The command was asked to stop, and has; not an ``Exception``, so that a sweep stops with it.

    Args:
        signum: of the signal.
        message: what was kept; empty where there was nothing to keep.
    """

    def __init__(self, signum: int, message: str = "") -> None:
        super().__init__(message)
        self.signum = signum
