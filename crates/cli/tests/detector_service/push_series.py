"""A DECTRIS detector by libzmq and cbor2: a series of two thresholds and their difference, with every field of the start
message, images that are numbered from 1, and one threshold in big-endian order."""

import sys

import cbor2
import numpy
import zmq

IMAGES, ROWS, COLUMNS = 5, 12, 16
CHANNELS = ["threshold_1", "threshold_2", "difference"]
TAGS = {"<u2": 69, ">u2": 65, "<u4": 70, "<f4": 85, ">f4": 81}


def typed(values, kind):
    return cbor2.CBORTag(TAGS[kind], values.astype(kind).tobytes())


def image(values, kind):
    return cbor2.CBORTag(40, [list(values.shape), typed(values, kind)])


def pixels(number, channel):
    return (numpy.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) * (number + 1) + channel) % 1000


mask = numpy.zeros((ROWS, COLUMNS), dtype="u4")
mask[3, 4] = 1
start = {
    "type": "start", "series_id": 77, "series_unique_id": "01GXYZ", "arm_date": cbor2.CBORTag(0, "2026-01-02T03:04:05.5+01:00"),
    "number_of_images": IMAGES, "image_size_x": COLUMNS, "image_size_y": ROWS, "channels": CHANNELS,
    "beam_center_x": 7.5, "beam_center_y": 5.25, "count_time": 0.0099, "frame_time": 0.01,
    "countrate_correction_enabled": True, "countrate_correction_lookup_table": typed(numpy.arange(9), "<u4"),
    "detector_description": "simulated EIGER2", "detector_serial_number": "E-32-0001",
    "detector_translation": [0.0, 0.0, 0.125],
    "flatfield": {"threshold_1": image(numpy.full((ROWS, COLUMNS), 1.5), "<f4"),
                  "threshold_2": image(numpy.full((ROWS, COLUMNS), 0.5), ">f4")},
    "flatfield_enabled": True,
    "goniometer": {"omega": {"start": 10.0, "increment": 0.1}, "kappa": {"start": 54.7, "increment": 0.0},
                   "two_theta": {"start": 2.0, "increment": 0.0}},
    "incident_energy": 12398.4, "incident_wavelength": 1.0,
    "pixel_mask": {"threshold_1": image(mask, "<u4"), "threshold_2": image(2 * mask, "<u4")}, "pixel_mask_enabled": True,
    "pixel_size_x": 75e-6, "pixel_size_y": 75e-6, "saturation_value": 65534,
    "sensor_material": "Si", "sensor_thickness": 450e-6, "threshold_energy": {"threshold_1": 6000.0, "threshold_2": 9000.0},
    "user_data": {"proposal": "p7", "points": [1, 2]}, "virtual_pixel_interpolation_enabled": False,
    "firmware": "2026.1",
}
socket = zmq.Context().socket(zmq.PUSH)
socket.SNDTIMEO = 60000
socket.LINGER = 60000
print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
# Waits for the service, which connects.
socket.send(cbor2.dumps(start))
ids = {"series_id": 77, "series_unique_id": "01GXYZ"}
end = cbor2.dumps({"type": "end", **ids, "final": True})
for number in range(1, IMAGES + 1):
    if number == IMAGES:
        # The last image is overtaken by the end.
        socket.send(end)
    data = {channel: image(pixels(number - 1, at), ">u2" if at == 1 else "<u2") for at, channel in enumerate(CHANNELS)}
    socket.send(cbor2.dumps({
        "type": "image", **ids, "image_id": number, "series_date": cbor2.CBORTag(0, "2026-01-02T03:04:06Z"),
        "start_time": [number * 1000000, 100000000], "stop_time": [number * 1000000 + 990000, 100000000],
        "real_time": [990000, 100000000], "data": data, "user_data": {"point": number}, "temperature": 20.5 + number,
    }))
sys.stdin.read()
