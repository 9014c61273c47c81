/* Sends frames that share chunks, several in each message: four frames in two chunks of half their rows, in the framing of
 * HDF5's LZ4 filter, whose blocks may be stored uncompressed:
 *
 *     slabs HOST PORT RUN START.json FRAMES */

#include "varve_detector.h"

#include <stdio.h>
#include <stdlib.h>

#define SIDE 48u
#define GROUP 4u
#define HALF (2 * SIDE * SIDE / 2)
#define CHUNK (GROUP * HALF)

static void big_endian(uint64_t value, unsigned bytes, uint8_t *to) {
    for (unsigned i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
}

/* `frames` frames from `first` on, followed by zeros. */
static void make_chunks(uint64_t first, uint32_t frames, uint8_t chunks[2][16 + CHUNK]) {
    for (unsigned half = 0; half < 2; half++) {
        uint8_t *to = chunks[half];
        big_endian(CHUNK, 8, to);
        big_endian(CHUNK, 4, to + 8);
        big_endian(CHUNK, 4, to + 12);
        for (uint64_t slot = 0; slot < GROUP; slot++) {
            for (uint64_t i = 0; i < HALF / 2; i++) {
                uint64_t number = first + slot, at = half * HALF / 2 + i;
                uint64_t element = slot < frames ? (7 * at + 13 * number + (at >> 3) * number) & 0x3ff : 0;
                to[16 + slot * HALF + 2 * i] = (uint8_t)element;
                to[16 + slot * HALF + 2 * i + 1] = (uint8_t)(element >> 8);
            }
        }
    }
}

static int give_up(vd_client *client, const char *doing) {
    fprintf(stderr, "%s: error %d: %s\n", doing, (int)vd_error_code(client), vd_error_text(client));
    vd_free(client);
    return 1;
}

int main(int count, char **arguments) {
    static char start[1 << 16];
    static uint8_t chunks[2][16 + CHUNK];
    const void *const data[2] = {chunks[0], chunks[1]};
    const uint32_t sides[2] = {SIDE, SIDE}, lengths[2] = {16 + CHUNK, 16 + CHUNK};
    if (count != 6) return 2;
    FILE *file = fopen(arguments[4], "rb");
    if (!file || !fread(start, 1, sizeof start - 1, file)) return 2;
    fclose(file);
    vd_options options;
    vd_options_init(&options);
    options.host = arguments[1];
    options.port = arguments[2];
    options.run = arguments[3];
    options.start = start;
    options.timeout_ms = 60000;
    vd_client *client = vd_new();
    if (!client) return 1;
    if (vd_open(client, &options) != VD_OK) return give_up(client, "connecting");
    if (vd_send_slab(client, 0, 0, 0, VD_U16, sides, 2, "lz4", 2, data, lengths) != VD_USAGE) {
        return give_up(client, "no frames were taken");
    }
    uint64_t frames = strtoull(arguments[5], NULL, 10);
    for (uint64_t first = 0; first < frames; first += GROUP) {
        uint32_t here = frames - first < GROUP ? (uint32_t)(frames - first) : GROUP;
        make_chunks(first, here, chunks);
        if (vd_send_slab(client, first, here, 0, VD_U16, sides, 2, "lz4", 2, data, lengths) != VD_OK) {
            return give_up(client, "sending");
        }
    }
    if (vd_wait(client) != VD_OK || vd_kept(client) != 0) return give_up(client, "waiting");
    vd_finished finished;
    if (vd_end(client, 1, 0, &finished) != VD_OK) return give_up(client, "ending");
    printf("{\"received\": %llu, \"late\": %llu, \"missing\": %llu, \"duplicate\": %llu}\n",
           (unsigned long long)finished.received, (unsigned long long)finished.late,
           (unsigned long long)finished.missing, (unsigned long long)finished.duplicate);
    vd_free(client);
    return 0;
}
