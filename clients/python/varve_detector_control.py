"""Control of the runs of `varve record serve`, and names of their files as areaDetector makes them. Python 3.9 or newer.

    from varve_detector_control import Control, FileTemplate

    files = FileTemplate("scan", "lyso", "%s%s_%3.3d.h5")
    control = Control("127.0.0.1:7421")
    control.start("lyso-1", files.next(), {"element": "u16", "frame": [512, 512]}, directories=1)

The requests are described in `docs/record-service.openapi.json`.
"""

import http.client
import json
import re
import ssl
from urllib.parse import quote, urlencode

from varve_detector import DetectorError, Refused, _published_token

__all__ = ["Control", "FileTemplate", "Unreachable"]

# The statuses of a hundred runs are far below this limit.
REPLY_BYTES_MAX = 16 << 20
# The longest wait that the service grants to `latest`.
WAIT_MAX = 30.0


class Unreachable(DetectorError):
    """The service did not reply."""


class Control:
    """A service, by its HTTP address. Each call is one request, so a Control may be shared between threads.

    address   "host:port" of the service's `--http`
    token     the service's; "": the one that a service of this user has published on this host, if any
    tls_ca    the service listens with TLS, and its certificate was signed by one in this PEM file
    timeout   limit for one request in seconds, beyond the wait that the request itself asks for
    """

    def __init__(self, address="127.0.0.1:7421", *, token="", tls_ca=None, timeout=60.0):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"address {address!r}: give HOST:PORT")
        self.address, self._host, self._port = address, host.strip("[]"), int(port)
        self._token, self._timeout = token, timeout
        self._tls = ssl.create_default_context(cafile=tls_ca) if tls_ca else None

    def start(self, name, file, description, **options):
        """Starts a run and returns its status. `options`: `sources`, `finish`, `absence_s`, `directories`."""
        return self._ask("POST", "/runs", {"name": name, "file": str(file), "description": description, **options})

    def runs(self):
        """The status of each run that is active, and of the last that have ended."""
        return self._ask("GET", "/runs")["runs"]

    def status(self, name):
        return self._ask("GET", f"/runs/{quote(name)}")

    def latest(self, name, after=None, wait=0.0):
        """The status of a run as soon as a frame above `after` is durable or the run has ended, after `wait` seconds at
        the latest."""
        wait = min(wait, WAIT_MAX)
        query = {"wait_s": wait} if after is None else {"wait_s": wait, "after": after}
        return self._ask("GET", f"/runs/{quote(name)}/latest?{urlencode(query)}", wait=wait)

    def stop(self, name):
        """Finishes a run with all frames taken so far."""
        return self._ask("POST", f"/runs/{quote(name)}/stop")

    def abort(self, name):
        return self._ask("POST", f"/runs/{quote(name)}/abort")

    def _ask(self, method, path, body=None, wait=0.0):
        timeout = self._timeout + wait
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        try:
            connection.connect()
            headers = {"Content-Type": "application/json"}
            # A restarted service has another token, so it is looked up for each request.
            token = self._token or _published_token(connection.sock.getpeername()).decode()
            if token:
                headers["Authorization"] = f"Bearer {token}"
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            reply = connection.getresponse()
            text = reply.read(REPLY_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"cannot reach the service at {self.address}: {error}") from error
        finally:
            connection.close()
        try:
            value = json.loads(text)
        except ValueError as error:
            raise Unreachable(f"the reply of {self.address} is not from a detector service: {error}") from error
        if reply.status >= 400:
            raise Refused(value.get("error", "unknown"), value.get("text", f"HTTP status {reply.status}"))
        return value


# A conversion of C's printf; `%%` is a percent sign.
CONVERSION = re.compile(r"%(?:%|[-+ #0]*\d*(?:\.\d+)?([a-zA-Z]))")
KINDS = {"s": "text", "d": "number", "i": "number", "u": "number", "x": "number", "X": "number", "o": "number"}


class FileTemplate:
    """Names files as areaDetector's file plugins do: its FilePath, FileName, FileTemplate, FileNumber and AutoIncrement.

    The template is one of C's printf and gets path, name and number in this order, as in `%s%s_%3.3d.h5`; it may use fewer.
    A relative path is below the service's directory.
    """

    def __init__(self, path="", name="run", template="%s%s_%3.3d.h5", number=1, auto_increment=True):
        kinds = [match.group(1) for match in CONVERSION.finditer(template) if match.group(1)]
        plain = CONVERSION.sub("", template)
        wanted = ["text", "text", "number"][: len(kinds)]
        if "%" in plain or [KINDS.get(kind) for kind in kinds] != wanted:
            raise ValueError(f"template {template!r}: give path, name and number in this order, as in '%s%s_%3.3d.h5'")
        self.path, self.name, self.template = str(path), name, template
        self.number, self.auto_increment = number, auto_increment
        self._used = len(kinds)

    @property
    def file(self):
        """The file of the current number."""
        path = self.path if not self.path or self.path.endswith("/") else f"{self.path}/"
        return self.template % (path, self.name, self.number)[: self._used]

    def next(self):
        """The file of the current number, which then rises by one if `auto_increment` is set."""
        file = self.file
        self.number += int(self.auto_increment)
        return file
