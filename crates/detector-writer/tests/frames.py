"""Reads every `NAME.json` of a directory and checks the file of the run that it describes.

`sources`: the regions of frames, `lost`: the regions that never arrived, by frame; a missing region must read as the
fill value and its frame be marked partial. Frame `n` of u16 has at element `i`: (7 i + 13 n + (i >> 3) n) & 0x3ff.
`acknowledged`: frames that must be present and equal; every other frame must be equal or read as the fill value. `rows`:
the number of frames with a status. `exact`: the others must be missing. `late`: the frames that must be marked as late,
and no others. `untimed`: received frames whose times may be unknown. `published`: everything may be missing, as in a
file that has not been recovered. `root`: the group of all this; `flat`: it has the scalars, too. `scalars_of`: the
frames whose scalars must be present, if these are not the acknowledged ones."""

import json
import pathlib
import sys

import h5py
import hdf5plugin  # noqa: F401  registers the filters
import numpy

RECEIVED = {1, 3, 4, 5}


def number_of(value):
    return float(value.decode() if isinstance(value, bytes) else value)

checked = 0
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    told = json.loads(path.read_text())
    with h5py.File(path.with_suffix(".h5"), "r") as file:
        root = file["entry/instrument/detector"] if "entry" in file else file[told.get("root", "/")]
        data, status = root["data"], root["frame_status"][...]
        names = h5py.check_enum_dtype(root["frame_status"].dtype)
        assert names == {"missing": 0, "received": 1, "damaged": 2, "duplicate": 3, "late": 4, "partial": 5}, names
        frame_shape, scan = tuple(told["frame"]), data.shape[: data.ndim - len(told["frame"])]
        assert data.shape[len(scan) :] == frame_shape, (path, data.shape)
        index = numpy.arange(int(numpy.prod(frame_shape)), dtype=numpy.uint64)
        acknowledged = set(told["acknowledged"])
        assert not acknowledged or max(acknowledged) < len(status), (path, max(acknowledged), len(status))
        frames = data[...].reshape((-1,) + frame_shape)
        assert len(frames) >= len(status), (path, frames.shape, len(status))
        for number, what in enumerate(status):
            if what in RECEIVED:
                n = numpy.uint64(number)
                lost = told.get("lost", {}).get(str(number), [])
                assert (what == 5) == bool(lost), (path, number, int(what), lost)
                expected = ((7 * index + 13 * n + (index >> numpy.uint64(3)) * n) & numpy.uint64(0x3FF)).astype("<u2")
                assert not told["exact"] or number in acknowledged, (path, number, "came from nowhere")
                if told.get("sources"):
                    whole = expected.reshape(frame_shape)
                    expected = numpy.full(frame_shape, told["fill"], dtype="<u2")
                    for source, region in enumerate(told["sources"]):
                        sides = zip(region["offset"], region["shape"])
                        at = tuple(slice(offset, offset + side) for offset, side in sides)
                        if source not in lost:
                            expected[at] = whole[at]
                    expected = expected.ravel()
            else:
                expected = numpy.full(index.shape, told["fill"], dtype="<u2")
                assert number not in acknowledged, (path, number, "was acknowledged and is", int(what))
            assert (frames[number].ravel() == expected).all(), (path, number, int(what), "differs")
        assert told.get("rows") in (None, len(status)), (path, len(status), told["rows"])
        if "late" in told:
            assert [int(number) for number in numpy.flatnonzero(status == 4)] == told["late"], (path, status)
        assert (frames[len(status) :] == told["fill"]).all(), (path, "beyond the last frame")
        times = numpy.array([root["times"][name][...] for name in ("received", "compressed", "written", "durable")])
        came = numpy.isin(status, list(RECEIVED))
        came[told.get("untimed", [])] = False
        assert (times[:, came] > 0).all() and (numpy.diff(times[:, came].astype(numpy.int64), axis=0) >= 0).all(), path
        for column, name in enumerate(told.get("scalars", [])):
            values = (root if told.get("flat") else root["scalars"])[name][...]
            for number in told.get("scalars_of", acknowledged):
                assert number_of(values[number]) == number * 10 + column, (path, name, number, values[number])
        if told.get("dump"):
            path.with_suffix(".raw").write_bytes(data[...].tobytes())
        if "entry" in file:
            assert file["entry"].attrs["NX_class"] == b"NXentry" and file["entry/data/data"] == data
            assert file[file.attrs["default"].decode()].attrs["default"] == b"data"
    checked += 1
print(checked)
