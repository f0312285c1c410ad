"""Freed memory is kept where the library of C can be told so, and only there."""

import ctypes
import platform

import pytest

from lockstep.training.allocation import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, keep_freed_memory


@pytest.mark.parametrize(("library", "thresholds"), [("glibc", {M_MMAP_THRESHOLD, M_TRIM_THRESHOLD}), ("musl", set())])
def test_both_thresholds_are_raised_where_there_is_glibc(monkeypatch, library, thresholds):
    class Library:
        def mallopt(self, threshold, size):
            assert size >= 1 << 30
            raised.add(threshold)

    raised = set()
    monkeypatch.setattr(platform, "libc_ver", lambda: (library, "1"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    keep_freed_memory()
    assert raised == thresholds
