"""Masters with virtual datasets: `weld.py make|bad DIRECTORY` makes them and prints their names, `weld.py check DIRECTORY`
compares them with `welded-NAME`."""

import itertools
import pathlib
import sys

import h5py
import hdf5plugin
import numpy

FRAMES, SHAPE = 12, (8, 12)
FILTERS = {
    "bslz4": hdf5plugin.Bitshuffle(cname="lz4"),
    "lz4": hdf5plugin.LZ4(),
    "zstd": hdf5plugin.Zstd(),
    "gzip": {"compression": "gzip", "shuffle": True},
    "raw": {},
}


def frame(number):
    return (numpy.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE) * (number + 3) % 251).astype("u2")


def write(path, frames, name="data", chunk=None, filters="bslz4"):
    with h5py.File(path, "a") as file:
        data = numpy.array(frames)
        file.create_dataset(name, data=data, chunks=(1, *(chunk or data.shape[1:])), **FILTERS[filters])


def blocks(directory, stem, filters, libver):
    """Each file has consecutive frames."""
    layout = h5py.VirtualLayout((FRAMES, *SHAPE), "u2")
    for part in range(3):
        write(directory / f"{stem}-{part}.h5", [frame(4 * part + n) for n in range(4)], filters=filters)
        layout[4 * part : 4 * part + 4] = h5py.VirtualSource(f"{stem}-{part}.h5", "data", (4, *SHAPE))
    master(directory / f"{stem}.h5", layout, libver)


def turns(directory, stem, filters, libver):
    """The files have frames in turn, as several processes of odin-data write them."""
    layout = h5py.VirtualLayout((FRAMES, *SHAPE), "u2")
    for part in range(4):
        write(directory / f"{stem}-{part}.h5", [frame(n) for n in range(part, FRAMES, 4)], filters=filters)
        layout[part::4] = h5py.VirtualSource(f"{stem}-{part}.h5", "data", (3, *SHAPE))
    master(directory / f"{stem}.h5", layout, libver)


def tiles(directory, stem, filters, libver):
    """Each file has a module of each frame, in two chunks."""
    layout = h5py.VirtualLayout((FRAMES, *SHAPE), "u2")
    for part in range(2):
        rows = slice(4 * part, 4 * part + 4)
        write(directory / f"{stem}-{part}.h5", [frame(n)[rows] for n in range(FRAMES)], chunk=(4, 6), filters=filters)
        layout[:, rows] = h5py.VirtualSource(f"{stem}-{part}.h5", "data", (FRAMES, 4, SHAPE[1]))
    master(directory / f"{stem}.h5", layout, libver)


def gap(directory, stem, filters, libver):
    """A frame that no file has."""
    layout = h5py.VirtualLayout((FRAMES, *SHAPE), "u2", maxshape=None)
    for part, numbers in enumerate((range(0, 5), range(6, FRAMES))):
        write(directory / f"{stem}-{part}.h5", [frame(n) for n in numbers], filters=filters)
        source = h5py.VirtualSource(f"{stem}-{part}.h5", "data", (len(numbers), *SHAPE))
        layout[numbers.start : numbers.stop] = source
    master(directory / f"{stem}.h5", layout, libver)


def master(path, layout, libver=None, name="entry/data/data"):
    with h5py.File(path, "a", libver=libver) as file:
        file.create_virtual_dataset(name, layout)


def make(directory):
    forms = [(form, filters, "latest") for form in (blocks, turns, tiles, gap) for filters in ("bslz4",)]
    forms += [(turns, filters, None) for filters in FILTERS] + [(tiles, "raw", "latest"), (blocks, "gzip", None)]
    for form, filters, libver in forms:
        stem = f"{form.__name__}-{filters}-{libver or 'earliest'}"
        form(directory, stem, filters, libver)
        print(f"{stem}.h5")


def bad(directory):
    write(directory / "a.h5", [frame(n) for n in range(3)])
    write(directory / "b.h5", [frame(n) for n in range(3)], filters="gzip")
    write(directory / "a.h5", [frame(n) for n in range(3)], name="other")
    layout = h5py.VirtualLayout((6, *SHAPE), "u2")
    for part, name in enumerate("ab"):
        layout[3 * part : 3 * part + 3] = h5py.VirtualSource(f"{name}.h5", "data", (3, *SHAPE))
    master(directory / "filters.h5", layout)
    layout = h5py.VirtualLayout((3, *SHAPE), "u2")
    layout[:] = h5py.VirtualSource("nowhere.h5", "data", (3, *SHAPE))
    master(directory / "absent.h5", layout)
    layout = h5py.VirtualLayout((3, 5, SHAPE[1]), "u2")
    layout[:] = h5py.VirtualSource("a.h5", "data", (3, *SHAPE))[:, 3:]
    master(directory / "cut.h5", layout)
    with h5py.File(directory / "c.h5", "w") as file:
        file.create_dataset("data", data=numpy.zeros((4, *SHAPE), "u2"), chunks=(2, *SHAPE))
    layout = h5py.VirtualLayout((4, *SHAPE), "u2")
    layout[:] = h5py.VirtualSource("c.h5", "data", (4, *SHAPE))
    master(directory / "slabs.h5", layout)
    write(directory / "d.h5", [frame(n) for n in range(3)])
    with h5py.File(directory / "d.h5", "a") as file:
        file["data"].id.write_direct_chunk((2, 0, 0), frame(2).tobytes(), filter_mask=1)
    layout = h5py.VirtualLayout((3, *SHAPE), "u2")
    layout[:] = h5py.VirtualSource("d.h5", "data", (3, *SHAPE))
    master(directory / "late.h5", layout)
    for libver in (None, "latest"):
        layout = h5py.VirtualLayout((3, *SHAPE), "u2", maxshape=(None, *SHAPE))
        source = h5py.VirtualSource("a.h5", "data", (3, *SHAPE), maxshape=(None, *SHAPE))
        layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
        master(directory / f"unlimited-{libver}.h5", layout, libver)
    for name in ("data", "other"):
        layout = h5py.VirtualLayout((3, *SHAPE), "u2")
        layout[:] = h5py.VirtualSource("a.h5", name, (3, *SHAPE))
        master(directory / "two.h5", layout, name=name)
    with h5py.File(directory / "none.h5", "w") as file:
        file["data"] = [1, 2, 3]


def check(directory):
    for welded in directory.glob("welded-*.h5"):
        original = directory / welded.name.removeprefix("welded-")
        with h5py.File(original) as master, h5py.File(welded) as file:
            wanted, data = master["entry/data/data"], file["entry/data/data"]
            assert data.shape == wanted.shape and data.dtype == wanted.dtype, welded
            assert (data[:] == wanted[:]).all(), welded
            stored = chunks(data)
            for path in directory.glob(f"{original.stem}-?.h5"):
                with h5py.File(path) as source:
                    assert chunks(source["data"]) <= stored, f"{path}: chunks have changed"
    print("right")


def chunks(data):
    sides = [range(0, side, chunk) for side, chunk in zip(data.shape, data.chunks)]
    stored = (data.id.get_chunk_info_by_coord(at) for at in itertools.product(*sides))
    return {data.id.read_direct_chunk(info.chunk_offset)[1] for info in stored if info.size}


if __name__ == "__main__":
    {"make": make, "bad": bad, "check": check}[sys.argv[1]](pathlib.Path(sys.argv[2]))
