"""Reads a finished file and copies of it that were made at any moment of its run: each is valid, with the values of its
frames."""

import pathlib
import sys

import h5py
import hdf5plugin  # noqa: F401  registers the filters
import numpy

SIDE = 32
index = numpy.arange(SIDE * SIDE, dtype=numpy.uint64)


def expected(number):
    n = numpy.uint64(number)
    return ((7 * index + 13 * n + (index >> numpy.uint64(3)) * n) & numpy.uint64(0x3FF)).astype("<u2")


def check(path, scalars_came):
    with h5py.File(path, "r") as file:
        status, data = file["frame_status"][...], file["data"]
        assert len(status) == len(data) and numpy.isin(status, [0, 1, 4]).all(), (path, status)
        assert data.maxshape == (1_000_000, SIDE, SIDE), data.maxshape
        there = numpy.flatnonzero(status)
        for number in there[:: max(1, len(there) // 20)]:
            assert (data[number].ravel() == expected(number)).all(), (path, number)
        scalars = file["scalars"]
        assert len(scalars) == 100
        for scalar in range(100):
            values = scalars[f"scalar-{scalar}"][...]
            right = (values == numpy.arange(len(values)) + scalar) | numpy.isnan(values)
            assert len(values) == len(status) and right.all(), (path, scalar)
            assert not scalars_came or not numpy.isnan(values).any(), (path, scalar)
        assert not scalars_came or (status > 0).all()


check(sys.argv[1], True)
copies = list(pathlib.Path(sys.argv[2]).iterdir())
for copy in copies:
    check(copy, False)
print(len(copies))
