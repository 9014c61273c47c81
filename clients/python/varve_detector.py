"""Brings frames and scalars of a detector to `varve record serve`. One file, Python 3.9 or newer, nothing else needed;
arrays of numpy are understood where there are any.

    from varve_detector import Client

    start = {"file": "run.h5", "description": {"element": "u16", "frame": [2527, 2463], "scalars": ["angle"]}}
    with Client("127.0.0.1:7420", "run-1", start=start) as client:
        for number, image in enumerate(images):
            client.send(number, image)
            client.scalars({number: {"angle": 0.1 * number}})
        print(client.end())

The bytes are described in `formats/detector-stream.md`. A client keeps a frame until it is acknowledged at its level; when the
connection breaks it connects again and sends what the service does not have. A client belongs to one thread: it works
within its calls only, so call `poll` now and then while there is nothing to send.
"""

import bisect
import json
import numbers
import operator
import os
import secrets
import select
import socket
import ssl
import stat
import struct
import time
import zlib
from collections import OrderedDict, deque, namedtuple

__version__ = "0.1.0"
__all__ = ["Client", "DetectorError", "Refused", "Timeout", "Finished", "Notice", "MEMORY", "WRITTEN", "DURABLE"]

MEMORY, WRITTEN, DURABLE = 1, 2, 4
LEVELS = {"memory": MEMORY, "written": WRITTEN, "durable": DURABLE}
ELEMENTS = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f16", "f32", "f64"]
# Kinds of a buffer's format (struct's letters) and of numpy, by their class of number.
FORMATS = {"B": "u", "H": "u", "I": "u", "L": "u", "Q": "u", "b": "i", "h": "i", "i": "i", "l": "i", "q": "i",
           "e": "f", "f": "f", "d": "f"}
ERRORS = {1: "protocol", 2: "version", 3: "token", 4: "unknown", 5: "busy", 6: "failed", 7: "description", 8: "limit",
          9: "ended", 10: "vanished", 11: "stopping", 12: "full"}
# After these it helps to connect again.
PASSING = {"protocol", "vanished", "stopping", "full"}
NOTICES = {1: "dropped", 2: "damaged", 3: "duplicate", 4: "refused"}
HELLO, FRAME, SCALARS, END, PING = 1, 2, 3, 4, 5
WELCOME, ACK, NOTICE, ERROR, FINISHED, PONG = 129, 130, 131, 132, 133, 134
HEADER = struct.Struct("<BBHIQQI")
HEAD_BYTES_MAX = 1 << 20
# How often a frame is sent whose bytes are changed on the way.
ATTEMPTS = 5
# So many errors `protocol` one after the other, with nothing acknowledged between them, are no damage on the way.
PROTOCOL_ERRORS = 10
# Scalars that the service has not answered to yet.
SCALAR_BYTES_MAX = 64 << 20
NOTICES_KEPT = 1000
# Seconds that a connection is tried for by a call that waits for nothing.
CONNECT_GLANCE = 0.2
FOR_EVER = 0xFFFFFFFF
# The newest version of the stream that is spoken here, and the first in which scalars have kinds.
NEWEST_VERSION = KINDS_VERSION = 2
SCALARS_FLAG_KINDS = 1
PING_FLAG_FLUSH = 1
# Kinds of scalars, and what says nothing.
FLOAT, INTEGER, UNSIGNED, TEXT = 0, 1, 2, 3
NOTHING = {FLOAT: float("nan"), INTEGER: -1 << 63, UNSIGNED: (1 << 64) - 1}
NO_TEXT = 0xFFFF

Notice = namedtuple("Notice", "name frame text")
Notice.__doc__ = "What is not as it should be with one frame: dropped, damaged, duplicate or refused."
Finished = namedtuple("Finished", "frames received missing damaged duplicate late dropped file_bytes partial")
Finished.__doc__ = "What a finished run has."


class DetectorError(Exception):
    """What the client could not do."""


class Timeout(DetectorError):
    """The time given is over. Nothing is lost: the next call goes on with it."""


class Refused(DetectorError):
    """The service refuses this client for good, or one of its frames. `name` is the code's name in the format."""

    def __init__(self, name, text):
        super().__init__(f"{name}: {text}")
        self.name, self.text = name, text


class _Kept:
    """A message that is kept until it is acknowledged."""

    __slots__ = ("head", "body", "level", "attempts")

    def __init__(self, head, body):
        self.head, self.body, self.level, self.attempts = head, body, 0, 1


def _published_token(peer):
    """The token that a service of this user has published for an address of this host; b"" if there is none. It is looked for
    at each connection, for a service that is started again has another."""
    address, port = peer[0], peer[1]
    if not (address.startswith("127.") or address == "::1") or not hasattr(os, "geteuid"):
        return b""
    user, found = os.geteuid(), []
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [f"{session}/varve-detector"] if session.startswith("/") else []
    places += ["/run/varve-detector" if user == 0 else f"/run/user/{user}/varve-detector", f"/tmp/varve-detector-{user}"]
    for place in places:
        try:
            around = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            state = os.fstat(around)
            if state.st_uid != user or state.st_mode & 0o022:
                continue
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(f"detector-{address}-{port}.token", flags, dir_fd=around), "rb") as file:
                state = os.fstat(file.fileno())
                if stat.S_ISREG(state.st_mode) and state.st_uid == user and not state.st_mode & 0o077:
                    found.append((state.st_mtime_ns, file.read(1026).strip()))
        except OSError:
            continue
        finally:
            os.close(around)
    return max(found)[1] if found else b""


class Client:
    """One connection of a client, which brings frames (and scalars) of one source of one run.

    address       "host:port"
    run           name of the run
    start         how to start the run if it does not exist: what `POST /runs` takes, as a dictionary or JSON
    token         the service's; "": the one that a service of this user has made on this host, if any
    tls_ca        the service listens with TLS, and its certificate was signed by one in this PEM file
    level         "memory", "written" or "durable": frames are kept until they are acknowledged so
    source        of a detector of several elements: which of them
    connection, connections, client_id
                  of a client with several connections (one each): which of how many, and 16 bytes that all share
    patience      seconds that a frame may wait for room in the service before it drops it; None: for ever
    checksum      send a CRC-32 with each body
    window_bytes  most bytes of frames that are kept
    timeout       seconds that a call takes at most, unless it is given another; connecting again included
    """

    def __init__(self, address, run, *, start=None, token="", tls_ca=None, level="durable", source=0, connection=0, connections=1,
                 client_id=None, patience=None, checksum=True, window_bytes=256 << 20, timeout=60.0):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"address {address!r}: give HOST:PORT")
        self._address = (host.strip("[]"), int(port))
        if level not in LEVELS:
            raise ValueError(f"level {level!r}: give one of {', '.join(LEVELS)}")
        self._level = LEVELS[level]
        self._checksum, self._window, self._timeout = checksum, window_bytes, timeout
        self.client_id = client_id or secrets.token_bytes(16)
        if len(self.client_id) != 16:
            raise ValueError("client_id has 16 bytes")
        start = start if isinstance(start, (str, type(None))) else json.dumps(start)
        description = json.loads(start)["description"] if start else {}
        self._shape, self._element = description.get("frame"), description.get("element")
        wait = FOR_EVER if patience is None else int(patience * 1000)
        self._token = token.encode()
        self._tls = ssl.create_default_context(cafile=tls_ca) if tls_ca else None
        self._hello = struct.pack("<HBBBBHHHI16s", 1, 0, int(checksum), self._level, NEWEST_VERSION, source, connection, connections,
                                  wait, self.client_id)
        self._hello += struct.pack("<H", len(run.encode())) + run.encode()
        text = (start or "").encode()
        # The part of HELLO after the token.
        self._start = struct.pack("<I", len(text)) + text
        self._socket = None
        self._kept, self._kept_bytes = OrderedDict(), 0
        # Head, body, numbers of frames, the ping whose answer says that the service has them, and flags of the message.
        self._scalars, self._scalar_bytes = deque(), 0
        self._safe = _Ranges()
        self._out, self._in = deque(), bytearray()
        self._welcomed, self._finished, self._ending = False, None, None
        # Whether all that was sent is waited for.
        self._flushing = False
        # For good; and to be said once.
        self._refusal, self._complaint, self._broken = None, None, "not connected yet"
        self._protocol_errors = 0
        self._pause, self._next_try = 0.0, 0.0
        self._idle, self._body_max, self._version = 30.0, 0, 1
        self._told, self._heard, self._pings, self._pongs = 0.0, 0.0, 0, 0
        self.notices = []
        self.counts = dict.fromkeys(NOTICES.values(), 0)
        self.reconnects = -1
        self.frames_there = 0
        self._work(lambda: self._welcomed, None, "connecting")

    # Methods for callers.

    def send(self, number, frame, *, taken=None, shape=None, element=None, copy=True, timeout=None):
        """Sends plain elements: an array, or bytes, whose shape and type are those of `start` unless given. `taken`:
        when the detector took it, in nanoseconds since 1970. Waits for room while too much is not acknowledged.
        copy=False: the caller leaves the array as it is until `wait` has returned."""
        view, shape, element = self._understand(frame, shape, element)
        self._frame(number, taken, shape, element, "", [], bytes(view) if copy else view, timeout)

    def send_chunks(self, number, chunks, *, filter, frames=1, taken=None, shape=None, element=None, timeout=None):
        """Sends the chunks of a frame, each as the run's filter makes it: bytes, row by row. `frames`: where the run's
        chunks hold several frames, how many these hold, from frame `number` on; the others of them come plain, or never."""
        shape, element = shape or self._shape, element or self._element
        if shape is None or element is None:
            raise ValueError("give shape and element; the run was not started by this client")
        chunks = [bytes(chunk) for chunk in chunks]
        lengths = [len(chunk) for chunk in chunks]
        self._frame(number, taken, shape, element, filter, lengths, b"".join(chunks), timeout, frames)

    def scalars(self, rows, *, timeout=None):
        """Sends scalars: {number: {name: value}}; before their frame, after it, or without it. Values are numbers or texts;
        integers keep their 64 bits where the service is no older than this client."""
        rows = dict(rows)
        for number in rows:
            _check_number(number)
        names = sorted({name for values in rows.values() for name in values})
        if not names:
            return
        kinds = [_kind(name, [values[name] for values in rows.values() if name in values]) for name in names]
        if self._version < KINDS_VERSION:
            if TEXT in kinds:
                text = f"the service speaks version {self._version} of the stream, which has no texts"
                raise DetectorError(f"scalar `{names[kinds.index(TEXT)]}`: {text}")
            kinds = [FLOAT] * len(names)
        flags = SCALARS_FLAG_KINDS if any(kinds) else 0
        head = struct.pack("<IH", len(rows), len(names))
        head += b"".join(struct.pack("<B", len(name.encode())) + name.encode() for name in names)
        head += bytes(kinds) if flags else b""
        body = b"".join(struct.pack("<Q", number) + b"".join(_coded(kind, values.get(name)) for name, kind in zip(names, kinds))
                        for number, values in rows.items())
        self._raise_if_ended()
        self._work(lambda: self._scalar_bytes < SCALAR_BYTES_MAX, timeout, "waiting for answers to scalars")
        self._scalar_bytes += len(body)
        self._scalars.append([head, body, list(rows), 0, flags])
        if self._welcomed:
            self._push_scalars(self._scalars[-1])
        self._work(lambda: not self._out, timeout, "sending scalars", late=True)

    def poll(self, timeout=0.0):
        """Hears what the service has to say, and keeps the connection alive. Answers how many frames are kept."""
        self._work(lambda: False, timeout, "polling", late=True)
        return len(self._kept)

    def wait(self, timeout=None):
        """Until every frame sent is acknowledged at the client's level. Frames that share chunks with others do not wait for
        those: where it is called between them, their chunks are written again."""
        self._flushing = True
        try:
            if self._welcomed and self._kept:
                self._ping(PING_FLAG_FLUSH)
            settled = lambda: not self._kept and not self._scalars and (self._finished is not None or not self._out)
            self._work(settled, timeout, "waiting for acknowledgements")
        finally:
            self._flushing = False

    def end(self, *, complete=True, dropped=0, timeout=None):
        """Nothing more comes: of this source, or, with complete=False, on this connection. Waits until what was sent is
        safe (with complete=True until the run is finished, which several sources do together) and answers the run's counts.
        Of several connections that are ended one after the other, only the last one's is the end of the run: complete=True.
        `dropped`: frames that never got this far."""
        self.wait(timeout)
        self._ending = (1 if complete else 0, struct.pack("<Q", dropped))
        if self._welcomed:
            self._push(END, self._ending[0], self._ending[1], b"")
        self._work(lambda: self._finished is not None, timeout, "waiting for the end of the run")
        self._disconnect("the run has ended")
        return self._finished

    def close(self):
        """Drops the connection; what is not acknowledged is not kept any longer."""
        self._disconnect("closed")
        self._refusal = self._refusal or Refused("ended", "this client was closed")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def kept(self):
        """Frames that are not acknowledged at the client's level yet."""
        return len(self._kept)

    # Frames.

    def _understand(self, frame, shape, element):
        """The frame's bytes, with shape and element."""
        interface = getattr(frame, "__array_interface__", None)
        if interface is not None:
            if getattr(frame, "mask", False) is not False and getattr(frame, "filled", None) is not None and frame.mask.any():
                raise ValueError("elements are masked, and a frame has no mask: give frame.filled(VALUE)")
            order, kind = interface["typestr"][0], interface["typestr"][1]
            if kind not in "iufb" or not interface["typestr"][2:].isdigit():
                raise ValueError(f"elements of type {interface['typestr']} are no integers or floats: give frame.astype(TYPE), "
                                 "for times frame.astype('int64')")
            kind, size = kind.replace("b", "u"), int(interface["typestr"][2:])
            shape, element = shape or interface["shape"], element or f"{kind}{8 * size}"
            if order == ">":
                raise ValueError("the elements are big-endian: give frame.astype(frame.dtype.newbyteorder('<'))")
            frame = frame if interface.get("strides") is None else frame.copy(order="C")
        view = memoryview(frame)
        if interface is None and view.ndim > 1:
            shape = shape or view.shape
        if interface is None and view.format in FORMATS and view.format != "B":
            element = element or f"{FORMATS[view.format]}{8 * view.itemsize}"
        shape, element = shape or self._shape, element or self._element
        if shape is None or element not in ELEMENTS:
            raise ValueError(f"shape {shape}, element {element}: give both; elements are {', '.join(ELEMENTS)}")
        view = view.cast("B")
        count = 1
        for side in shape:
            count *= side
        if len(view) != count * int(element[1:]) // 8:
            raise ValueError(f"{len(view)} bytes are no frame of {tuple(shape)} {element}")
        return view, shape, element

    def _frame(self, number, taken, shape, element, name, chunks, body, timeout, frames=1):
        _check_number(number, frames)
        taken = time.time_ns() if taken is None else taken
        filter_name = name.encode()
        head = struct.pack("<QQBBBBIII", number, taken, ELEMENTS.index(element) + 1, len(shape), len(filter_name), 0, frames,
                           len(chunks), 0)
        head += struct.pack(f"<{len(shape)}I", *shape) + filter_name + struct.pack(f"<{len(chunks)}I", *chunks)
        self._raise_if_ended()
        if number in self._kept:
            raise ValueError(f"frame {number} was sent already, and is not acknowledged yet")
        if self._body_max and len(body) > self._body_max:
            raise ValueError(f"frame {number} has {len(body)} bytes; the service takes {self._body_max}")
        room = lambda: not self._kept or self._kept_bytes + len(body) <= self._window
        self._work(room, timeout, "waiting for acknowledgements")
        self._kept[number] = _Kept(head, body)
        self._kept_bytes += len(body)
        if self._welcomed:
            self._push(FRAME, 0, head, body)
        # It is kept: if the time is over, the next call goes on.
        self._work(lambda: not self._out, timeout, "sending", late=True)

    def _forget(self, number):
        kept = self._kept.pop(number, None)
        if kept is not None:
            self._kept_bytes -= len(kept.body)
            self._protocol_errors = 0
        self._settle_scalars()

    def _settle_scalars(self):
        """Scalars are kept while the service has not answered to what came after them, or their frame is not safe."""
        while self._scalars:
            _, body, frames, ping, _ = self._scalars[0]
            if not 0 < ping <= self._pongs or any(number in self._kept for number in frames):
                return
            self._scalar_bytes -= len(body)
            self._scalars.popleft()
            self._protocol_errors = 0

    # The connection.

    def _push(self, kind, flags, head, body):
        checksum = zlib.crc32(body) if self._checksum and body else 0
        header = HEADER.pack(kind, flags, 0, len(head), len(body), checksum, zlib.crc32(head))
        start = header + struct.pack("<I", zlib.crc32(header)) + head
        if len(body) < 1 << 14:
            self._out.append(memoryview(start + bytes(body)))
        else:
            self._out += [memoryview(start), memoryview(body)]

    def _ping(self, flags=0):
        self._push(PING, flags, b"", b"")
        self._pings += 1

    def _push_scalars(self, scalars):
        if scalars[4] and self._version < KINDS_VERSION:
            text = f"the service speaks version {self._version} of the stream now, which has floats alone"
            self._refusal = Refused("version", text)
            return
        self._push(SCALARS, scalars[4], scalars[0], scalars[1])
        self._ping()
        scalars[3] = self._pings

    def _raise(self):
        if self._refusal is not None:
            raise self._refusal
        complaint, self._complaint = self._complaint, None
        if complaint is not None:
            raise complaint

    def _raise_if_ended(self):
        """The run has ended, by this client's word or another's: nothing more comes to it."""
        if self._finished is not None:
            lacking = f"{len(self._kept)} frames and {len(self._scalars)} messages of scalars sent to it are not acknowledged"
            raise Refused("ended", f"the run has ended, and {lacking}: begin another, with another name and file")

    def _work(self, done, timeout, what, late=False):
        """Sends and receives until `done`, or the time is over: then it raises Timeout, unless `late`."""
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        while True:
            self._raise()
            if self._finished is None:
                self._step(done, deadline)
                self._raise()
            if done():
                return
            self._raise_if_ended()
            if time.monotonic() >= deadline:
                if late:
                    return
                state = f"{len(self._kept)} frames not acknowledged" if self._welcomed else self._broken
                raise Timeout(f"{what} took too long: {state}")

    def _step(self, done, deadline):
        now = time.monotonic()
        if self._socket is None:
            # A caller that waits for nothing is delayed at most by the time in which a reachable host answers.
            if now >= self._next_try:
                self._connect(now + CONNECT_GLANCE if done() else deadline)
            elif not done():
                time.sleep(max(0.0, min(self._next_try, deadline) - now))
            return
        self._keep_alive(now)
        if self._socket is None:
            return
        wait = 0.0 if done() else max(0.0, min(deadline - now, 1.0))
        try:
            readable, writable, _ = select.select([self._socket], [self._socket] if self._out else [], [], wait)
            if writable:
                self._write()
            if readable:
                self._read()
        except (OSError, ValueError) as error:
            self._disconnect(str(error))

    def _keep_alive(self, now):
        """A service that says nothing for long, though it was asked to, is gone; unless it finishes the run."""
        if not self._out and self._welcomed and self._ending is None and now - self._told > self._idle / 3:
            self._ping()
            self._told = now
        if self._ending is None and now - max(self._heard, self._told - self._idle / 3) > 2 * self._idle:
            self._disconnect(f"the service has said nothing for {2 * self._idle:.0f} s")

    def _write(self):
        try:
            sent = self._socket.send(self._out[0])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        self._told = time.monotonic()
        if sent == len(self._out[0]):
            self._out.popleft()
        else:
            self._out[0] = self._out[0][sent:]

    def _read(self):
        try:
            data = self._socket.recv(1 << 16)
            # select(2) does not report data that the TLS session has already decrypted.
            while data and self._tls is not None and self._socket.pending():
                data += self._socket.recv(1 << 16)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        if not data:
            raise OSError("the service has closed the connection")
        self._heard = time.monotonic()
        self._in += data
        while self._socket is not None and len(self._in) >= HEADER.size + 4:
            header = bytes(self._in[:HEADER.size])
            kind, _, _, head_bytes, body_bytes, _, head_crc = HEADER.unpack(header)
            if zlib.crc32(header) != struct.unpack_from("<I", self._in, HEADER.size)[0] or head_bytes > HEAD_BYTES_MAX:
                raise ValueError("what comes from the service is damaged")
            end = HEADER.size + 4 + head_bytes
            if len(self._in) < end:
                return
            head = bytes(self._in[HEADER.size + 4:end])
            if zlib.crc32(head) != head_crc or body_bytes:
                raise ValueError("what comes from the service is damaged")
            del self._in[:end]
            self._hear(kind, head)

    def _connect(self, deadline):
        self._pause = min(max(0.1, 2 * self._pause), 2.0)
        self._next_try = time.monotonic() + self._pause
        try:
            patience = max(0.01, min(10.0, deadline - time.monotonic()))
            self._socket = socket.create_connection(self._address, timeout=patience)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            token = self._token or _published_token(self._socket.getpeername())
            if self._tls is not None:
                self._socket = self._tls.wrap_socket(self._socket, server_hostname=self._address[0])
            self._socket.setblocking(False)
        except OSError as error:
            self._disconnect(f"cannot connect to {self._address[0]}:{self._address[1]}: {error}")
            return
        self._heard = self._told = time.monotonic()
        self._push(HELLO, 0, self._hello + struct.pack("<H", len(token)) + token + self._start, b"")
        self._pings = self._pongs = 0
        self._ping()

    def _disconnect(self, why):
        if self._socket is not None:
            self._socket.close()
        self._socket, self._broken, self._welcomed = None, why, False
        self._out.clear()
        self._in.clear()

    # Messages of the service.

    def _hear(self, kind, head):
        if kind == ACK:
            level, count = struct.unpack_from("<B3xI", head)
            for at in range(count):
                self._acknowledge(level, *struct.unpack_from("<QQ", head, 8 + 16 * at))
        elif kind == WELCOME:
            self._version, idle, self._body_max, self.frames_there = struct.unpack_from("<HxxIQQ", head)
            self._idle = max(idle, 100) / 1000
            # The service may have lost frames that it had only in memory. It reports the frames that it has.
            for kept in self._kept.values():
                kept.level = 0
        elif kind == PONG:
            self._pongs += 1
            if self._welcomed:
                self._settle_scalars()
            else:
                self._come_back()
        elif kind == NOTICE:
            self._notice(head)
        elif kind == ERROR:
            code, length = struct.unpack_from("<HH", head)
            name, text = ERRORS.get(code, str(code)), head[16:16 + length].decode(errors="replace")
            self._protocol_errors += name == "protocol"
            if name not in PASSING or self._protocol_errors >= PROTOCOL_ERRORS:
                self._refusal = Refused(name, text)
            self._disconnect(f"{name}: {text}")
        elif kind == FINISHED:
            # Services before the last field say nothing of it.
            self._finished = Finished(*struct.unpack_from("<9Q", bytes(head) + bytes(8)))

    def _come_back(self):
        """All that the service has of the run is said: the rest is sent again."""
        self._welcomed, self._pause = True, 0.0
        self.reconnects += 1
        for kept in self._kept.values():
            if kept.level == 0:
                kept.attempts = 1
                self._push(FRAME, 1, kept.head, kept.body)
        for scalars in self._scalars:
            self._push_scalars(scalars)
        if self._flushing:
            self._ping(PING_FLAG_FLUSH)
        if self._ending is not None:
            self._push(END, self._ending[0], self._ending[1], b"")

    def _acknowledge(self, level, first, count):
        if level >= self._level:
            self._safe.add(first, first + count)
        numbers = range(first, first + count) if count < len(self._kept) else list(self._kept)
        for number in numbers:
            kept = self._kept.get(number)
            if kept is not None and first <= number < first + count:
                kept.level = max(kept.level, level)
                if kept.level >= self._level:
                    self._forget(number)

    def _notice(self, head):
        code, length, number = struct.unpack_from("<HH4xQ", head)
        name, text = NOTICES.get(code, str(code)), head[16:16 + length].decode(errors="replace")
        self.counts[name] = self.counts.get(name, 0) + 1
        if len(self.notices) < NOTICES_KEPT:
            self.notices.append(Notice(name, number, text))
        kept = self._kept.get(number)
        if name == "damaged" and kept is not None and kept.attempts < ATTEMPTS:
            kept.attempts += 1
            self._push(FRAME, 1, kept.head, kept.body)
        elif name in ("dropped", "refused", "damaged") or number in self._safe:
            self._forget(number)
        if name == "refused" and self._complaint is None:
            self._complaint = Refused(name, f"frame {number}: {text}" if number != (1 << 64) - 1 else text)


def _check_number(number, frames=1):
    """Frames are numbered from 0; the highest number of 64 bits says that there is none, and is what -1 becomes unsigned."""
    if not 0 <= operator.index(number) < (1 << 64) - frames:
        raise ValueError(f"frame {number}: frames are numbered from 0, and below 2^64 - 1")


def _kind(name, values):
    """The kind that holds all values of a name; None says nothing."""
    values = [value for value in values if value is not None]
    if not values:
        return FLOAT
    texts = [isinstance(value, str) for value in values]
    if all(texts):
        return TEXT
    if any(texts):
        raise ValueError(f"scalar `{name}` is a text and a number")
    if not all(isinstance(value, numbers.Integral) for value in values):
        return FLOAT
    least, most = min(values), max(values)
    if least > NOTHING[INTEGER] and most < 1 << 63:
        return INTEGER
    if least >= 0 and most < NOTHING[UNSIGNED]:
        return UNSIGNED
    raise ValueError(f"scalar `{name}` has integers that 64 bits do not hold together")


def _coded(kind, value):
    if kind == TEXT:
        text = b"" if value is None else value.encode()
        if len(text) >= NO_TEXT:
            raise ValueError(f"a text of {len(text)} bytes; {NO_TEXT - 1} at most")
        return struct.pack("<H", NO_TEXT if value is None else len(text)) + text
    value = NOTHING[kind] if value is None else value
    return struct.pack("<d", value) if kind == FLOAT else struct.pack("<q" if kind == INTEGER else "<Q", int(value))


class _Ranges:
    """Numbers, most of them one after the other."""

    def __init__(self):
        self._starts, self._ends = [], []

    def add(self, start, end):
        left = bisect.bisect_left(self._ends, start)
        right = bisect.bisect_right(self._starts, end)
        if left < right:
            start, end = min(start, self._starts[left]), max(end, self._ends[right - 1])
        self._starts[left:right], self._ends[left:right] = [start], [end]

    def __contains__(self, number):
        at = bisect.bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]
