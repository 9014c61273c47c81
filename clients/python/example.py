"""Sends frames made up from their numbers, with scalars each; of all kinds if KINDS is given:

    example.py HOST PORT RUN START.json FRAMES [LEVEL [TOKEN [KINDS]]]

START.json is what POST /runs takes ("-": the run was started otherwise); frames are u16, 48 by 48."""

import json
import pathlib
import sys
from array import array

from varve_detector import Client, DetectorError

SIDE = 48


def frame(number):
    return array("H", ((7 * i + 13 * number + (i >> 3) * number) & 0x3FF for i in range(SIDE * SIDE)))


def scalars(number, kinds):
    values = {"energy": 10.0 * number}
    return {**values, "steps": 10 * number + 1, "pulse": 10 * number + 2, "sample": str(10 * number + 3)} if kinds else values


def main(host, port, run, start, frames, level="durable", token="", kinds="", tls_ca=None):
    start = None if start == "-" else pathlib.Path(start).read_text()
    shape = {} if start else {"shape": (SIDE, SIDE)}
    with Client(f"{host}:{port}", run, start=start, level=level, token=token, tls_ca=tls_ca, timeout=30) as client:
        for number in range(int(frames)):
            client.send(number, frame(number), **shape)
            client.scalars({number: scalars(number, kinds)})
        finished = client.end()
        print(json.dumps({"frames": finished.frames, "received": finished.received, "late": finished.late,
                          "missing": finished.missing, "reconnects": client.reconnects, "duplicate": finished.duplicate}))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except DetectorError as error:
        sys.exit(f"error: {error}")
