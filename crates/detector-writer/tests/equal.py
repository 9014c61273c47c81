"""Reads every `NAME.h5` of a directory with h5py and compares dataset `/data` with `NAME.json` (shape, type, index) and
`NAME.raw`, the same elements as plain bytes. Then opens it for appending and reads it again."""

import json
import pathlib
import sys

import h5py
import hdf5plugin  # noqa: F401  registers the filters
import numpy

checked = 0
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.h5")):
    expected = json.loads(path.with_suffix(".json").read_text())
    raw = numpy.fromfile(path.with_suffix(".raw"), dtype=expected["dtype"]).reshape(expected["shape"])
    # For a hundred thousand chunks h5py needs seconds each time.
    for mode in ("r", "a", "r") if expected["chunks"] < 50_000 else ("r",):
        with h5py.File(path, mode) as file:
            data = file["data"]
            assert data.shape == raw.shape, (path, data.shape, raw.shape)
            assert data.dtype == raw.dtype, (path, data.dtype, raw.dtype)
            assert data.id.get_num_chunks() == expected["chunks"], (path, data.id.get_num_chunks(), expected)
            read = data[...]
            if read.tobytes() != raw.tobytes():
                where = numpy.argwhere(read != raw)
                raise AssertionError(f"{path} ({mode}): {len(where)} elements differ, first at {where[:1]}: {expected}")
            assert file["again"] == data and file["group/soft"] == data
            assert file["group"].attrs["text"].decode() == "größer" and file["group"].attrs["number"] == -7
            assert list(file["group"].attrs["texts"]) == [b"", b"ab", b"c"]
            more = [name for name in file["group"].attrs if name.startswith("more-")]
            assert all(file["group"].attrs[name] == int(name[5:]) for name in more), more
            if mode == "a":
                # The library's writes must be compatible with the existing content.
                file["group"].attrs["appended"] = 1.5
                file.create_dataset("group/new", data=numpy.arange(5))
                if None in data.maxshape:
                    axis = data.maxshape.index(None)
                    data.resize(data.shape[axis] + 3, axis=axis)
                    data.resize(data.shape[axis] - 3, axis=axis)
                if raw.size:
                    corner = tuple(length - 1 for length in raw.shape)
                    data[corner] = 1
                    raw[corner] = 1
                    expected["chunks"] = data.id.get_num_chunks()
    checked += 1
print(checked)
