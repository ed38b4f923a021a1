"""What a sandbox may leave behind: nothing. Counted before and after."""

import gc
import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import psutil


def our_processes():
    """Children of this process that live; a zombie that waits for its parent counts as left behind, too."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def open_descriptors():
    return psutil.Process().num_fds() if hasattr(os, "fork") else psutil.Process().num_handles()


@contextmanager
def nothing_left_behind(folder: Path, monkeypatch):
    """Temp files go to `folder` meanwhile; afterwards no file, no process and no descriptor is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    gc.collect()
    processes, descriptors = our_processes(), open_descriptors()
    yield
    gc.collect()  # a host in the traceback of a caught error lives until then
    patience = time.monotonic() + 10
    while (our_processes() != processes or open_descriptors() != descriptors) and time.monotonic() < patience:
        time.sleep(0.02)
    assert our_processes() == processes
    assert open_descriptors() == descriptors
    assert list(folder.iterdir()) == []
