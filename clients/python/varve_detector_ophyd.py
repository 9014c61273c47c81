"""Runs of `varve record serve` in Bluesky: a detector for ophyd-async, which starts a run, watches its frames become durable,
and describes the file by stream_resource and stream_datum documents. Needs `pip install 'varve-detector[ophyd]'`.

`VarveDataLogic` adds the service to any StandardDetector, for example to an areaDetector driver whose pvAccess plugin the
service subscribes to. `VarveDetector` is a StandardDetector with that logic alone, for detectors that are controlled
elsewhere.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import PurePath

from ophyd_async.core import (
    DetectorAcquireLogic,
    DetectorDataLogic,
    DetectorTriggerLogic,
    PathInfo,
    PathProvider,
    SignalR,
    StandardDetector,
    StreamResourceDataProvider,
    StreamResourceInfo,
    soft_signal_r_and_setter,
)

from varve_detector import DetectorError, Refused
from varve_detector_control import Control, FileTemplate

__all__ = ["TemplatePathProvider", "VarveDataLogic", "VarveDetector"]

MIMETYPE = "application/x-hdf5"
# How long one request waits for news of a run. A stop is noticed after it at the latest.
WATCH_WAIT = 1.0
# Pause after a request that failed, for example while the service restarts.
WATCH_RETRY = 1.0
# A plan may pause for hours between frames, so the run must outlive the clients that have left.
ABSENCE_S = 86400.0
# The service's rule for names of runs.
RUN_NAME_BYTES_MAX = 64

# More files of one name than a service remembers ended runs.
RUN_NAMES_MAX = 200
# A service refuses with these while it is busy or restarts, and does not after it.
REFUSED_FOR_NOW = ("limit", "stopping", "full", "token")

logger = logging.getLogger("varve_detector_ophyd")


class TemplatePathProvider(PathProvider):
    """Paths as areaDetector's file plugins make them: directory, name, number and template of a `FileTemplate`, whose path is
    absolute here. `create_dir_depth`: areaDetector's CreateDirectory; -N creates at most the last N directories."""

    def __init__(self, files: FileTemplate, create_dir_depth: int = 0) -> None:
        self.files, self._depth = files, create_dir_depth

    def __call__(self, datakey_name: str | None = None) -> PathInfo:
        path = PurePath(self.files.next())
        return PathInfo(directory_path=path.parent, filename=path.name, create_dir_depth=self._depth)


def _missing_directories(info: PathInfo) -> int:
    """How many directories may be created for the file. A positive depth counts from the start of the path."""
    depth, parts = info.create_dir_depth, len(info.directory_path.parts) - 1
    return -depth if depth < 0 else max(0, parts - depth) if depth > 0 else 0


def _run_name(filename: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", filename).lstrip(".") or "run"
    return name[-RUN_NAME_BYTES_MAX:].lstrip(".")


class VarveDataLogic(DetectorDataLogic):
    """One run of the service, and one file, from `stage` to `unstage`.

    control        the service
    path_provider  where the file goes: below the directory of the service, as this program sees it
    description    the run: `element`, `frame` and others, as `POST /runs` takes them; or a function that returns them
    extension      of the file, where the provider's name has none
    options        of `Control.start`
    """

    def __init__(
        self,
        control: Control,
        path_provider: PathProvider,
        description: dict | Callable[[], Awaitable[dict]],
        *,
        extension: str = ".h5",
        datakey_suffix: str = "",
        options: dict | None = None,
    ) -> None:
        self.control, self.path_provider, self.description = control, path_provider, description
        self.extension, self.datakey_suffix, self.options = extension, datakey_suffix, options or {}
        # The run that is active; clients that send frames need its name.
        self.run, self._set_run = soft_signal_r_and_setter(str)
        self.frames_readable, self._set_readable = soft_signal_r_and_setter(int)
        self._active: str | None = None
        self._watching: asyncio.Task | None = None

    async def prepare_unbounded(self, datakey_name: str) -> StreamResourceDataProvider:
        await self.stop()
        info = self.path_provider(datakey_name)
        filename = info.filename if PurePath(info.filename).suffix else info.filename + self.extension
        description = self.description if isinstance(self.description, dict) else await self.description()
        if len(description.get("scan", [None])) != 1:
            raise ValueError("`scan` has several sides; Bluesky numbers frames along one")
        name = _run_name(PurePath(filename).stem)
        # The device ends the run, not the clients that send its frames.
        options = {"finish": False, "absence_s": ABSENCE_S, "directories": _missing_directories(info), **self.options}
        path = info.directory_path / filename
        name, status = await self._start(name, path, description, options)
        self._active = name
        self._set_run(name)
        self._set_readable(status["readable"])
        self._watching = asyncio.create_task(self._watch(name))
        return StreamResourceDataProvider(
            uri=f"{info.directory_uri}{filename}",
            # Bluesky has no type for datasets of texts.
            resources=[_resource(datakey_name, each) for each in status["datasets"] if each["dtype"][1] != "S"],
            mimetype=MIMETYPE,
            collections_written_signal=self.frames_readable,
        )

    async def _start(self, stem: str, path: PurePath, description: dict, options: dict) -> tuple[str, dict]:
        """Starts a run under the first free name of `stem`, `stem-2`, and so on: files of several directories may have one
        name."""
        for number in range(1, RUN_NAMES_MAX + 1):
            suffix = "" if number == 1 else f"-{number}"
            name = stem[: RUN_NAME_BYTES_MAX - len(suffix)] + suffix
            try:
                return name, await asyncio.to_thread(self.control.start, name, path, description, **options)
            except Refused as error:
                # If it had this file, the next name is refused because the file exists.
                if error.name != "ended" or number == RUN_NAMES_MAX:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def stop(self) -> None:
        """Finishes the run, if one is active."""
        name = self._active
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        if name is not None:
            # Frames that arrived last count as well.
            try:
                status = await asyncio.to_thread(self.control.stop, name)
            except Refused as error:
                if error.name not in REFUSED_FOR_NOW:
                    self._active = None
                raise
            # After a request that failed, the run is still active, and the next call stops it.
            self._active = None
            self._set_readable(status["readable"])
            self._set_run("")
            if status["state"] == "failed":
                raise DetectorError(f"run {name} failed: {status['why']}")

    def get_hinted_fields(self, datakey_name: str) -> Sequence[str]:
        return [datakey_name]

    async def _watch(self, name: str) -> None:
        """Follows the number of readable frames until the run ends."""
        latest = None
        while True:
            try:
                status = await asyncio.to_thread(self.control.latest, name, latest, WATCH_WAIT)
            except Refused as error:
                if error.name in REFUSED_FOR_NOW:
                    logger.warning("cannot watch run %s, retrying: %s", name, error)
                    await asyncio.sleep(WATCH_RETRY)
                    continue
                logger.error("cannot watch run %s: %s", name, error)
                return
            except DetectorError as error:
                logger.warning("cannot watch run %s, retrying: %s", name, error)
                await asyncio.sleep(WATCH_RETRY)
                continue
            latest = status["latest_durable"]
            self._set_readable(status["readable"])
            if status["state"] not in ("waiting", "running", "ending"):
                logger.error("run %s has ended before its plan: %s, %s", name, status["state"], status["why"])
                return


def _resource(datakey_name: str, dataset: dict) -> StreamResourceInfo:
    name = dataset["name"]
    return StreamResourceInfo(
        data_key=datakey_name if name is None else f"{datakey_name}-{name}",
        # Without the side of the scan.
        shape=tuple(dataset["shape"][1:]),
        chunk_shape=tuple(dataset["chunk"]),
        dtype_numpy=dataset["dtype"],
        parameters={"dataset": dataset["path"]},
    )


class VarveDetector(StandardDetector):
    """A detector whose frames the service writes. `acquire_logic` makes the frames come: it arms the detector, or sends frames
    by `varve_detector.Client` to the run that the signal `run` names. Without it, another device triggers the detector."""

    def __init__(
        self,
        control: Control,
        path_provider: PathProvider,
        description: dict | Callable[[], Awaitable[dict]],
        *,
        trigger_logic: DetectorTriggerLogic | None = None,
        acquire_logic: DetectorAcquireLogic | None = None,
        config_signals: Sequence[SignalR] = (),
        name: str = "",
        **data_logic,
    ) -> None:
        data = VarveDataLogic(control, path_provider, description, **data_logic)
        self.run, self.frames_readable = data.run, data.frames_readable
        self.add_detector_logics(*[logic for logic in (trigger_logic, acquire_logic, data) if logic is not None])
        self.add_config_signals(*config_signals)
        super().__init__(name=name)
