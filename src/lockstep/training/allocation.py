"""Memory that is freed and taken again every step stays with the process."""

import ctypes
import platform

# From glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Tell glibc to give large blocks back to the process, not to the system; elsewhere, do nothing.

    Each training step allocates the same large tensors. By default glibc maps fresh pages for each, which the system
    first fills with zeros, one page fault after the other: on a CPU, more than a quarter of a step of a small model.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
    libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
