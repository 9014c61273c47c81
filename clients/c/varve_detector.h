/* Brings frames and scalars of a detector to `varve record serve`. One C99 file and this header, no dependencies; POSIX
 * systems and Windows (link ws2_32). The bytes are described in formats/detector-stream.md.
 *
 * The library has no TLS, which would be a dependency. A service on another host is reached through a tunnel (ssh -L, stunnel),
 * whose near end is an address of this host; or in clear, if the service is started with --insecure: then everyone on the way
 * reads the token and the frames.
 *
 * A client keeps a frame until it is acknowledged at the level asked for; when the connection breaks it connects again and
 * sends what the service does not have. It has no thread: it works within the calls below, so call vd_poll now and then while
 * there is nothing to send. One client belongs to one thread at a time; several may live beside each other. */
#ifndef VARVE_DETECTOR_H
#define VARVE_DETECTOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    VD_OK = 0,
    VD_TIMEOUT = 1,       /* the time given is over; nothing is lost, the next call goes on */
    VD_REFUSED = 2,       /* the service refuses this client for good: vd_error_code says why */
    VD_FRAME_REFUSED = 3, /* the service refused a frame (or scalars) sent before; said once, the client goes on */
    VD_USAGE = 4,         /* the call is wrong; nothing was done */
    VD_NO_MEMORY = 5
} vd_status;

/* What an acknowledgement means: in the service's memory; with the kernel, surviving the service's death; on the disk. */
typedef enum { VD_MEMORY = 1, VD_WRITTEN = 2, VD_DURABLE = 4 } vd_level;

typedef enum {
    VD_U8 = 1, VD_U16, VD_U32, VD_U64, VD_I8, VD_I16, VD_I32, VD_I64, VD_F16, VD_F32, VD_F64
} vd_element;

/* Codes of vd_error_code after VD_REFUSED; 0 where the service said nothing. */
typedef enum {
    VD_ERROR_PROTOCOL = 1, VD_ERROR_VERSION, VD_ERROR_TOKEN, VD_ERROR_UNKNOWN, VD_ERROR_BUSY, VD_ERROR_FAILED,
    VD_ERROR_DESCRIPTION, VD_ERROR_LIMIT, VD_ERROR_ENDED, VD_ERROR_VANISHED, VD_ERROR_STOPPING,
    VD_ERROR_FULL
} vd_error;

#define VD_FOR_EVER 0xffffffffu

typedef struct {
    const char *host;
    const char *port;       /* number or service name */
    const char *run;
    const char *token;      /* the service's; NULL: the one that a service of this user has made on this host, if any */
    const char *start;      /* JSON that POST /runs takes; NULL: the run was started otherwise */
    vd_level level;         /* frames are kept until they are acknowledged so */
    uint16_t source;        /* of a detector of several elements: which of them */
    uint16_t connection;    /* of a client with several connections, one vd_client each: which of how many, */
    uint16_t connections;
    uint8_t client[16];     /* and what they share; all zero: chosen at random */
    uint32_t patience_ms;   /* that a frame may wait for room in the service before it drops it */
    int checksum;           /* not 0: a CRC-32 with each body */
    uint64_t window_bytes;  /* most bytes of frames that are kept */
    uint32_t timeout_ms;    /* that a call takes at most, connecting again included */
} vd_options;

typedef struct {
    uint64_t frames, received, missing, damaged, duplicate, late, dropped, file_bytes, partial;
} vd_finished;

/* How often the service had something to say about single frames. */
typedef struct {
    uint64_t dropped, damaged, duplicate, refused, reconnects;
} vd_counts;

typedef struct vd_client vd_client;

/* Fills in what is usual: level durable, checksums, for ever, 256 MiB, 60 s. */
void vd_options_init(vd_options *options);

/* A client that is not connected; NULL without memory. */
vd_client *vd_new(void);

/* Connects, starts the run if `start` is given, and learns what the service has of it. Once a client. */
vd_status vd_open(vd_client *client, const vd_options *options);

/* Sends plain elements, row by row, little-endian, which are copied. `taken_ns`: when the detector took the frame, since
 * 1970; 0 if unknown. `sides`: of the frame, the slowest first. Waits for room while too much is not acknowledged: VD_TIMEOUT
 * says that the frame was not taken. */
vd_status vd_send(vd_client *client, uint64_t number, uint64_t taken_ns, vd_element element, const uint32_t *sides,
                  unsigned rank, const void *bytes, size_t length);

/* Sends the chunks of a frame, row by row, each as the run's filter ("bslz4", "gzip:6", ...) makes it. */
vd_status vd_send_chunks(vd_client *client, uint64_t number, uint64_t taken_ns, vd_element element, const uint32_t *sides,
                         unsigned rank, const char *filter, uint32_t chunks, const void *const *data,
                         const uint32_t *lengths);

/* As vd_send_chunks where the run's chunks hold several frames: the chunks of `frames` frames from `number` on, which are the
 * first that these chunks hold; the others come plain, or never. */
vd_status vd_send_slab(vd_client *client, uint64_t number, uint32_t frames, uint64_t taken_ns, vd_element element,
                       const uint32_t *sides, unsigned rank, const char *filter, uint32_t chunks, const void *const *data,
                       const uint32_t *lengths);

/* Sends scalars: `rows` frame numbers, and for each of them `names` values, row by row; not a number says nothing. */
vd_status vd_scalars(vd_client *client, unsigned names, const char *const *name, uint32_t rows, const uint64_t *numbers,
                     const double *values);

/* Of which kind a scalar is; the run's column may be of another one that holds its values. */
typedef enum { VD_FLOAT = 0, VD_INTEGER = 1, VD_UNSIGNED = 2, VD_TEXT = 3 } vd_kind;

/* What says nothing: not a number, INT64_MIN, UINT64_MAX, NULL. */
typedef union {
    double number;
    int64_t integer;
    uint64_t whole;
    const char *text; /* UTF-8, below 65535 bytes */
} vd_value;

/* As vd_scalars, each name with its kind. Other ones than VD_FLOAT need a service that speaks version 2 of the stream:
 * before others, this is VD_USAGE. */
vd_status vd_values(vd_client *client, unsigned names, const char *const *name, const vd_kind *kinds, uint32_t rows,
                    const uint64_t *numbers, const vd_value *values);

/* Hears what the service has to say, for at most so long, and keeps the connection alive. */
vd_status vd_poll(vd_client *client, uint32_t timeout_ms);

/* Until every frame sent is acknowledged at the client's level. Frames that share chunks with others do not wait for those:
 * where it is called between them, their chunks are written again. */
vd_status vd_wait(vd_client *client);

/* Nothing more comes: of this source (complete not 0: until the run is finished, which all sources do together) or on this
 * connection. Of several connections that are ended one after the other only the last one is complete: its call returns
 * with the end of the run. `dropped`: frames that never got this far. `finished` may be NULL. */
vd_status vd_end(vd_client *client, int complete, uint64_t dropped, vd_finished *finished);

/* Frames that are not acknowledged at the client's level yet. */
size_t vd_kept(const vd_client *client);
void vd_get_counts(const vd_client *client, vd_counts *counts);
/* Frames of the run that the service had when this client connected last: one past the highest number. */
uint64_t vd_frames_there(const vd_client *client);

/* What went wrong last, in words; never NULL. */
const char *vd_error_text(const vd_client *client);
vd_error vd_error_code(const vd_client *client);

/* Drops the connection and what is kept. */
void vd_free(vd_client *client);

#ifdef __cplusplus
}
#endif

#endif
