"""Follows a file that `varve record` is writing. Needs h5py, and hdf5plugin for compressed frames.

    from varve_follow import Follower

    with Follower("run-1.h5") as run:
        for number, image in run.frames("entry/data/data"):
            print(number, image.mean())

`frames` ends with the run. Without it, call `refresh` now and then, and open datasets from `run.file` anew when it returns
True:

    while not run.refresh():
        time.sleep(0.2)
    print(run.file["entry/data/data"].shape)

A handle that was opened once never sees growth, not even with `swmr=True` and `refresh()`: each commit writes the headers of
datasets to new addresses, so that a reader always has a complete file, and the library's refresh reads a dataset again at
its old address. A follower therefore opens the file again. It closes the old file first, because the library hands out the
state of a file that the process still has open. `docs/guide/detector.md` has the reasons.
"""

import os
import time

import h5py

__all__ = ["Follower", "TimedOut"]

# Every commit rewrites the superblock.
SUPERBLOCK_BYTES = 48
# Opening is tried for this long, in seconds, while the file is replaced or a network file system has old data.
OPEN_TIMEOUT = 10.0
PAUSE = 0.05


class TimedOut(Exception):
    """No new frame arrived in time."""


class Follower:
    """A file at the state of its last commit. `options` go to `h5py.File`."""

    def __init__(self, path, **options):
        self.path = os.fspath(path)
        self.options = options
        self.file = None
        self._commit = None
        self.refresh()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.file is not None:
            self.file.close()
            self.file = None

    def refresh(self):
        """Opens the file again if there is another commit. Objects of the file before are closed then. Returns whether
        there was one."""
        commit = self._read_commit()
        if self.file is not None and commit == self._commit:
            return False
        deadline = time.monotonic() + OPEN_TIMEOUT
        while True:
            self.close()
            try:
                self.file = h5py.File(self.path, "r", **self.options)
                self._commit = commit
                return True
            except OSError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(PAUSE)
            commit = self._read_commit()

    def is_finished(self):
        """Whether the run has ended, so that no commit follows the present one."""
        return not os.path.exists(self.path + ".journal") and self._read_commit() == self._commit

    def frames(self, dataset, *, start=0, timeout=None, poll=0.2, late=2.0):
        """Yields the number and the array of each frame along the dataset's first side, as commits bring them, until the
        run ends. A frame that others have overtaken is waited for, but not longer than `late` seconds; frames that are
        missing then are the fill value. Raises `TimedOut` after `timeout` seconds without a new frame."""
        number, since, missed = start, time.monotonic(), None
        while True:
            finished = self.is_finished()
            end = len(self.file[dataset])
            while number < end:
                if not finished and self._is_missing(number, end):
                    missed = missed or time.monotonic()
                    if time.monotonic() - missed < late:
                        break
                # The consumer may have called `refresh` meanwhile, so the dataset is opened for each frame.
                yield number, self.file[dataset][number]
                number, since, missed = number + 1, time.monotonic(), None
            if finished:
                return
            if not self.refresh():
                if timeout is not None and time.monotonic() - since > timeout:
                    raise TimedOut(f"{self.path}: no frame after {number - 1} in {timeout} s")
                time.sleep(poll)

    def _is_missing(self, number, count):
        # Layouts put the status of the frames in any group.
        status = self.file.visit(lambda name: name if name.rsplit("/", 1)[-1] == "frame_status" else None)
        if status is None or len(self.file[status]) != count:
            return False
        return self.file[status][number] == 0

    def _read_commit(self):
        # The end of a run may replace the file by a smaller copy.
        with open(self.path, "rb", buffering=0) as file:
            return os.fstat(file.fileno()).st_ino, file.read(SUPERBLOCK_BYTES)
