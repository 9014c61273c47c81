"""Checks the file of `push_series.py`: every field is there, NXmx's own reader reads it, and its validator finds no error."""

import logging
import os
import pathlib
import shutil
import sys
import tempfile
import xml.etree.ElementTree

import h5py
import numpy
import nxmx

# The validator's log has the width of a terminal, which tests do not have.
os.get_terminal_size = lambda *_: os.terminal_size((200, 50))
from nxvalidate import validate  # noqa: E402


def text(value):
    return value.decode() if isinstance(value, bytes) else value


with h5py.File(sys.argv[1]) as file:
    entry = file["entry"]
    detector, values, scalars = (entry[f"instrument/detector{path}"] for path in ("", "/values", "/scalars"))
    data = entry["data/data"]
    assert data.shape == (5, 3, 12, 16) and data.dtype == "<u2", data
    pixels = numpy.arange(12 * 16).reshape(12, 16)
    for number in range(5):
        for channel in range(3):
            assert (data[number, channel] == (pixels * (number + 1) + channel) % 1000).all(), (number, channel)
    assert list(detector["frame_status"][...]) == [1] * 5, detector["frame_status"][...]
    flags = ("flatfield", "countrate_correction", "pixel_mask", "virtual_pixel_interpolation")
    assert [detector[f"{flag}_applied"][()] for flag in flags] == [1, 1, 1, 0]
    assert detector["distance"][()] == 0.125 and text(detector["serial_number"][()]) == "E-32-0001"
    assert list(detector["countrate_correction_lookup_table"]) == list(range(9))
    first, second = detector["threshold_1_channel"], detector["threshold_2_channel"]
    assert text(first.attrs["NX_class"]) == "NXdetector_channel" and "difference_channel" in detector
    assert (first["pixel_mask"][3, 4], second["pixel_mask"][3, 4], first["pixel_mask"][...].sum()) == (1, 2, 1)
    assert (first["flatfield"][...] == 1.5).all() and (second["flatfield"][...] == 0.5).all()
    assert detector["pixel_mask"] == first["pixel_mask"]
    assert (first["threshold_energy"][()], second["threshold_energy"][()]) == (6000, 9000)
    specific = detector["detectorSpecific"]
    assert (specific["nimages"][()], specific["ntrigger"][()], specific["pixel_mask"][3, 4]) == (5, 1, 1)
    assert entry["instrument/beam/incident_energy"][()] == 12398.4
    expected = {
        "series_id": 77, "number_of_images": 5, "first_image_id": 1, "series_unique_id": "01GXYZ", "firmware": "2026.1",
        "arm_date": "2026-01-02T03:04:05.5+01:00", "series_date": "2026-01-02T03:04:06.000000000Z",
        "user_data": '{"points":[1,2],"proposal":"p7"}', "beamline": "ID00",
    }
    for name, value in expected.items():
        assert text(values[name][()]) == value, (name, values[name][()])
    assert list(values["detector_translation"]) == [0, 0, 0.125] and list(values["goniometer_two_theta"]) == [2, 0]
    assert values["stable"][()] and list(values["offsets"]) == [1.5, 2.5] and values["huge"][()] == 2**63 + 5
    assert numpy.allclose(scalars["real_time"], 0.0099) and numpy.allclose(scalars["start_time"], 0.01 * numpy.arange(1, 6))
    assert numpy.allclose(scalars["stop_time"], 0.01 * numpy.arange(1, 6) + 0.0099)
    assert list(scalars["temperature"]) == [21.5, 22.5, 23.5, 24.5, 25.5]
    assert [text(value) for value in scalars["image_user_data"]] == [f'{{"point":{at}}}' for at in range(1, 6)]
    # Metadata of the service: what the detector does not know.
    assert text(entry["source/name"][()]) == "ring" and text(entry["sample/name"][()]) == "crystal"
    omega, kappa = (entry["sample/transformations"][axis] for axis in ("omega", "kappa"))
    assert numpy.allclose(omega, 10 + 0.1 * numpy.arange(5)) and numpy.allclose(kappa, 54.7)
    assert text(entry["sample/depends_on"][()]) == kappa.name and text(kappa.attrs["depends_on"]) == omega.name
    assert list(kappa.attrs["vector"]) == [0.5, 0.5, 0]

    read = nxmx.NXmx(file).entries[0]
    assert read.definition == "NXmx" and read.source.name == "ring"
    instrument = read.instruments[0]
    assert instrument.name == "beamline 0" and instrument.beams[0].incident_wavelength.magnitude == 1.0
    of = instrument.detectors[0]
    assert of.distance.to("mm").magnitude == 125 and of.sensor_material == "Si" and of.serial_number == "E-32-0001"
    assert of.modules[0].fast_pixel_direction is not None and of.pixel_mask_applied
    assert [axis.path.split("/")[-1] for axis in nxmx.get_dependency_chain(read.samples[0].depends_on)] == ["kappa", "omega"]

# This version of the validator knows optional parts of a definition by `minOccurs` only, and does not match the names of
# channels' groups, which the definition allows and does not require.
with tempfile.TemporaryDirectory() as directory:
    definitions = pathlib.Path(directory) / "definitions"
    shutil.copytree(pathlib.Path(validate.__file__).parent / "definitions", definitions)
    nxdl = definitions / "applications/NXmx.nxdl.xml"
    tree = xml.etree.ElementTree.parse(nxdl)
    for element in tree.iter():
        if "true" in (element.get("optional"), element.get("recommended")) or element.get("name") == "CHANNELNAME_channel":
            element.set("minOccurs", "0")
    xml.etree.ElementTree.register_namespace("", "http://definition.nexusformat.org/nxdl/3.1")
    tree.write(nxdl)
    validate.logger.setLevel(logging.ERROR)
    validate.validate_application(sys.argv[1], definitions=definitions)
assert validate.logger.total["error"] == 0, validate.logger.total
print("ok")
