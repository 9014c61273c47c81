/* See varve_detector.h; the bytes are described in formats/detector-stream.md. */

#if defined(_WIN32)
#define _CRT_RAND_S
#ifndef _WIN32_WINNT
#define _WIN32_WINNT 0x0600
#endif
#include <winsock2.h>
#include <ws2tcpip.h>
#else
#define _POSIX_C_SOURCE 200809L
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#endif

#include "varve_detector.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
typedef SOCKET vd_socket;
#define NO_SOCKET INVALID_SOCKET
#define vd_poll_sockets WSAPoll
#else
typedef int vd_socket;
#define NO_SOCKET (-1)
#define vd_poll_sockets poll
#endif

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

enum { HELLO = 1, FRAME = 2, SCALARS = 3, END = 4, PING = 5 };
enum { WELCOME = 129, ACK = 130, NOTICE = 131, REFUSAL = 132, FINISHED = 133, PONG = 134 };
enum { NOTICE_DROPPED = 1, NOTICE_DAMAGED = 2, NOTICE_REFUSED = 4 };

#define HEADER_BYTES 32u
#define HEAD_BYTES_MAX (1u << 20)
/* For one attempt; then comes the next. */
#define CONNECT_MS_MAX 10000u
/* How often a frame is sent whose bytes are changed on the way. */
#define ATTEMPTS 5
/* So many errors `protocol` one after the other, with nothing acknowledged between them, are no damage on the way. */
#define PROTOCOL_ERRORS 10
/* Scalars that the service has not answered to yet. */
#define SCALAR_BYTES_MAX (64u << 20)
/* Of a token in a file. */
#define TOKEN_BYTES_MAX 1024
#define FRAME_FLAG_AGAIN 1
/* Chunks that wait for other frames are to be written as they are. */
#define PING_FLAG_FLUSH 1
#define SCALARS_FLAG_KINDS 1
/* The newest version of the stream that is spoken here, and the first in which scalars have kinds. */
#define NEWEST_VERSION 2
#define KINDS_VERSION 2
#define NO_TEXT 0xffffu
#define TEXT_BYTES 512

/* A message that is kept until it is acknowledged. Freed once no list has it and no output leads to it. */
typedef struct kept {
    struct kept *next;
    uint64_t number;
    uint8_t *head;
    uint32_t head_bytes;
    uint8_t *body;
    uint64_t body_bytes;
    int level, attempts;
    unsigned pins;
    int listed;
    /* Of scalars: the ping whose answer says that the service has them, the frames of their rows, flags of the message. */
    uint64_t ping;
    uint64_t *numbers;
    uint32_t rows;
    int flags;
} kept;

typedef struct output {
    struct output *next;
    uint8_t *own;
    kept *pin;
    const uint8_t *data;
    size_t left;
} output;

typedef struct {
    kept *first, *last;
    size_t count;
    uint64_t bytes;
} list;

typedef struct {
    uint64_t start, end;
} range;

struct vd_client {
    uint32_t crc[8][256];
    char *host, *port;
    uint8_t *hello;
    uint32_t hello_bytes;
    /* Where the length of the token lies in it, if none was given: then it is looked for at each connection; else 0. */
    uint32_t token_at;
    vd_level level;
    int checksum;
    uint64_t window_bytes;
    uint32_t timeout_ms;
    vd_socket socket;
    int opened, connecting, welcomed, ending, finished;
    int flushing; /* all that was sent is waited for */
    uint8_t end_flag, end_head[8];
    vd_finished counts_finished;
    output *out_first, *out_last;
    uint8_t *in;
    size_t in_bytes, in_room;
    list frames, scalars;
    range *safe;
    size_t safe_count, safe_room;
    uint64_t pings, pongs;
    uint64_t told, heard, next_try, pause, idle;
    uint64_t body_max, frames_there;
    unsigned version; /* of the stream, as the service agreed to */
    int greeted; /* how often it was welcomed */
    int protocol_errors;
    vd_counts counts;
    vd_status state;     /* for good */
    vd_status complaint; /* to be said once */
    vd_error code;
    char text[TEXT_BYTES], complaint_text[TEXT_BYTES];
};

/* Numbers. */

static void put(uint8_t *at, uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *at, unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = bytes; i > 0; i--) value = value << 8 | at[i - 1];
    return value;
}

static void crc_tables(vd_client *client) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        client->crc[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++) {
        for (int k = 1; k < 8; k++) {
            uint32_t before = client->crc[k - 1][i];
            client->crc[k][i] = before >> 8 ^ client->crc[0][before & 0xff];
        }
    }
}

/* CRC-32 of zlib, eight bytes a step. */
static uint32_t crc32_of(const vd_client *client, const uint8_t *data, size_t length) {
    uint32_t crc = 0xffffffffu;
    for (; length >= 8; length -= 8, data += 8) {
        uint32_t low = crc ^ (uint32_t)get(data, 4), high = (uint32_t)get(data + 4, 4);
        crc = client->crc[7][low & 0xff] ^ client->crc[6][low >> 8 & 0xff] ^ client->crc[5][low >> 16 & 0xff]
            ^ client->crc[4][low >> 24] ^ client->crc[3][high & 0xff] ^ client->crc[2][high >> 8 & 0xff]
            ^ client->crc[1][high >> 16 & 0xff] ^ client->crc[0][high >> 24];
    }
    for (; length > 0; length--, data++) crc = crc >> 8 ^ client->crc[0][(crc ^ *data) & 0xff];
    return ~crc;
}

/* The system. */

static uint64_t now_ms(void) {
#if defined(_WIN32)
    return GetTickCount64();
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
#endif
}

static void sleep_ms(uint64_t wait) {
#if defined(_WIN32)
    Sleep((DWORD)wait);
#else
    struct timespec time = {(time_t)(wait / 1000), (long)(wait % 1000) * 1000000};
    nanosleep(&time, NULL);
#endif
}

static int random_bytes(uint8_t *bytes, size_t length) {
#if defined(_WIN32)
    for (size_t i = 0; i < length; i++) {
        unsigned number;
        if (rand_s(&number) != 0) return 0;
        bytes[i] = (uint8_t)number;
    }
    return 1;
#else
    FILE *file = fopen("/dev/urandom", "rb");
    size_t read = file ? fread(bytes, 1, length, file) : 0;
    if (file) fclose(file);
    return read == length;
#endif
}

static int last_error(void) {
#if defined(_WIN32)
    return WSAGetLastError();
#else
    return errno;
#endif
}

static int would_wait(int error) {
#if defined(_WIN32)
    return error == WSAEWOULDBLOCK || error == WSAEINPROGRESS;
#else
    return error == EAGAIN || error == EWOULDBLOCK || error == EINPROGRESS || error == EINTR;
#endif
}

static void close_socket(vd_socket socket) {
#if defined(_WIN32)
    closesocket(socket);
#else
    close(socket);
#endif
}

static int never_block(vd_socket socket) {
#if defined(_WIN32)
    u_long on = 1;
    return ioctlsocket(socket, FIONBIO, &on) == 0;
#else
    int flags = fcntl(socket, F_GETFL, 0);
    return flags >= 0 && fcntl(socket, F_SETFL, flags | O_NONBLOCK) == 0;
#endif
}

/* What goes wrong. */

static void say(char *text, const char *format, va_list arguments) {
    vsnprintf(text, TEXT_BYTES, format, arguments);
}

static vd_status fail(vd_client *client, vd_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(client->text, format, arguments);
    va_end(arguments);
    return status;
}

/* The first is said; the others are counted. */
static void complain(vd_client *client, const char *format, ...) {
    va_list arguments;
    if (client->complaint != VD_OK) return;
    va_start(arguments, format);
    say(client->complaint_text, format, arguments);
    va_end(arguments);
    client->complaint = VD_FRAME_REFUSED;
}

/* What is to be said first: for good, or once. */
static vd_status standing(vd_client *client) {
    if (client->state != VD_OK) return client->state;
    vd_status complaint = client->complaint;
    if (complaint != VD_OK) memcpy(client->text, client->complaint_text, TEXT_BYTES);
    client->complaint = VD_OK;
    return complaint;
}

static void no_memory(vd_client *client) {
    client->state = fail(client, VD_NO_MEMORY, "no memory");
}

/* Kept messages. */

static void unpin(kept *message) {
    if (message->pins == 0 && !message->listed) {
        free(message->head);
        free(message->body);
        free(message->numbers);
        free(message);
    }
}

static void append(list *list, kept *message) {
    message->next = NULL;
    message->listed = 1;
    if (list->last) list->last->next = message;
    else list->first = message;
    list->last = message;
    list->count++;
    list->bytes += message->body_bytes;
}

/* Takes the message after `before` (NULL: the first) out of its list. */
static void take_out(list *list, kept *before) {
    kept *message = before ? before->next : list->first;
    if (before) before->next = message->next;
    else list->first = message->next;
    if (list->last == message) list->last = before;
    list->count--;
    list->bytes -= message->body_bytes;
    message->listed = 0;
    unpin(message);
}

static kept *find(const vd_client *client, uint64_t number) {
    kept *message = client->frames.first;
    while (message && message->number != number) message = message->next;
    return message;
}

static void forget(vd_client *client, uint64_t start, uint64_t end) {
    for (kept *before = NULL, *message = client->frames.first; message;) {
        kept *next = message->next;
        if (message->number >= start && message->number < end) {
            take_out(&client->frames, before);
            client->protocol_errors = 0;
        } else {
            before = message;
        }
        message = next;
    }
}

/* Scalars are kept while the service has not answered to what came after them, or the frame of a row is not safe. */
static void settle_scalars(vd_client *client) {
    for (kept *message = client->scalars.first; message; message = client->scalars.first) {
        if (message->ping == 0 || message->ping > client->pongs) return;
        for (uint32_t row = 0; row < message->rows; row++) {
            if (find(client, message->numbers[row])) return;
        }
        take_out(&client->scalars, NULL);
        client->protocol_errors = 0;
    }
}

/* Adds to the ranges of frames that are acknowledged at the client's level, which are sorted and do not touch. */
static void add_safe(vd_client *client, uint64_t start, uint64_t end) {
    size_t from = 0, to;
    while (from < client->safe_count && client->safe[from].end < start) from++;
    for (to = from; to < client->safe_count && client->safe[to].start <= end; to++) {
        if (client->safe[to].start < start) start = client->safe[to].start;
        if (client->safe[to].end > end) end = client->safe[to].end;
    }
    if (from == to && client->safe_count == client->safe_room) {
        size_t room = client->safe_room ? 2 * client->safe_room : 16;
        range *more = realloc(client->safe, room * sizeof *more);
        if (!more) {
            no_memory(client);
            return;
        }
        client->safe = more;
        client->safe_room = room;
    }
    memmove(client->safe + from + 1, client->safe + to, (client->safe_count - to) * sizeof *client->safe);
    client->safe[from].start = start;
    client->safe[from].end = end;
    client->safe_count = client->safe_count + 1 - (to - from);
}

static int is_safe(const vd_client *client, uint64_t number) {
    for (size_t i = 0; i < client->safe_count; i++) {
        if (number >= client->safe[i].start && number < client->safe[i].end) return 1;
    }
    return 0;
}

/* Output. */

static void drop_output(vd_client *client) {
    output *first = client->out_first;
    client->out_first = first->next;
    if (!client->out_first) client->out_last = NULL;
    if (first->pin) {
        first->pin->pins--;
        unpin(first->pin);
    }
    free(first->own);
    free(first);
}

static void append_output(vd_client *client, uint8_t *own, kept *pin, const uint8_t *data, size_t length) {
    output *more = length ? malloc(sizeof *more) : NULL;
    if (!more) {
        free(own);
        if (length) no_memory(client);
        return;
    }
    *more = (output){NULL, own, pin, data, length};
    if (pin) pin->pins++;
    if (client->out_last) client->out_last->next = more;
    else client->out_first = more;
    client->out_last = more;
}

/* Queues a message; its body, if there is one, is that of `pin`. */
static void push(vd_client *client, int kind, int flags, const uint8_t *head, uint32_t head_bytes, kept *pin) {
    uint8_t *bytes = malloc(HEADER_BYTES + (size_t)head_bytes);
    if (!bytes) {
        no_memory(client);
        return;
    }
    uint64_t body_bytes = pin ? pin->body_bytes : 0;
    memset(bytes, 0, HEADER_BYTES);
    bytes[0] = (uint8_t)kind;
    bytes[1] = (uint8_t)flags;
    put(bytes + 4, head_bytes, 4);
    put(bytes + 8, body_bytes, 8);
    put(bytes + 16, client->checksum && body_bytes ? crc32_of(client, pin->body, (size_t)body_bytes) : 0, 8);
    put(bytes + 24, crc32_of(client, head, head_bytes), 4);
    put(bytes + 28, crc32_of(client, bytes, 28), 4);
    if (head_bytes) memcpy(bytes + HEADER_BYTES, head, head_bytes);
    append_output(client, bytes, NULL, bytes, HEADER_BYTES + (size_t)head_bytes);
    if (body_bytes) append_output(client, NULL, pin, pin->body, (size_t)body_bytes);
}

static void ping(vd_client *client, int flags) {
    push(client, PING, flags, (const uint8_t *)"", 0, NULL);
    client->pings++;
}

static void push_frame(vd_client *client, kept *frame, int flags) {
    push(client, FRAME, flags, frame->head, frame->head_bytes, frame);
}

static void push_scalars(vd_client *client, kept *scalars) {
    if (scalars->flags && client->version < KINDS_VERSION) {
        client->state = fail(client, VD_REFUSED, "the service speaks version %u of the stream now, which has floats alone",
                             client->version);
        return;
    }
    push(client, SCALARS, scalars->flags, scalars->head, scalars->head_bytes, scalars);
    ping(client, 0);
    scalars->ping = client->pings;
}

static void push_end(vd_client *client) {
    push(client, END, client->end_flag, client->end_head, sizeof client->end_head, NULL);
}

/* The connection. */

static void disconnect(vd_client *client, const char *format, ...) {
    if (client->socket != NO_SOCKET) close_socket(client->socket);
    client->socket = NO_SOCKET;
    client->welcomed = client->connecting = 0;
    client->in_bytes = 0;
    while (client->out_first) drop_output(client);
    if (client->state != VD_OK) return;
    va_list arguments;
    va_start(arguments, format);
    say(client->text, format, arguments);
    va_end(arguments);
}

#if defined(_WIN32)
/* The service runs on Linux, never on this host. */
static size_t published_token(vd_socket socket, char *token) {
    (void)socket, (void)token;
    return 0;
}
#else
/* The token in `name`, if it lies in a directory and a file of this user's that others cannot write, or read; 0: none.
 * `changed`: when the token was published that was found before, and then when this one was, if it is newer. */
static size_t token_in(const char *directory, const char *name, struct timespec *changed, char *token) {
    char text[TOKEN_BYTES_MAX + 2];
    struct stat found;
    size_t length = 0, begin = 0;
    int around = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (around < 0) return 0;
    int file = -1;
    if (fstat(around, &found) == 0 && found.st_uid == geteuid() && (found.st_mode & 022) == 0) {
        file = openat(around, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    }
    close(around);
    if (file < 0) return 0;
    if (fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid() && (found.st_mode & 077) == 0
        && (found.st_mtim.tv_sec > changed->tv_sec
            || (found.st_mtim.tv_sec == changed->tv_sec && found.st_mtim.tv_nsec > changed->tv_nsec))) {
        ssize_t bytes = read(file, text, sizeof text);
        length = bytes > 0 ? (size_t)bytes : 0;
    }
    close(file);
    while (length > begin && text[length - 1] <= ' ') length--;
    while (begin < length && text[begin] <= ' ') begin++;
    length -= begin;
    if (length < 8 || length > TOKEN_BYTES_MAX) return 0;
    *changed = found.st_mtim;
    memcpy(token, text + begin, length);
    return length;
}

/* The token that a service of this user has published for the address of this host that `socket` is connected to; 0: none. */
static size_t published_token(vd_socket socket, char *token) {
    struct sockaddr_storage peer;
    socklen_t bytes = sizeof peer;
    char address[INET6_ADDRSTRLEN], name[INET6_ADDRSTRLEN + 32], directory[4096];
    unsigned port;
    if (getpeername(socket, (struct sockaddr *)&peer, &bytes) != 0) return 0;
    if (peer.ss_family == AF_INET) {
        const struct sockaddr_in *at = (const struct sockaddr_in *)&peer;
        if (ntohl(at->sin_addr.s_addr) >> 24 != 127 || !inet_ntop(AF_INET, &at->sin_addr, address, sizeof address)) return 0;
        port = ntohs(at->sin_port);
    } else if (peer.ss_family == AF_INET6) {
        const struct sockaddr_in6 *at = (const struct sockaddr_in6 *)&peer;
        if (!IN6_IS_ADDR_LOOPBACK(&at->sin6_addr) || !inet_ntop(AF_INET6, &at->sin6_addr, address, sizeof address)) return 0;
        port = ntohs(at->sin6_port);
    } else {
        return 0;
    }
    snprintf(name, sizeof name, "detector-%s-%u.token", address, port);
    struct timespec changed = {0, 0};
    size_t length = 0, found;
    const char *session = getenv("XDG_RUNTIME_DIR");
    if (session && *session == '/' && strlen(session) < sizeof directory - 16) {
        snprintf(directory, sizeof directory, "%s/varve-detector", session);
        if ((found = token_in(directory, name, &changed, token)) > 0) length = found;
    }
    if (geteuid() == 0) snprintf(directory, sizeof directory, "/run/varve-detector");
    else snprintf(directory, sizeof directory, "/run/user/%u/varve-detector", (unsigned)geteuid());
    if ((found = token_in(directory, name, &changed, token)) > 0) length = found;
    snprintf(directory, sizeof directory, "/tmp/varve-detector-%u", (unsigned)geteuid());
    if ((found = token_in(directory, name, &changed, token)) > 0) length = found;
    return length;
}
#endif

/* HELLO, with the token that is found now where none was given. */
static void push_hello(vd_client *client) {
    char token[TOKEN_BYTES_MAX];
    size_t length = client->token_at ? published_token(client->socket, token) : 0;
    if (length == 0) {
        push(client, HELLO, 0, client->hello, client->hello_bytes, NULL);
        return;
    }
    uint32_t before = client->token_at + 2;
    uint8_t *hello = malloc(client->hello_bytes + length);
    if (!hello) {
        no_memory(client);
        return;
    }
    memcpy(hello, client->hello, before);
    put(hello + client->token_at, length, 2);
    memcpy(hello + before, token, length);
    memcpy(hello + before + length, client->hello + before, client->hello_bytes - before);
    push(client, HELLO, 0, hello, client->hello_bytes + (uint32_t)length, NULL);
    free(hello);
}

static void greet(vd_client *client) {
    client->heard = client->told = now_ms();
    client->pings = client->pongs = 0;
    push_hello(client);
    ping(client, 0);
}

static void begin_connect(vd_client *client) {
    struct addrinfo hints, *found = NULL;
    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    client->pause = client->pause ? (client->pause < 1000 ? 2 * client->pause : 2000) : 100;
    client->next_try = now_ms() + client->pause;
    int error = getaddrinfo(client->host, client->port, &hints, &found);
    if (error != 0) {
        disconnect(client, "cannot find %s, port %s (%d)", client->host, client->port, error);
        return;
    }
    /* The addresses of a name are tried one after the other, one each time. */
    unsigned count = 0, turn;
    for (struct addrinfo *at = found; at; at = at->ai_next) count++;
    turn = (unsigned)(client->next_try % count);
    struct addrinfo *at = found;
    while (turn-- > 0) at = at->ai_next;
    client->socket = socket(at->ai_family, at->ai_socktype, at->ai_protocol);
    if (client->socket == NO_SOCKET || !never_block(client->socket)) {
        freeaddrinfo(found);
        disconnect(client, "no socket (%d)", last_error());
        return;
    }
    int on = 1;
    setsockopt(client->socket, IPPROTO_TCP, TCP_NODELAY, (const char *)&on, sizeof on);
    int result = connect(client->socket, at->ai_addr, (socklen_t)at->ai_addrlen);
    freeaddrinfo(found);
    if (result == 0) {
        greet(client);
    } else if (would_wait(last_error())) {
        client->connecting = 1;
        client->heard = client->told = now_ms();
    } else {
        disconnect(client, "cannot connect to %s, port %s (%d)", client->host, client->port, last_error());
    }
}

static void end_connect(vd_client *client) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(client->socket, SOL_SOCKET, SO_ERROR, (char *)&error, &length);
    client->connecting = 0;
    if (error == 0) greet(client);
    else disconnect(client, "cannot connect to %s, port %s (%d)", client->host, client->port, error);
}

/* What the service says. */

static void come_back(vd_client *client) {
    client->welcomed = 1;
    client->pause = 0;
    if (client->greeted++ > 0) client->counts.reconnects++;
    for (kept *frame = client->frames.first; frame; frame = frame->next) {
        if (frame->level == 0) push_frame(client, frame, FRAME_FLAG_AGAIN);
    }
    for (kept *scalars = client->scalars.first; scalars; scalars = scalars->next) push_scalars(client, scalars);
    if (client->flushing) ping(client, PING_FLAG_FLUSH);
    if (client->ending) push_end(client);
}

static void acknowledge(vd_client *client, int level, uint64_t first, uint64_t count) {
    uint64_t end = first + count < first ? UINT64_MAX : first + count;
    if (level >= (int)client->level) {
        add_safe(client, first, end);
        forget(client, first, end);
        settle_scalars(client);
        return;
    }
    for (kept *frame = client->frames.first; frame; frame = frame->next) {
        if (frame->number >= first && frame->number < end && frame->level < level) frame->level = level;
    }
}

static void notice(vd_client *client, const uint8_t *head, size_t length) {
    unsigned code = (unsigned)get(head, 2), words = (unsigned)get(head + 2, 2);
    uint64_t number = get(head + 8, 8);
    if (words > length - 16) words = (unsigned)(length - 16);
    kept *frame = find(client, number);
    uint64_t *counts[] = {NULL, &client->counts.dropped, &client->counts.damaged, &client->counts.duplicate,
                          &client->counts.refused};
    if (code >= NOTICE_DROPPED && code <= NOTICE_REFUSED) ++*counts[code];
    if (code == NOTICE_DAMAGED && frame && frame->attempts < ATTEMPTS) {
        frame->attempts++;
        push_frame(client, frame, FRAME_FLAG_AGAIN);
    } else if (code == NOTICE_DROPPED || code == NOTICE_DAMAGED || code == NOTICE_REFUSED || is_safe(client, number)) {
        forget(client, number, number + 1);
        settle_scalars(client);
    }
    if (code == NOTICE_REFUSED && number != UINT64_MAX) {
        complain(client, "frame %llu is refused: %.*s", (unsigned long long)number, (int)words, (const char *)head + 16);
    } else if (code == NOTICE_REFUSED) {
        complain(client, "refused: %.*s", (int)words, (const char *)head + 16);
    }
}

static void refusal(vd_client *client, const uint8_t *head, size_t length) {
    unsigned code = (unsigned)get(head, 2), words = (unsigned)get(head + 2, 2);
    if (words > length - 16) words = (unsigned)(length - 16);
    client->code = (vd_error)code;
    disconnect(client, "%.*s", (int)words, (const char *)head + 16);
    if (code == VD_ERROR_PROTOCOL) client->protocol_errors++;
    /* After these it helps to connect again. */
    int passes = code == VD_ERROR_PROTOCOL || code == VD_ERROR_VANISHED || code == VD_ERROR_STOPPING || code == VD_ERROR_FULL;
    if (!passes || client->protocol_errors >= PROTOCOL_ERRORS) client->state = VD_REFUSED;
}

static void finish(vd_client *client, const uint8_t *head, size_t length) {
    uint64_t *fields[] = {&client->counts_finished.frames, &client->counts_finished.received,
                          &client->counts_finished.missing, &client->counts_finished.damaged,
                          &client->counts_finished.duplicate, &client->counts_finished.late,
                          &client->counts_finished.dropped, &client->counts_finished.file_bytes};
    for (size_t i = 0; i < 8; i++) *fields[i] = get(head + 8 * i, 8);
    /* Services before this field say nothing of it. */
    client->counts_finished.partial = length >= 72 ? get(head + 64, 8) : 0;
    client->finished = 1;
}

static void hear(vd_client *client, int kind, const uint8_t *head, size_t length) {
    static const size_t least[] = {24, 8, 16, 16, 64, 0};
    if (kind < WELCOME || kind > PONG || length < least[kind - WELCOME]) {
        disconnect(client, "what comes from the service cannot be understood");
    } else if (kind == WELCOME) {
        client->version = (unsigned)get(head, 2);
        client->idle = get(head + 4, 4);
        if (client->idle < 100) client->idle = 100;
        client->body_max = get(head + 8, 8);
        client->frames_there = get(head + 16, 8);
        /* What it had in memory only may be lost: it says itself what it has. */
        for (kept *frame = client->frames.first; frame; frame = frame->next) frame->level = 0;
    } else if (kind == ACK) {
        uint64_t ranges = get(head + 4, 4);
        for (uint64_t i = 0; i < ranges && 8 + 16 * (i + 1) <= length; i++) {
            acknowledge(client, head[0], get(head + 8 + 16 * i, 8), get(head + 16 + 16 * i, 8));
        }
    } else if (kind == NOTICE) {
        notice(client, head, length);
    } else if (kind == REFUSAL) {
        refusal(client, head, length);
    } else if (kind == FINISHED) {
        finish(client, head, length);
    } else {
        client->pongs++;
        if (client->welcomed) settle_scalars(client);
        else come_back(client);
    }
}

/* Takes whole messages from what has come. */
static void understand(vd_client *client) {
    size_t at = 0;
    while (client->socket != NO_SOCKET && client->in_bytes - at >= HEADER_BYTES) {
        const uint8_t *header = client->in + at;
        size_t head_bytes = (size_t)get(header + 4, 4);
        if (get(header + 28, 4) != crc32_of(client, header, 28) || head_bytes > HEAD_BYTES_MAX || get(header + 8, 8) != 0) {
            disconnect(client, "what comes from the service is damaged");
            return;
        }
        if (client->in_bytes - at < HEADER_BYTES + head_bytes) break;
        if (get(header + 24, 4) != crc32_of(client, header + HEADER_BYTES, head_bytes)) {
            disconnect(client, "what comes from the service is damaged");
            return;
        }
        at += HEADER_BYTES + head_bytes;
        hear(client, header[0], header + HEADER_BYTES, head_bytes);
    }
    if (client->socket == NO_SOCKET) return;
    memmove(client->in, client->in + at, client->in_bytes - at);
    client->in_bytes -= at;
}

static void read_some(vd_client *client) {
    if (client->in_room - client->in_bytes < 1u << 14) {
        size_t room = client->in_room ? 2 * client->in_room : 1u << 16;
        uint8_t *more = realloc(client->in, room);
        if (!more) {
            no_memory(client);
            return;
        }
        client->in = more;
        client->in_room = room;
    }
    long came = (long)recv(client->socket, (char *)client->in + client->in_bytes, 1 << 14, 0);
    if (came > 0) {
        client->heard = now_ms();
        client->in_bytes += (size_t)came;
        understand(client);
    } else if (came == 0) {
        disconnect(client, "the service has closed the connection");
    } else if (!would_wait(last_error())) {
        disconnect(client, "the connection has broken (%d)", last_error());
    }
}

static void write_some(vd_client *client) {
    output *first = client->out_first;
    size_t length = first->left < 1u << 20 ? first->left : 1u << 20;
#if defined(_WIN32)
    long went = (long)send(client->socket, (const char *)first->data, (int)length, MSG_NOSIGNAL);
#else
    long went = (long)send(client->socket, first->data, length, MSG_NOSIGNAL);
#endif
    if (went > 0) {
        client->told = now_ms();
        first->data += went;
        first->left -= (size_t)went;
        if (first->left == 0) drop_output(client);
    } else if (!would_wait(last_error())) {
        disconnect(client, "the connection has broken (%d)", last_error());
    }
}

/* A service that says nothing for long, though it was asked to, is gone; unless it finishes the run. */
static void keep_alive(vd_client *client, uint64_t now) {
    uint64_t told = client->told > client->idle / 3 ? client->told - client->idle / 3 : 0;
    uint64_t since = client->heard > told ? client->heard : told;
    if (client->connecting && now - client->heard > CONNECT_MS_MAX) {
        disconnect(client, "%s, port %s does not answer", client->host, client->port);
        return;
    }
    if (!client->out_first && client->welcomed && !client->ending && now - client->told > client->idle / 3) {
        ping(client, 0);
        client->told = now;
    }
    if (!client->ending && now > since && now - since > 2 * client->idle) {
        disconnect(client, "the service has said nothing for %llu ms", (unsigned long long)(2 * client->idle));
    }
}

/* Sends and receives what there is, and waits for it at most `wait` milliseconds. */
static void step(vd_client *client, uint64_t wait) {
    uint64_t now = now_ms();
    if (client->socket == NO_SOCKET) {
        if (now < client->next_try) sleep_ms(client->next_try - now < wait ? client->next_try - now : wait);
        else begin_connect(client);
        return;
    }
    keep_alive(client, now);
    if (client->socket == NO_SOCKET) return;
#if defined(_WIN32)
    WSAPOLLFD waiting = {client->socket, POLLIN, 0};
#else
    struct pollfd waiting = {client->socket, POLLIN, 0};
#endif
    if (client->out_first || client->connecting) waiting.events |= POLLOUT;
    if (vd_poll_sockets(&waiting, 1, (int)(wait < 1000 ? wait : 1000)) < 0) {
        if (!would_wait(last_error())) disconnect(client, "cannot wait for the connection (%d)", last_error());
        return;
    }
    if (client->connecting) {
        if (waiting.revents) end_connect(client);
        return;
    }
    if (waiting.revents & POLLOUT && client->out_first) write_some(client);
    if (client->socket != NO_SOCKET && waiting.revents & (POLLIN | POLLHUP | POLLERR)) read_some(client);
}

/* What a call waits for. */
typedef enum { WELCOMED, ROOM, SCALAR_ROOM, SENT, ACKNOWLEDGED, RUN_ENDED, NOTHING } awaited;

static int is_done(const vd_client *client, awaited what, uint64_t bytes) {
    switch (what) {
    case WELCOMED: return client->welcomed;
    case ROOM: return !client->frames.count || client->frames.bytes + bytes <= client->window_bytes;
    case SCALAR_ROOM: return client->scalars.bytes < SCALAR_BYTES_MAX;
    case SENT: return !client->out_first;
    case ACKNOWLEDGED:
        return !client->frames.count && !client->scalars.count && (client->finished || !client->out_first);
    case RUN_ENDED: return client->finished;
    default: return 0;
    }
}

/* The run has ended, by this client's word or another's: nothing more comes to it. */
static vd_status run_ended(vd_client *client) {
    return fail(client, VD_REFUSED,
                "ended: the run has ended, and %lu frames and %lu messages of scalars sent to it are not acknowledged: begin "
                "another, with another name and file",
                (unsigned long)client->frames.count, (unsigned long)client->scalars.count);
}

static vd_status work(vd_client *client, awaited what, uint64_t bytes, uint32_t timeout_ms) {
    uint64_t deadline = now_ms() + timeout_ms;
    for (;;) {
        vd_status status = standing(client);
        if (status != VD_OK) return status;
        uint64_t now = now_ms();
        uint64_t left = now < deadline ? deadline - now : 0;
        if (!client->finished) step(client, is_done(client, what, bytes) ? 0 : left);
        status = standing(client);
        if (status != VD_OK) return status;
        if (is_done(client, what, bytes)) return VD_OK;
        if (client->finished) return run_ended(client);
        if (left == 0) {
            if (!client->welcomed) return VD_TIMEOUT;
            return fail(client, VD_TIMEOUT, "the time is over: %lu frames are not acknowledged",
                        (unsigned long)client->frames.count);
        }
    }
}

/* As `work`, but what is kept is not lost when the time is over: the next call goes on with it. */
static vd_status work_a_while(vd_client *client, awaited what, uint32_t timeout_ms) {
    vd_status status = work(client, what, 0, timeout_ms);
    return status == VD_TIMEOUT ? VD_OK : status;
}

/* What callers say. */

void vd_options_init(vd_options *options) {
    memset(options, 0, sizeof *options);
    options->level = VD_DURABLE;
    options->connections = 1;
    options->patience_ms = VD_FOR_EVER;
    options->checksum = 1;
    options->window_bytes = (uint64_t)256 << 20;
    options->timeout_ms = 60000;
}

vd_client *vd_new(void) {
#if defined(_WIN32)
    WSADATA data;
    if (WSAStartup(MAKEWORD(2, 2), &data) != 0) return NULL;
#endif
    vd_client *client = calloc(1, sizeof *client);
    if (client) {
        client->socket = NO_SOCKET;
        crc_tables(client);
    }
#if defined(_WIN32)
    else WSACleanup();
#endif
    return client;
}

static char *copy_text(const char *text) {
    char *copy = malloc(strlen(text) + 1);
    return copy ? strcpy(copy, text) : NULL;
}

static vd_status make_hello(vd_client *client, const vd_options *options) {
    static const uint8_t none[16] = {0};
    const char *token = options->token ? options->token : "", *start = options->start ? options->start : "";
    size_t run_bytes = strlen(options->run), token_bytes = strlen(token), start_bytes = strlen(start);
    if (run_bytes > 64 || token_bytes > 4096 || start_bytes > HEAD_BYTES_MAX - 8192) {
        return fail(client, VD_USAGE, "the name of the run, the token or the start is too long");
    }
    client->hello_bytes = (uint32_t)(40 + run_bytes + token_bytes + start_bytes);
    uint8_t *at = client->hello = calloc(1, client->hello_bytes);
    if (!at) return fail(client, VD_NO_MEMORY, "no memory");
    put(at, 1, 2);
    at[3] = client->checksum ? 1 : 0;
    at[4] = (uint8_t)options->level;
    at[5] = NEWEST_VERSION;
    put(at + 6, options->source, 2);
    put(at + 8, options->connection, 2);
    put(at + 10, options->connections, 2);
    put(at + 12, options->patience_ms, 4);
    memcpy(at + 16, options->client, 16);
    if (memcmp(options->client, none, 16) == 0 && !random_bytes(at + 16, 16)) {
        return fail(client, VD_USAGE, "the system has no random numbers; give a client");
    }
    at += 32;
    put(at, run_bytes, 2);
    memcpy(at + 2, options->run, run_bytes);
    at += 2 + run_bytes;
    client->token_at = token_bytes ? 0 : (uint32_t)(at - client->hello);
    put(at, token_bytes, 2);
    memcpy(at + 2, token, token_bytes);
    at += 2 + token_bytes;
    put(at, start_bytes, 4);
    memcpy(at + 4, start, start_bytes);
    return VD_OK;
}

vd_status vd_open(vd_client *client, const vd_options *options) {
    if (client->opened || !options->host || !options->port || !options->run
        || (options->level != VD_MEMORY && options->level != VD_WRITTEN && options->level != VD_DURABLE)) {
        return fail(client, VD_USAGE, "give host, port, run and level, once");
    }
    client->opened = 1;
    client->level = options->level;
    client->checksum = options->checksum;
    client->window_bytes = options->window_bytes;
    client->timeout_ms = options->timeout_ms;
    client->idle = 30000;
    client->host = copy_text(options->host);
    client->port = copy_text(options->port);
    if (!client->host || !client->port) return fail(client, VD_NO_MEMORY, "no memory");
    vd_status status = make_hello(client, options);
    if (status != VD_OK) return client->state = status;
    return work(client, WELCOMED, 0, client->timeout_ms);
}

static vd_status ready(vd_client *client) {
    if (!client->opened || client->ending) return fail(client, VD_USAGE, "vd_open comes before this, vd_end after it");
    return standing(client);
}

static kept *new_kept(vd_client *client, uint32_t head_bytes, uint64_t body_bytes) {
    kept *message = calloc(1, sizeof *message);
    uint8_t *head = malloc(head_bytes), *body = malloc(body_bytes ? (size_t)body_bytes : 1);
    if (!message || !head || !body) {
        free(message);
        free(head);
        free(body);
        fail(client, VD_NO_MEMORY, "no memory for %llu bytes", (unsigned long long)body_bytes);
        return NULL;
    }
    message->head = head;
    message->head_bytes = head_bytes;
    message->body = body;
    message->body_bytes = body_bytes;
    message->attempts = 1;
    return message;
}

static unsigned element_bytes(vd_element element) {
    static const uint8_t bytes[] = {0, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8};
    return element >= VD_U8 && element <= VD_F64 ? bytes[element] : 0;
}

vd_status vd_send_slab(vd_client *client, uint64_t number, uint32_t frames, uint64_t taken_ns, vd_element element,
                       const uint32_t *sides, unsigned rank, const char *filter, uint32_t chunks, const void *const *data,
                       const uint32_t *lengths) {
    vd_status status = ready(client);
    if (status != VD_OK) return status;
    if (client->finished) return run_ended(client);
    size_t name_bytes = strlen(filter);
    uint64_t bytes = 0;
    /* Without a filter there is one piece: the plain elements. */
    uint32_t pieces = chunks ? chunks : 1;
    for (uint32_t i = 0; i < pieces; i++) {
        if (!data[i] && lengths[i]) return fail(client, VD_USAGE, "there are no bytes where the frame should be");
        bytes += lengths[i];
    }
    if (frames < 1 || rank < 1 || rank > 3 || name_bytes > 255 || chunks > HEAD_BYTES_MAX / 8 || !element_bytes(element)) {
        return fail(client, VD_USAGE, "a frame has 1 to 3 sides, a type of element, and not so many chunks");
    }
    /* The highest number says that there is none, and is what -1 becomes. */
    if (number >= UINT64_MAX - frames) {
        return fail(client, VD_USAGE, "frame %llu: frames are numbered from 0, and below 2^64 - 1; is it a negative number?",
                    (unsigned long long)number);
    }
    if (find(client, number)) {
        return fail(client, VD_USAGE, "frame %llu was sent already, and is not acknowledged yet", (unsigned long long)number);
    }
    if (client->body_max && bytes > client->body_max) {
        return fail(client, VD_USAGE, "the frame has %llu bytes; the service takes %llu", (unsigned long long)bytes,
                    (unsigned long long)client->body_max);
    }
    status = work(client, ROOM, bytes, client->timeout_ms);
    if (status != VD_OK) return status;
    kept *frame = new_kept(client, (uint32_t)(32 + 4 * rank + name_bytes + 4 * (size_t)chunks), bytes);
    if (!frame) return VD_NO_MEMORY;
    frame->number = number;
    memset(frame->head, 0, 32);
    put(frame->head, number, 8);
    put(frame->head + 8, taken_ns, 8);
    frame->head[16] = (uint8_t)element;
    frame->head[17] = (uint8_t)rank;
    frame->head[18] = (uint8_t)name_bytes;
    put(frame->head + 20, frames, 4);
    put(frame->head + 24, chunks, 4);
    uint8_t *at = frame->head + 32, *into = frame->body;
    for (unsigned i = 0; i < rank; i++, at += 4) put(at, sides[i], 4);
    memcpy(at, filter, name_bytes);
    at += name_bytes;
    for (uint32_t i = 0; i < chunks; i++, at += 4) put(at, lengths[i], 4);
    for (uint32_t i = 0; i < pieces; i++) {
        if (lengths[i]) memcpy(into, data[i], lengths[i]);
        into += lengths[i];
    }
    append(&client->frames, frame);
    if (client->welcomed) push_frame(client, frame, 0);
    return work_a_while(client, SENT, client->timeout_ms);
}

vd_status vd_send_chunks(vd_client *client, uint64_t number, uint64_t taken_ns, vd_element element, const uint32_t *sides,
                         unsigned rank, const char *filter, uint32_t chunks, const void *const *data,
                         const uint32_t *lengths) {
    return vd_send_slab(client, number, 1, taken_ns, element, sides, rank, filter, chunks, data, lengths);
}

vd_status vd_send(vd_client *client, uint64_t number, uint64_t taken_ns, vd_element element, const uint32_t *sides,
                  unsigned rank, const void *bytes, size_t length) {
    uint64_t needed = element_bytes(element);
    for (unsigned i = 0; i < rank && i < 3; i++) needed *= sides[i];
    if (needed == 0 || needed != length || length > UINT32_MAX) {
        return fail(client, VD_USAGE, "%llu bytes are no frame of these sides and type", (unsigned long long)length);
    }
    uint32_t whole = (uint32_t)length;
    return vd_send_chunks(client, number, taken_ns, element, sides, rank, "", 0, &bytes, &whole);
}

/* The names of scalars, and their kinds; NULL: all are floats. */
static vd_status check_scalars(vd_client *client, unsigned names, const char *const *name, const vd_kind *kinds,
                               uint32_t rows, size_t *head_bytes, int *flags) {
    *head_bytes = 6;
    *flags = 0;
    for (unsigned i = 0; i < names; i++) {
        if (strlen(name[i]) > 255) return fail(client, VD_USAGE, "a name has more than 255 bytes");
        *head_bytes += 1 + strlen(name[i]);
        if (kinds && kinds[i] != VD_FLOAT) *flags = SCALARS_FLAG_KINDS;
        if (kinds && (kinds[i] < VD_FLOAT || kinds[i] > VD_TEXT)) return fail(client, VD_USAGE, "there is no such kind");
    }
    if (*flags) *head_bytes += names;
    if (*flags && client->version < KINDS_VERSION) {
        return fail(client, VD_USAGE, "the service speaks version %u of the stream, which has floats alone; kinds need %u",
                    client->version, (unsigned)KINDS_VERSION);
    }
    if (names < 1 || names > 1024 || rows < 1 || (uint64_t)rows * (names + 1) > SCALAR_BYTES_MAX / 8) {
        return fail(client, VD_USAGE, "give 1 to 1024 names, and rows of no more than 64 MiB together");
    }
    return VD_OK;
}

/* Bytes of the body, or 0 with what is wrong. */
static uint64_t values_bytes(vd_client *client, unsigned names, const vd_kind *kinds, uint32_t rows,
                             const vd_value *values) {
    uint64_t bytes = (uint64_t)rows * 8;
    for (size_t i = 0; i < (size_t)rows * names; i++) {
        if (kinds[i % names] != VD_TEXT) {
            bytes += 8;
            continue;
        }
        size_t length = values[i].text ? strlen(values[i].text) : 0;
        if (length >= NO_TEXT) {
            fail(client, VD_USAGE, "a text has %u bytes or more", (unsigned)NO_TEXT);
            return 0;
        }
        bytes += 2 + length;
    }
    if (bytes > SCALAR_BYTES_MAX) {
        fail(client, VD_USAGE, "give rows of no more than 64 MiB together");
        return 0;
    }
    return bytes;
}

static uint8_t *put_value(uint8_t *at, vd_kind kind, const vd_value *value) {
    uint64_t bits = 0;
    if (kind == VD_TEXT) {
        size_t length = value->text ? strlen(value->text) : 0;
        put(at, value->text ? length : NO_TEXT, 2);
        if (length) memcpy(at + 2, value->text, length);
        return at + 2 + length;
    }
    if (kind == VD_FLOAT) memcpy(&bits, &value->number, 8);
    else bits = kind == VD_INTEGER ? (uint64_t)value->integer : value->whole;
    put(at, bits, 8);
    return at + 8;
}

vd_status vd_values(vd_client *client, unsigned names, const char *const *name, const vd_kind *kinds, uint32_t rows,
                    const uint64_t *numbers, const vd_value *values) {
    size_t head_bytes;
    int flags;
    vd_status status = ready(client);
    if (status == VD_OK) status = check_scalars(client, names, name, kinds, rows, &head_bytes, &flags);
    if (status != VD_OK) return status;
    uint64_t bytes = values_bytes(client, names, kinds, rows, values);
    if (bytes == 0) return VD_USAGE;
    if (client->finished) return run_ended(client);
    status = work(client, SCALAR_ROOM, 0, client->timeout_ms);
    if (status != VD_OK) return status;
    kept *scalars = new_kept(client, (uint32_t)head_bytes, bytes);
    if (scalars) scalars->numbers = malloc((size_t)rows * sizeof *numbers);
    if (!scalars || !scalars->numbers) {
        if (scalars) unpin(scalars);
        return fail(client, VD_NO_MEMORY, "no memory");
    }
    memcpy(scalars->numbers, numbers, (size_t)rows * sizeof *numbers);
    scalars->rows = rows;
    scalars->flags = flags;
    put(scalars->head, rows, 4);
    put(scalars->head + 4, names, 2);
    uint8_t *at = scalars->head + 6;
    for (unsigned i = 0; i < names; i++) {
        size_t length = strlen(name[i]);
        *at = (uint8_t)length;
        memcpy(at + 1, name[i], length);
        at += 1 + length;
    }
    for (unsigned i = 0; flags && i < names; i++) *at++ = (uint8_t)kinds[i];
    at = scalars->body;
    for (uint32_t row = 0; row < rows; row++) {
        put(at, numbers[row], 8);
        at += 8;
        for (unsigned i = 0; i < names; i++) at = put_value(at, kinds[i], &values[(size_t)row * names + i]);
    }
    append(&client->scalars, scalars);
    if (client->welcomed) push_scalars(client, scalars);
    return work_a_while(client, SENT, client->timeout_ms);
}

vd_status vd_scalars(vd_client *client, unsigned names, const char *const *name, uint32_t rows, const uint64_t *numbers,
                     const double *values_of) {
    size_t head_bytes;
    int flags;
    vd_status status = check_scalars(client, names, name, NULL, rows, &head_bytes, &flags);
    if (status != VD_OK) return status;
    size_t count = (size_t)rows * names;
    vd_kind *kinds = calloc(names, sizeof *kinds); /* VD_FLOAT */
    vd_value *values = malloc(count * sizeof *values);
    if (kinds && values) {
        for (size_t i = 0; i < count; i++) values[i].number = values_of[i];
        status = vd_values(client, names, name, kinds, rows, numbers, values);
    } else {
        status = fail(client, VD_NO_MEMORY, "no memory");
    }
    free(kinds);
    free(values);
    return status;
}

vd_status vd_poll(vd_client *client, uint32_t timeout_ms) {
    vd_status status = ready(client);
    return status == VD_OK ? work_a_while(client, NOTHING, timeout_ms) : status;
}

vd_status vd_wait(vd_client *client) {
    vd_status status = ready(client);
    if (status != VD_OK) return status;
    client->flushing = 1;
    if (client->welcomed && client->frames.count) ping(client, PING_FLAG_FLUSH);
    status = work(client, ACKNOWLEDGED, 0, client->timeout_ms);
    client->flushing = 0;
    return status;
}

vd_status vd_end(vd_client *client, int complete, uint64_t dropped, vd_finished *finished) {
    vd_status status = client->ending ? standing(client) : vd_wait(client);
    if (status != VD_OK) return status;
    if (!client->ending) {
        client->ending = 1;
        client->end_flag = complete ? 1 : 0;
        put(client->end_head, dropped, 8);
        if (client->welcomed) push_end(client);
    }
    status = work(client, RUN_ENDED, 0, client->timeout_ms);
    if (status == VD_OK && finished) *finished = client->counts_finished;
    return status;
}

size_t vd_kept(const vd_client *client) { return client->frames.count; }

void vd_get_counts(const vd_client *client, vd_counts *counts) { *counts = client->counts; }

uint64_t vd_frames_there(const vd_client *client) { return client->frames_there; }

const char *vd_error_text(const vd_client *client) { return client->text; }

vd_error vd_error_code(const vd_client *client) { return client->code; }

void vd_free(vd_client *client) {
    if (!client) return;
    disconnect(client, "closed");
    while (client->frames.first) take_out(&client->frames, NULL);
    while (client->scalars.first) take_out(&client->scalars, NULL);
    free(client->safe);
    free(client->in);
    free(client->hello);
    free(client->host);
    free(client->port);
    free(client);
#if defined(_WIN32)
    WSACleanup();
#endif
}
