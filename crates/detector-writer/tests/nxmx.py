"""Checks the files of `layout.rs` against NeXus' application definition NXmx, and against the given metadata."""

import pathlib
import sys

import h5py
import hdf5plugin  # noqa: F401  registers the filters
import numpy

START = 1_700_000_000
# Path and units below the entry: the fields that the definition requires, and further fields of our metadata.
REQUIRED = {
    "definition": None, "start_time": None, "end_time_estimated": None, "data/data": None,
    "sample/name": None, "sample/depends_on": None, "source/name": None, "instrument/name": None,
    "instrument/beam/incident_wavelength": "angstrom", "instrument/beam/total_flux": "Hz",
    "instrument/detector/data": None, "instrument/detector/depends_on": None,
    "instrument/detector/sensor_material": None, "instrument/detector/sensor_thickness": "m",
    "instrument/detector/module/data_origin": None, "instrument/detector/module/data_size": None,
    "instrument/detector/module/fast_pixel_direction": "m", "instrument/detector/module/slow_pixel_direction": "m",
}
RECOMMENDED = {
    "instrument/detector/distance": "m", "instrument/detector/beam_center_x": "pixel",
    "instrument/detector/beam_center_y": "pixel", "instrument/detector/count_time": "s",
    "instrument/detector/pixel_mask": None, "instrument/detector/bit_depth_readout": None,
    "instrument/detector/description": None, "instrument/beam/incident_beam_size": "m",
    "instrument/detector/x_pixel_size": "m", "instrument/detector/threshold_energy": "eV",
    "instrument/detector/frame_time": "s", "instrument/detector/saturation_value": None,
}
CLASSES = {
    "": "NXentry", "data": "NXdata", "sample": "NXsample", "sample/transformations": "NXtransformations",
    "source": "NXsource", "instrument": "NXinstrument", "instrument/beam": "NXbeam",
    "instrument/detector": "NXdetector", "instrument/detector/module": "NXdetector_module",
    "instrument/detector/transformations": "NXtransformations",
}


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def moved(file, path):
    """The point that a chain of translations leads to."""
    point = numpy.zeros(3)
    while path != ".":
        axis = file[path]
        assert text(axis.attrs["transformation_type"]) == "translation"
        vector = axis.attrs["vector"]
        assert abs(numpy.linalg.norm(vector) - 1) < 1e-12
        point += axis[()] * vector + axis.attrs["offset"]
        path = text(axis.attrs["depends_on"])
    return point


def complete(file):
    entry = file["entry"]
    for path, name in CLASSES.items():
        assert text((entry[path] if path else entry).attrs["NX_class"]) == name, path
    for path, units in (REQUIRED | RECOMMENDED).items():
        assert path in entry, path
        assert text(entry[path].attrs.get("units")) == units, path
    assert text(entry["definition"][()]) == "NXmx"
    assert text(entry["start_time"][()]) == "2023-11-14T22:13:20.250000Z"
    assert text(entry["end_time_estimated"][()]) == "2023-11-14T22:13:29.250000Z"
    detector, data = entry["instrument/detector"], entry["data"]
    assert detector["saturation_value"][()] == 65534 and detector["flatfield_applied"][()] == 1
    assert text(detector["sensor_material"][()]) == "Si" and detector["distance"][()] == 0.25
    assert list(detector["module/data_size"]) == [8, 16] and list(detector["module/data_origin"]) == [0, 0]
    mask = numpy.zeros((8, 16), dtype="<u4")
    mask[:, 4:6] |= 1
    mask[3:5, 5:9] |= 2
    assert (detector["pixel_mask"][...] == mask).all() and detector["pixel_mask"].dtype == "<u4"
    # The pixel at the beam's centre lies on the beam, at the detector's distance.
    fast, slow = detector["module/fast_pixel_direction"], detector["module/slow_pixel_direction"]
    first = moved(file, text(fast.attrs["depends_on"]))
    center = first + 6.5 * fast[()] * fast.attrs["vector"] + 3.25 * slow[()] * slow.attrs["vector"]
    assert numpy.allclose(center, [0, 0, 0.25], atol=1e-12), center
    omega = file[text(entry["sample/depends_on"][()])]
    assert numpy.allclose(omega[...], 90 + 0.1 * numpy.arange(10)) and text(omega.attrs["units"]) == "degree"
    assert list(omega.attrs["vector"]) == [-1, 0, 0] and text(omega.attrs["depends_on"]) == "."
    assert text(data.attrs["signal"]) == "data" and [text(axis) for axis in data.attrs["axes"]] == ["omega", ".", "."]
    assert data["data"] == detector["data"] and data["omega"] == omega


def part(file):
    entry = file["entry"]
    assert "definition" not in entry and "sensor_material" not in entry["instrument/detector"]
    assert entry["instrument/detector/pixel_mask"][3, 5] == 3
    assert text(entry["start_time"][()]) == "2023-11-14T22:13:20.250000Z"


def without(file):
    assert set(file["entry"]) == {"instrument", "data"}
    assert [text(axis) for axis in file["entry/data"].attrs["axes"]] == [".", ".", "."]


checked = 0
for name, check in (("nxmx", complete), ("part", part), ("without", without)):
    with h5py.File(pathlib.Path(sys.argv[1]) / f"{name}.h5") as file:
        assert text(file[text(file.attrs["default"])].attrs["default"]) == "data"
        check(file)
    checked += 1
print(checked)
