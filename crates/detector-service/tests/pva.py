"""An EPICS server of one NTNDArray, as areaDetector's pva plugin is one.

    pva.py            prints its TCP port and its port of searches, then obeys lines on stdin:
                      post FIRST COUNT CODEC [DTYPE]   posts frames with these unique ids; CODEC is plain, lz4, bslz4 or jpeg
                      quit
    pva.py check FILE FIRST CODEC [DTYPE]              checks a run's file, prints its number of frames
"""

import sys
import time

import h5py
import hdf5plugin
import lz4.block
import numpy

PV = "SIM1:Pva1:Image"
SHAPE = (48, 64)
# The order of pvData's ScalarType.
TYPES = {"i1": 1, "i2": 2, "i4": 3, "i8": 4, "u1": 5, "u2": 6, "u4": 7, "u8": 8, "f4": 9, "f8": 10}
# Frames come slowly enough that the queue of the server is never full.
PAUSE = 0.01


def frame(number, dtype):
    return (numpy.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE) * (number + 1) % 251 % 97).astype(dtype)


def taken(number):
    return 1_700_000_000 + number, 250_000_000


def bitshuffled(array):
    """What bshuf_compress_lz4 makes of the array: the chunk of the HDF5 filter without its header of 12 bytes."""
    with h5py.File("memory.h5", "w", driver="core", backing_store=False) as file:
        options = hdf5plugin.Bitshuffle(cname="lz4")
        data = file.create_dataset("data", data=array, chunks=array.shape, compression=options)
        return data.id.read_direct_chunk((0, 0))[1][12:]


def compressed(array, codec):
    if codec == "lz4":
        return lz4.block.compress(array.tobytes(), store_size=False)
    return bitshuffled(array) if codec == "bslz4" else b"\xff\xd8\xff\xe0 a picture"


def value(nt, number, codec, dtype):
    from p4p import Type, Value

    array = frame(number, dtype)
    attrib = {"ColorMode": 0, "Gain": 2.5 * number, "Mode": f"mode {number}", "Counts": Value(Type([("value", "L")]), {"value": number})}
    wrapped = nt.wrap(array, attrib=attrib)
    wrapped["uniqueId"] = number
    seconds, nanoseconds = taken(number)
    for name in ("timeStamp", "dataTimeStamp"):
        wrapped[f"{name}.secondsPastEpoch"], wrapped[f"{name}.nanoseconds"] = seconds, nanoseconds
    # An update contains only the fields that were set.
    wrapped["codec.name"] = "" if codec == "plain" else codec
    if codec != "plain":
        blob = numpy.frombuffer(compressed(array, codec), "u1")
        # areaDetector sends the whole buffer of the array, and says how much of it counts.
        wrapped["value"] = ("ubyteValue", numpy.concatenate([blob, numpy.zeros(7, "u1")]))
        wrapped["codec.parameters"] = TYPES[numpy.dtype(dtype).str[1:]]
        wrapped["compressedSize"] = len(blob)
    return wrapped


def serve():
    from p4p.nt import NTNDArray
    from p4p.server import Server
    from p4p.server.thread import SharedPV

    nt = NTNDArray()
    pv = SharedPV(initial=value(nt, 0, "plain", "u2"))
    with Server(providers=[{PV: pv}], isolate=True) as server:
        conf = server.conf()
        print(conf["EPICS_PVAS_SERVER_PORT"], conf["EPICS_PVAS_BROADCAST_PORT"], flush=True)
        for line in sys.stdin:
            command, *rest = line.split()
            if command == "quit":
                break
            first, count, codec = int(rest[0]), int(rest[1]), rest[2]
            for number in range(first, first + count):
                pv.post(value(nt, number, codec, rest[3] if len(rest) > 3 else "u2"))
                time.sleep(PAUSE)
            print("posted", flush=True)


def check(path, first, codec, dtype="u2"):
    with h5py.File(path) as file:
        detector = file["entry/instrument/detector"]
        data, scalars = detector["data"], detector["scalars"]
        ids = scalars["NDArrayUniqueId"][:]
        # The server sends its present value before the subscription's first frame, so the run may begin later.
        start = int(ids[0])
        assert first <= start and (ids == range(start, start + len(ids))).all(), ids
        assert data.dtype == dtype and data.shape == (len(ids), *SHAPE), data
        filters = dict(data._filters)
        assert ("32004" in filters) == (codec == "lz4") and ("32008" in filters) == (codec != "lz4"), filters
        for row, number in enumerate(ids):
            number = int(number)
            assert (data[row] == frame(number, dtype)).all(), number
            seconds, nanoseconds = taken(number)
            assert detector["times/detector"][row] == seconds * 10**9 + nanoseconds, number
            assert scalars["NDArrayTimeStamp"][row] == seconds + nanoseconds / 1e9
            assert scalars["Gain"][row] == 2.5 * number and scalars["Counts"][row] == number
            assert scalars["Mode"][row].decode() == f"mode {number}" and scalars["ColorMode"][row] == 0
            if codec in ("lz4", "bslz4"):
                blob = compressed(frame(number, dtype), codec)
                chunk = data.id.read_direct_chunk((row, 0, 0))[1]
                assert chunk.endswith(blob), "the chunk was compressed again"
        assert (detector["frame_status"][:] == 1).all()
        print(len(ids), start)


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        check(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    else:
        serve()
