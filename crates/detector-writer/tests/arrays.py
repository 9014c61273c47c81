"""The Python client with arrays of numpy: `arrays.py HOST:PORT DIRECTORY LIBRARY`. Prints the number of correct frames."""

import pathlib
import sys
import zlib

import h5py
import hdf5plugin  # noqa: F401  registers the filters
import numpy

address, directory = sys.argv[1], pathlib.Path(sys.argv[2])
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[3])
import varve_detector  # noqa: E402

right = 0
random = numpy.random.default_rng(1)
for dtype, element in (("<f4", "f32"), ("u1", "u8"), ("<i8", "i64"), ("<f2", "f16")):
    name = f"arrays-{element}"
    images = (random.random((8, 10, 12)) * 100).astype(dtype)
    start = {"file": f"{name}.h5", "description": {"element": element, "frame": [10, 12], "filter": "gzip:1"}}
    with varve_detector.Client(address, name, start=start, window_bytes=4000) as client:
        for number, image in enumerate(images[:4]):
            client.send(number, image, taken=123 + number)
        # A slice of an array whose rows are not contiguous; bytes; chunks filtered here.
        wide = numpy.zeros((10, 24), dtype)
        wide[:, ::2] = images[4]
        client.send(4, wide[:, ::2])
        client.send(5, images[5].tobytes())
        client.send(6, memoryview(images[6]))
        client.send_chunks(7, [zlib.compress(images[7].tobytes())], filter="gzip:1")
        for wrong in (images[0].astype(">f8"), images[0][:5], b"123"):
            try:
                client.send(9, wrong, **({} if isinstance(wrong, bytes) else {"shape": (10, 12), "element": element}))
                raise AssertionError("taken")
            except ValueError:
                pass
        client.wait()
        assert client.kept == 0 and client.poll() == 0
        finished = client.end()
    assert finished.received == 8, finished
    with h5py.File(directory / f"{name}.h5") as file:
        data = file["data"][...]
        assert data.dtype == images.dtype and list(file["times/detector"][:4]) == [123, 124, 125, 126]
        right += sum(bool((data[number] == images[number]).all()) for number in range(8))

# Chunks of three frames, filtered here; the last holds two.
images = random.integers(0, 4000, (8, 10, 12)).astype("<u2")
start = {"file": "slabs.h5", "description": {"element": "u16", "frame": [10, 12], "scan": [8], "chunk": [3, 10, 12],
                                             "filter": "gzip:1"}}
with varve_detector.Client(address, "slabs", start=start) as client:
    for first in (0, 3, 6):
        frames = images[first : first + 3]
        whole = numpy.concatenate([frames, numpy.zeros((3 - len(frames), 10, 12), "<u2")])
        client.send_chunks(first, [zlib.compress(whole.tobytes())], filter="gzip:1", frames=len(frames))
    finished = client.end()
assert finished.received == 8, finished
with h5py.File(directory / "slabs.h5") as file:
    right += int((file["data"][:8] == images).all(axis=(1, 2)).sum())

# A refusal of the service is raised once, and the client continues.
start = {"file": "refused.h5", "description": {"element": "u16", "frame": [4, 4], "scan": [20]}}
image = numpy.arange(16, dtype="<u2").reshape(4, 4)
with varve_detector.Client(address, "refused", start=start, level="written") as client:
    for number in range(10):
        client.send(number, image)
    try:
        client.send(20, image)
        client.wait()
        raise AssertionError("frame 20 of 20 was taken")
    except varve_detector.Refused as refusal:
        assert refusal.name == "refused" and "frame 20" in str(refusal), refusal
    assert client.counts["refused"] == 1 and client.notices[0].frame == 20
    # The client refuses invalid frame numbers. The service refuses them too, whatever its client does.
    for number in (-1, numpy.int64(-1), 2**64 - 1):
        try:
            client.send(number, image)
            raise AssertionError(f"frame {number} was taken")
        except ValueError as error:
            assert "numbered from 0" in str(error), error
    check, varve_detector._check_number = varve_detector._check_number, lambda number, frames=1: None
    try:
        client.send(2**64 - 1, image)
        client.wait()
        raise AssertionError("it was taken")
    except varve_detector.Refused as refusal:
        assert refusal.name == "refused", refusal
    varve_detector._check_number = check
    client.send(10, image)
    client.wait()
    assert client.reconnects == 0
    finished = client.end()
    right += finished.received

# The client gives up a message that the service still cannot parse after it was sent repeatedly.
start = {"file": "given-up.h5", "description": {"element": "u16", "frame": [4, 4]}}
with varve_detector.Client(address, "given-up", start=start) as client:
    try:
        client._frame(0, 0, (), "u16", "", [], b"", None)
        client.wait(600)
        raise AssertionError("a frame without sides was taken")
    except varve_detector.Refused as refusal:
        assert refusal.name == "protocol", refusal
print(right)
