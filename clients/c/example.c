/* Sends frames made up from their numbers, with scalars each; of all kinds if KINDS is given:
 *
 *     example HOST PORT RUN START.json FRAMES [LEVEL [TOKEN [KINDS]]]
 *
 * START.json is what POST /runs takes ("-": the run was started otherwise); frames are u16, 48 by 48. LEVEL is memory,
 * written or durable. Build: cc -std=c99 -O2 example.c varve_detector.c -o example
 *                            x86_64-w64-mingw32-gcc -std=c99 -O2 example.c varve_detector.c -lws2_32 -o example.exe */

#include "varve_detector.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIDE 48u

static char *read_text(const char *path) {
    static char text[1 << 16];
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    size_t length = fread(text, 1, sizeof text - 1, file);
    text[length] = 0;
    fclose(file);
    return text;
}

static void make_frame(uint64_t number, uint8_t *bytes) {
    for (uint64_t i = 0; i < SIDE * SIDE; i++) {
        uint64_t element = (7 * i + 13 * number + (i >> 3) * number) & 0x3ff;
        bytes[2 * i] = (uint8_t)element;
        bytes[2 * i + 1] = (uint8_t)(element >> 8);
    }
}

/* The scalars of a frame: one, or one of each kind. */
static vd_status send_scalars(vd_client *client, uint64_t number, int of_all_kinds) {
    static const char *const names[] = {"energy", "steps", "pulse", "sample"};
    static const vd_kind kinds[] = {VD_FLOAT, VD_INTEGER, VD_UNSIGNED, VD_TEXT};
    char text[32];
    double energy = 10.0 * (double)number;
    if (!of_all_kinds) return vd_scalars(client, 1, names, 1, &number, &energy);
    snprintf(text, sizeof text, "%llu", (unsigned long long)(10 * number + 3));
    vd_value values[4];
    values[0].number = energy;
    values[1].integer = (int64_t)(10 * number + 1);
    values[2].whole = 10 * number + 2;
    values[3].text = text;
    return vd_values(client, 4, names, kinds, 1, &number, values);
}

static int give_up(vd_client *client, const char *doing) {
    fprintf(stderr, "%s: error %d: %s\n", doing, (int)vd_error_code(client), vd_error_text(client));
    vd_free(client);
    return 1;
}

int main(int count, char **arguments) {
    static uint8_t frame[2 * SIDE * SIDE];
    const uint32_t sides[2] = {SIDE, SIDE};
    if (count < 6) {
        fprintf(stderr, "usage: example HOST PORT RUN START.json FRAMES [LEVEL [TOKEN [KINDS]]]\n");
        return 2;
    }
    vd_options options;
    vd_options_init(&options);
    options.host = arguments[1];
    options.port = arguments[2];
    options.run = arguments[3];
    options.timeout_ms = 30000;
    if (strcmp(arguments[4], "-") != 0 && !(options.start = read_text(arguments[4]))) {
        fprintf(stderr, "cannot read %s\n", arguments[4]);
        return 1;
    }
    if (count > 6) options.level = arguments[6][0] == 'm' ? VD_MEMORY : arguments[6][0] == 'w' ? VD_WRITTEN : VD_DURABLE;
    if (count > 7 && *arguments[7]) options.token = arguments[7];
    uint64_t frames = strtoull(arguments[5], NULL, 10);
    vd_client *client = vd_new();
    if (!client) return 1;
    if (vd_open(client, &options) != VD_OK) return give_up(client, "connecting");
    for (uint64_t number = 0; number < frames; number++) {
        make_frame(number, frame);
        if (vd_send(client, number, 0, VD_U16, sides, 2, frame, sizeof frame) != VD_OK
            || send_scalars(client, number, count > 8) != VD_OK) {
            return give_up(client, "sending");
        }
    }
    vd_finished finished;
    if (vd_end(client, 1, 0, &finished) != VD_OK) return give_up(client, "ending");
    vd_counts counts;
    vd_get_counts(client, &counts);
    printf("{\"frames\": %llu, \"received\": %llu, \"late\": %llu, \"missing\": %llu, \"reconnects\": %llu, \"duplicate\": %llu}\n",
           (unsigned long long)finished.frames, (unsigned long long)finished.received,
           (unsigned long long)finished.late, (unsigned long long)finished.missing, (unsigned long long)counts.reconnects,
           (unsigned long long)finished.duplicate);
    vd_free(client);
    return 0;
}
