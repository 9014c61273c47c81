# One h5py process that takes the detector stream as the service does: reads frames from TCP, compresses each with the
# bitshuffle+LZ4 of hdf5plugin in this one thread, and writes it as one chunk, past HDF5's own filter pipeline.
# usage: h5py.py FILE FRAMES ROWS COLUMNS TYPE. Prints its port, and at the end its results as JSON.
import ctypes
import json
import socket
import struct
import sys
import time

import h5py
import hdf5plugin
import numpy

path, frames, rows, columns, kind = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
listener = socket.create_server(("127.0.0.1", 0))
listener.settimeout(120)
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
connection.settimeout(120)

element = numpy.dtype(f"{kind[0]}{int(kind[1:]) // 8}")
frame = bytearray(rows * columns * element.itemsize)
count = rows * columns
library = ctypes.CDLL(hdf5plugin.get_config().registered_filters["bshuf"])
library.bshuf_compress_lz4_bound.restype = ctypes.c_size_t
library.bshuf_compress_lz4_bound.argtypes = [ctypes.c_size_t] * 3
library.bshuf_compress_lz4.restype = ctypes.c_int64
library.bshuf_compress_lz4.argtypes = [ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_size_t] * 3
library.bshuf_default_block_size.restype = ctypes.c_size_t
library.bshuf_default_block_size.argtypes = [ctypes.c_size_t]
block = library.bshuf_default_block_size(element.itemsize)
chunk = bytearray(12 + library.bshuf_compress_lz4_bound(count, element.itemsize, block))
chunk[:12] = struct.pack(">QI", len(frame), block * element.itemsize)
source = ctypes.addressof(ctypes.c_char.from_buffer(frame))
target = ctypes.addressof(ctypes.c_char.from_buffer(chunk)) + 12
view, stored = memoryview(frame), memoryview(chunk)


def read(into):
    at = 0
    while at < len(into):
        got = connection.recv_into(into[at:], len(into) - at)
        if got == 0:
            sys.exit("the stream ended early")
        at += got


file = h5py.File(path, "w", libver="latest")
data = file.create_dataset(
    "data", (frames, rows, columns), element, chunks=(1, rows, columns), **hdf5plugin.Bitshuffle(cname="lz4"))
header, latencies, taken_frames = memoryview(bytearray(32)), [], 0
cpu = time.process_time()
while True:
    read(header)
    message, _, _, head_bytes, body_bytes = struct.unpack_from("<BBHIQ", header)
    head = memoryview(bytearray(head_bytes))
    read(head)
    if message == 4:
        break
    if message != 2:
        continue
    number, taken = struct.unpack_from("<QQ", head)
    read(view[:body_bytes])
    length = library.bshuf_compress_lz4(source, target, count, element.itemsize, block)
    if length < 0:
        sys.exit("bitshuffle failed")
    data.id.write_direct_chunk((number, 0, 0), stored[:12 + length], 0)
    latencies.append(time.time_ns() - taken)
    taken_frames += 1
file.close()
print(json.dumps({"frames": taken_frames, "cpu_s": time.process_time() - cpu, "latencies_ns": latencies}), flush=True)
