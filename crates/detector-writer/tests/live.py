"""Opens a file that is being written until it has grown twenty times; every time the file must be valid."""

import sys
import time

import h5py
import hdf5plugin  # noqa: F401  registers the filters
import numpy

seen, grown, opened = 0, 0, 0
deadline = time.monotonic() + 60
index = numpy.arange(32 * 32, dtype=numpy.uint64)
while grown < 20:
    assert time.monotonic() < deadline, f"grown {grown} times in 60 s"
    with h5py.File(sys.argv[1], "r") as file:
        data, status = file["entry/data/data"], file["entry/instrument/detector/frame_status"][...]
        opened += 1
        assert len(status) == len(data) >= seen, (len(status), len(data), seen)
        for number in range(max(0, len(data) - 3), len(data)):
            n = numpy.uint64(number)
            expected = ((7 * index + 13 * n + (index >> numpy.uint64(3)) * n) & numpy.uint64(0x3FF)).astype("<u2")
            if status[number] in (1, 4):
                assert (data[number].ravel() == expected).all(), number
        grown += len(data) > seen
        seen = len(data)
print(opened, seen)
