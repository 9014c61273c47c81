"""A RunEngine with a detector of ophyd-async whose frames the service writes: `run_engine.py CONTROL FRAMES DIRECTORY LIBRARY`.

Checks each document against the schemas of event-model, and its path, dataset, type, shape and chunks against the file."""

import asyncio
import pathlib
import sys
from urllib.parse import urlparse

import h5py
import hdf5plugin  # noqa: F401  registers the filters
import numpy

control_address, stream_address, directory = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[4])
import bluesky.plan_stubs as bps  # noqa: E402
import bluesky.plans as bp  # noqa: E402
from bluesky import RunEngine  # noqa: E402
from event_model import DocumentNames, schema_validators  # noqa: E402
from ophyd_async.core import DetectorAcquireLogic, DetectorTriggerLogic, TriggerInfo, init_devices  # noqa: E402
from varve_detector import Client, Refused  # noqa: E402
from varve_detector_control import Control, FileTemplate  # noqa: E402
from varve_detector_ophyd import TemplatePathProvider, VarveDetector  # noqa: E402
from varve_follow import Follower  # noqa: E402

SHAPE = (6, 8)
SCALARS = ["angle", {"name": "pulse", "type": "u64"}, {"name": "note", "type": "text", "bytes": 8}]
DESCRIPTION = {"element": "u16", "frame": list(SHAPE), "structure": "nexus", "scalars": SCALARS}


def frame(number):
    return numpy.full(SHAPE, number + 1, "u2")


class Camera:
    """Sends the frames it was prepared for to the run of its detector."""

    def __init__(self):
        self.detector, self.client, self.frames, self.next = None, None, 1, 0

    async def expose(self):
        run = await self.detector.run.get_value()
        if self.client is None:
            self.client, self.next = await asyncio.to_thread(Client, stream_address, run), 0
        await asyncio.to_thread(self.send)

    def send(self):
        for number in range(self.next, self.next + self.frames):
            self.client.send(number, frame(number), shape=SHAPE)
            self.client.scalars({number: {"angle": 0.5 * number, "pulse": 100 + number, "note": f"n{number}"}})
        self.next += self.frames

    async def stop(self):
        client, self.client = self.client, None
        if client is not None:
            client.close()


class Acquire(DetectorAcquireLogic):
    def __init__(self, camera):
        self.camera = camera

    async def start_acquiring(self):
        await self.camera.expose()

    async def wait_for_idle(self):
        await asyncio.to_thread(self.camera.client.wait)

    async def ensure_stopped(self):
        await self.camera.stop()


class Trigger(DetectorTriggerLogic):
    def __init__(self, camera):
        self.camera = camera

    async def prepare_internal(self, num, livetime, deadtime):
        self.camera.frames = num


def fly(detector, frames):
    yield from bps.stage(detector, wait=True)
    yield from bps.open_run()
    yield from bps.prepare(detector, TriggerInfo(number_of_events=frames), wait=True)
    yield from bps.declare_stream(detector, name="primary", collect=True)
    yield from bps.kickoff(detector, wait=True)
    yield from bps.complete(detector, wait=True)
    yield from bps.collect(detector, name="primary")
    yield from bps.close_run()
    yield from bps.unstage(detector, wait=True)


def check(documents, frames, file):
    """The documents of one run, whose frames lie in `file`."""
    for name, document in documents:
        schema_validators[DocumentNames[name]].validate(document)
    descriptor = next(document for name, document in documents if name == "descriptor")
    resources = {document["uid"]: document for name, document in documents if name == "stream_resource"}
    assert {document["data_key"] for document in resources.values()} == {"det", "det-angle", "det-pulse"}, resources
    indices = {uid: [] for uid in resources}
    for name, document in documents:
        if name == "stream_datum":
            assert document["descriptor"] == descriptor["uid"]
            span = document["indices"]
            indices[document["stream_resource"]] += range(span["start"], span["stop"])
    for uid, resource in resources.items():
        assert indices[uid] == list(range(frames)), indices
        key, parameters = descriptor["data_keys"][resource["data_key"]], resource["parameters"]
        uri = urlparse(resource["uri"])
        assert (uri.scheme, uri.path, resource["mimetype"]) == ("file", str(file), "application/x-hdf5"), resource
        with h5py.File(uri.path) as opened:
            data = opened[parameters["dataset"]]
            assert data.dtype.str == key["dtype_numpy"], (data.dtype.str, key)
            # A scalar counts as an array of one element.
            assert list(data.shape[1:]) == list(key["shape"][1:]) and key["shape"][0] == 1, (data.shape, key)
            assert data.chunks == tuple(parameters["chunk_shape"]), (data.chunks, parameters)
            assert len(data) == frames and key["external"] == "STREAM:", (data, key)
            for number in range(frames):
                wanted = {"det": frame(number), "det-angle": 0.5 * number, "det-pulse": 100 + number}
                assert (data[number] == wanted[resource["data_key"]]).all(), (resource, number)


def main():
    engine = RunEngine({})
    documents = []
    engine.subscribe(lambda name, document: documents.append((name, document)))
    control = Control(control_address)
    files = FileTemplate(directory / "scan" / "today", "lyso", "%s%s_%3.3d.h5", number=7)
    camera = Camera()
    with init_devices():
        det = VarveDetector(
            control,
            TemplatePathProvider(files, create_dir_depth=-2),
            DESCRIPTION,
            trigger_logic=Trigger(camera),
            acquire_logic=Acquire(camera),
        )
    camera.detector = det
    for plan, number in ((bp.count([det], num=3), 7), (fly(det, 5), 8)):
        documents.clear()
        engine(plan)
        file = directory / "scan" / "today" / f"lyso_{number:03}.h5"
        check(documents, 3 if number == 7 else 5, file)
        assert control.status(f"lyso_{number:03}")["state"] == "finished"
        with Follower(file) as run:
            assert len(run.file["entry/data/data"]) == (3 if number == 7 else 5)
    assert files.number == 9 and [run["state"] for run in control.runs()] == ["finished"] * 2
    # A file that exists is never overwritten, and the plan fails with the service's words.
    files.number = 8
    try:
        engine(bp.count([det]))
        raise AssertionError("a file was overwritten")
    except Exception as error:
        causes = [error, error.__cause__, *getattr(error, "args", ())]
        assert any("a run never overwrites a file" in str(cause) for cause in causes), repr(error)
    # A file of this name in another directory is another run.
    files.path, files.number = str(directory / "scan" / "tomorrow"), 8
    engine(bp.count([det], num=2))
    assert control.status("lyso_008-2")["state"] == "finished"
    with Follower(directory / "scan" / "tomorrow" / "lyso_008.h5") as run:
        assert len(run.file["entry/data/data"]) == 2
    try:
        control.start("deep", directory / "a" / "b" / "c.h5", {"element": "u8", "frame": [2, 2]}, directories=1)
        raise AssertionError("two directories were created")
    except Refused as error:
        assert "2 directories are missing" in str(error), error
    names = FileTemplate("/data", "run", "%s%s_%d.h5")
    assert [names.next(), names.next(), names.file] == ["/data/run_1.h5", "/data/run_2.h5", "/data/run_3.h5"]
    assert FileTemplate("a/", "b", "%s%s.nxs").next() == "a/b.nxs"
    for wrong in ("%d%s", "%s%s%s", "%", "%s%n"):
        try:
            FileTemplate(template=wrong)
            raise AssertionError(wrong)
        except ValueError:
            pass
    print("right")


main()
