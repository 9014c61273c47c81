"""Follows a run: unmodified h5py must find a frame in the file two seconds after the service reported it durable."""

import json
import sys
import time
import urllib.request

import h5py
import hdf5plugin  # noqa: F401  registers the filters
import numpy

path, url, side, looks, token = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
index = numpy.arange(side * side, dtype=numpy.uint64)
looked, deadline = 0, time.monotonic() + 60
while looked < looks:
    assert time.monotonic() < deadline, f"{looked} looks in 60 s"
    with urllib.request.urlopen(request) as answer:
        status = json.load(answer)
    latest = status["latest_durable"]
    if latest is None:
        time.sleep(0.1)
        continue
    told = time.monotonic()
    # Opens the file again and again in between: each time the file is valid.
    while time.monotonic() < told + 0.9:
        with h5py.File(path, "r") as file:
            seen = file["frame_status"][...]
        if len(seen) > latest:
            break
    time.sleep(max(0.0, min(2.0, told + 2.0 - time.monotonic()) if len(seen) <= latest else 0.0))
    with h5py.File(path, "r") as file:
        data, seen = file["data"], file["frame_status"][...]
        assert len(seen) > latest, (len(seen), latest)
        assert numpy.isin(seen[: latest + 1], [1, 4]).all(), seen[: latest + 1]
        n = numpy.uint64(latest)
        expected = ((7 * index + 13 * n + (index >> numpy.uint64(3)) * n) & numpy.uint64(0x3FF)).astype("<u2")
        assert (data[latest].ravel() == expected).all(), latest
    looked += 1
print(looked)
