"""Reads the files that `layout.rs` wrote after `layouts/*.xml`, all of them with the same ten frames."""

import pathlib
import sys

import h5py
import hdf5plugin  # noqa: F401  registers the filters
import numpy

START = 1_700_000_000
EPICS = 631_152_000
SHAPE = (8, 16)


def expected(number):
    index = numpy.arange(SHAPE[0] * SHAPE[1], dtype=numpy.uint64)
    n = numpy.uint64(number)
    return ((7 * index + 13 * n + (index >> numpy.uint64(3)) * n) & numpy.uint64(0x3FF)).astype("<u2").reshape(SHAPE)


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def frames(data):
    assert data.shape == (10, *SHAPE), data.shape
    for number in range(10):
        assert (data[number] == (0 if number == 3 else expected(number))).all(), number


def members(file):
    paths = []
    file.visit(paths.append)
    return set(paths)


angles = numpy.array([numpy.nan, 0.5, 1, numpy.nan, 2, 2.5, 3, 3.5, 4, 4.5])


def tomography(file):
    entry, detector = file["entry"], file["entry/instrument/detector"]
    assert text(entry.attrs["NX_class"]) == "NXentry" and text(entry.attrs["default"]) == "data"
    assert text(entry["definition"][()]) == "NXtomo" and text(entry["title"][()]) == "a tooth"
    data = detector["data"]
    frames(data)
    assert data.attrs["signal"] == 1 and data.attrs["signal"].dtype == "<i4"
    assert list(data.attrs["offset"]) == [0.5, -1.25]
    assert text(data.attrs["manufacturer"]) == "Größe & Söhne"
    assert data.attrs["first_angle"] == 0.5 and data.attrs["last_angle"] == 4.5
    assert list(detector["bad_columns"][...]) == [3, 17, 40000000000]
    keys = numpy.array([0, 1, 2, numpy.nan, 1, 2, 0, 1, 2, 0])
    assert numpy.array_equal(detector["image_key"][...], keys, equal_nan=True)
    assert text(detector["image_key"].attrs["NDAttrName"]) == "ImageKey"
    times = entry["instrument/performance/timestamp"]
    assert times.shape == (10, 5) and list(times.attrs["columns"]) == [b"detector", b"received", b"compressed", b"written", b"durable"]
    assert times[1, 0] == (START + 1) * 10**9 + 250_000_000 and list(times[3]) == [0] * 5
    rest = entry["instrument/NDAttributes"]
    assert set(rest) == {
        "RingCurrent", "Binning", "Manufacturer", "NDArrayUniqueId", "NDArrayTimeStamp", "NDArrayEpicsTSSec",
        "NDArrayEpicsTSnSec", "frame_status", "times",
    }, set(rest)
    assert rest["Binning"][()] == 2 and rest["RingCurrent"][9] == 299.5
    assert list(rest["NDArrayUniqueId"]) == list(range(10))
    assert rest["NDArrayTimeStamp"][2] == START + 2 - EPICS + 0.25 and numpy.isnan(rest["NDArrayTimeStamp"][3])
    assert rest["NDArrayEpicsTSSec"][2] == START + 2 - EPICS and rest["NDArrayEpicsTSnSec"][2] == 250_000_000
    status = rest["frame_status"][...]
    assert status[3] == 0 and all(status[n] in (1, 4) for n in range(10) if n != 3), status
    sample = entry["sample/rotation_angle"]
    assert numpy.array_equal(sample[...], angles, equal_nan=True) and text(sample.attrs["units"]) == "degree"
    links = entry["data"]
    assert links["data"] == data and links["again"] == data and links["rotation_angle"] == sample
    assert links["unique_id"] == rest["NDArrayUniqueId"]


def plain(file):
    assert text(file.attrs["facility"]) == "Größe Süd"
    frames(file["exchange/data"])
    assert text(file["exchange/data"].attrs["axes"]) == "theta:y:x"
    assert numpy.array_equal(file["exchange/theta"][...], angles, equal_nan=True)
    assert file["exchange/theta_last"][()] == 4.5
    assert file["measurement"] == file["exchange"]
    # A value that the layout does not place is omitted. The status of the frames is always present.
    assert set(file) == {"exchange", "measurement"}
    assert set(file["exchange"]) == {"data", "theta", "theta_last", "frame_status", "times"}, set(file["exchange"])
    assert file["exchange/frame_status"][3] == 0


checked = 0
for name, check in (("tomography", tomography), ("plain", plain)):
    path = pathlib.Path(sys.argv[1]) / f"{name}.h5"
    for mode in ("r", "a"):
        with h5py.File(path, mode) as file:
            check(file)
            assert members(file)
    checked += 1
print(checked)
