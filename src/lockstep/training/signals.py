"""Ctrl-C and SIGTERM: noted when they come, obeyed where a run can be left and taken up again."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

import lightning as L

from lockstep.base.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Signals(L.Callback):
    """Notes the first signal instead of raising; a second one changes nothing. A context, and a callback beside."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # What the run was started to ignore, as by nohup or in the background, it ignores.
        handlers = {signum: signal.getsignal(signum) for signum in SIGNALS}
        self._before = {signum: handler for signum, handler in handlers.items() if handler is not signal.SIG_IGN}
        self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._listen()  # Lightning has just put its own handler in place

    def on_test_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.leave_test()

    def leave_test(self, *_: Any) -> None:
        """Obey between two batches of the test, whoever makes them."""
        if self.received is not None:
            raise Interrupted(self.received, "stopped while testing; training is complete and saved")

    def _listen(self) -> None:
        for signum in self._before:
            signal.signal(signum, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signum
