"""Follows a run to its end by `varve_follow`: every frame comes once, in order, while the run lasts. A handle of the
library that stays open sees no growth by SWMR's refresh, as the guide says."""

import pathlib
import sys

import h5py
import hdf5plugin  # noqa: F401  registers the filters
import numpy

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "clients/python"))
from varve_follow import Follower, TimedOut  # noqa: E402

path, count, side = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
index = numpy.arange(side * side, dtype=numpy.uint64)
numbers, commits = [], set()
with Follower(path) as run:
    try:
        next(run.frames("data", start=10 * count, timeout=0.1, poll=0.02))
        raise AssertionError("a frame that never came")
    except TimedOut:
        pass
    # The library does not open a file in two ways at once.
    run.close()
    early = h5py.File(path, "r", swmr=True)
    before = len(early["data"])
    while True:
        early["data"].refresh()
        assert len(early["data"]) == before
        with open(path, "rb") as file:
            commits.add(file.read(48))
        if len(commits) > 3:
            break
    early.close()
    run.refresh()
    assert len(run.file["data"]) > before
    for number, frame in run.frames("data", timeout=30, poll=0.02):
        n = numpy.uint64(number)
        expected = ((7 * index + 13 * n + (index >> numpy.uint64(3)) * n) & numpy.uint64(0x3FF)).astype("<u2")
        assert (frame.ravel() == expected).all(), number
        numbers.append(number)
    assert run.is_finished()
assert numbers == list(range(count)), numbers
print(len(numbers))
