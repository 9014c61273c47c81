"""One of several ranks under `mpirun`: reads its slice of a finished file's frames with parallel HDF5, collectively
and independently, and compares it. `ranks.py FILE FILL`; frames are those of `frames.py`. Rank 0 prints the number of
ranks and of frames read."""

import os
import sys

# Filter plug-ins find the library's functions only with these flags.
sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)

import numpy  # noqa: E402
from mpi4py import MPI  # noqa: E402

import h5py  # noqa: E402

assert h5py.get_config().mpi, "this h5py has no parallel HDF5"
world = MPI.COMM_WORLD
try:
    with h5py.File(sys.argv[1], "r", driver="mpio", comm=world) as file:
        data, status = file["entry/data/data"], file["entry/instrument/detector/frame_status"][...]
        first, end = (len(data) * rank // world.size for rank in (world.rank, world.rank + 1))
        with data.collective:
            together = data[first:end]
        assert (together == data[first:end]).all()
        index = numpy.arange(together[0].size, dtype=numpy.uint64)
        for number in range(first, end):
            # Debian's numpy turns an unsigned number and a Python number into floats.
            seven, n, thirteen_n, three = (numpy.uint64(value) for value in (7, number, 13 * number, 3))
            expected = ((seven * index + thirteen_n + (index >> three) * n) & numpy.uint64(0x3FF)).astype("<u2")
            expected = expected if status[number] else numpy.full(index.shape, int(sys.argv[2]), dtype="<u2")
            assert (together[number - first].ravel() == expected).all(), (world.rank, number)
    frames = world.reduce(end - first)
    if world.rank == 0:
        print(world.size, frames)
except BaseException as error:
    # Otherwise the other ranks wait for this one.
    print(f"rank {world.rank}: {error!r}", file=sys.stderr, flush=True)
    world.Abort(1)
