"""Compares all attributes of all objects of two HDF5 files, which must have the same objects: `attributes.py ONE OTHER`.
Prints their number."""

import sys

import h5py
import numpy


def attributes(path):
    found = {}
    with h5py.File(path) as file:
        paths = ["/"]
        file.visit(paths.append)
        for name in paths:
            for key in file[name].attrs:
                attribute = h5py.h5a.open(file[name].id, key.encode())
                value = numpy.asarray(file[name].attrs[key])
                found[name, key] = (attribute.dtype, attribute.shape, value.tobytes())
            # The library copies the number of attributes that it counts.
            assert h5py.h5o.get_info(file[name].id).num_attrs == len(file[name].attrs), (path, name)
    return found


one, other = (attributes(path) for path in sys.argv[1:])
assert one == other, set(one.items()) ^ set(other.items())
print(len(one))
