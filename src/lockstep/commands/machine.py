"""What this machine can do, and how fast: asked before a run begins."""

import logging
import time

import torch
import torch.nn.functional as F

from lockstep.commands.options import ConfigurationError, TrainerOptions

logger = logging.getLogger("lockstep")


def on_cpu(options: TrainerOptions) -> bool:
    """Whether Lightning's Trainer will compute on the CPU."""
    return options.accelerator == "cpu" or not (torch.cuda.is_available() or torch.backends.mps.is_available())


def require(options: TrainerOptions) -> None:
    """Refuse what Lightning would stop at later, or silently replace.

    Raises:
        ConfigurationError: an accelerator that is not here, or a precision that it has not got.
    """
    if options.accelerator == "gpu" and on_cpu(options):
        raise ConfigurationError("option trainer.accelerator=gpu: torch finds none here; use cpu, or auto for what is")
    if options.precision == "16-mixed" and on_cpu(options):
        raise ConfigurationError(
            "option trainer.precision=16-mixed is for GPUs: a CPU has bf16-mixed, or 32-true, which is exact and where "
            "there are no units for bfloat16 faster"
        )


def say_if_slow(options: TrainerOptions, d_model: int, d_ff: int) -> None:
    """One line where bfloat16 was asked for, and products of the model's shapes take longer in it than in float32."""
    if options.precision.startswith("bf16") and on_cpu(options):
        ratio = bfloat16_cost(d_model, d_ff)
        if ratio > 1.5:
            logger.warning(
                "trainer.precision=%s is slow here: a product takes %.0f times as long in bfloat16 as in float32; "
                "trainer.precision=32-true is the faster option",
                options.precision,
                ratio,
            )


def bfloat16_cost(d_model: int, d_ff: int) -> float:
    """The time of a product of the feed-forward layer's shapes on the CPU in bfloat16, as a multiple of float32's.

    Takes milliseconds, where bfloat16 is slow a tenth of a second, and draws nothing. A flag would tell of units for
    bfloat16, and not whether they are used.
    """
    channels, hidden = min(d_model, 1024), min(d_ff, 1024)
    rows = min(1024, max(16, 2**22 // (channels * hidden)))
    times: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads wait for each other where other programs run
    try:
        for _ in range(3):  # the first call prepares the kernel; in turn, since a machine's speed drifts
            for dtype, taken in times.items():
                x, weight = torch.ones(rows, channels, dtype=dtype), torch.ones(hidden, channels, dtype=dtype)
                started = time.perf_counter()
                F.linear(x, weight)
                taken.append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    return min(times[torch.bfloat16]) / min(times[torch.float32])
