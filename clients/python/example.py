"""Sends frames made up from their numbers, with a scalar each:

    example.py HOST PORT RUN START.json FRAMES [LEVEL [TOKEN]]

START.json is what POST /runs takes ("-": the run was started otherwise); frames are u16, 48 by 48."""

import json
import pathlib
import sys
from array import array

from varve_detector import Client, DetectorError

SIDE = 48


def frame(number):
    return array("H", ((7 * i + 13 * number + (i >> 3) * number) & 0x3FF for i in range(SIDE * SIDE)))


def main(host, port, run, start, frames, level="durable", token=""):
    start = None if start == "-" else pathlib.Path(start).read_text()
    shape = {} if start else {"shape": (SIDE, SIDE)}
    with Client(f"{host}:{port}", run, start=start, level=level, token=token, timeout=30) as client:
        for number in range(int(frames)):
            client.send(number, frame(number), **shape)
            client.scalars({number: {"energy": 10.0 * number}})
        finished = client.end()
        print(json.dumps({"frames": finished.frames, "received": finished.received, "late": finished.late,
                          "missing": finished.missing, "reconnects": client.reconnects, "duplicate": finished.duplicate}))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except DetectorError as error:
        sys.exit(f"error: {error}")
