/* Delays each byte between one TCP port and another by the same time in each direction, so that a
 * bench can put a network between a child and Redis on one machine.
 *
 *     delay_proxy LISTEN TARGET MICROSECONDS
 *
 * One thread, one epoll. Each direction of a connection is a queue of chunks with the time at which
 * they are due: a chunk is read as soon as it arrives, and is written when it is due. Any number of
 * chunks are under way at once, as on a real line. It spins for the last part of each wait: epoll
 * alone wakes up to a millisecond late. tests/bench/test_network.py shows that it is not the bound.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHUNK 65536
#define MOST_FDS 1024
#define SPIN 30000 /* ns: about what a wake-up takes */

struct chunk {
    struct chunk *next;
    int64_t due; /* ns, monotonic */
    size_t from, end;
    char bytes[CHUNK];
};

/* What arrives on a descriptor waits here to be written to `peer`. */
struct direction {
    int open, peer, ended, blocked;
    struct chunk *first, *last;
};

static struct direction directions[MOST_FDS];
static struct chunk *spare;
static int poll_fd, highest;
static int64_t delay;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static struct sockaddr_in local(const char *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

static struct chunk *take_chunk(void) {
    struct chunk *chunk = spare;
    if (chunk)
        spare = chunk->next;
    else if (!(chunk = malloc(sizeof *chunk)))
        die("malloc");
    chunk->next = NULL;
    return chunk;
}

static void add(int fd, int peer) {
    int one = 1;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP, .data.fd = fd};
    if (fd >= MOST_FDS)
        die("too many connections");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    directions[fd] = (struct direction){.open = 1, .peer = peer};
    if (fd > highest)
        highest = fd;
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event))
        die("epoll_ctl");
}

static void accept_one(int door, struct sockaddr_in *target) {
    int client = accept(door, NULL, NULL), server = socket(AF_INET, SOCK_STREAM, 0);
    if (client < 0 || server < 0)
        die("accept");
    if (connect(server, (struct sockaddr *)target, sizeof *target)) {
        close(client);
        close(server);
        return;
    }
    add(client, server);
    add(server, client);
}

/* Takes in all that has arrived. An empty chunk stands for the end. */
static void read_all(int fd) {
    struct direction *way = &directions[fd];
    while (way->open && !way->ended) {
        struct chunk *chunk = take_chunk();
        ssize_t got = recv(fd, chunk->bytes, CHUNK, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            chunk->next = spare;
            spare = chunk;
            return;
        }
        way->ended = got <= 0;
        chunk->from = 0;
        chunk->end = got > 0 ? got : 0;
        chunk->due = now() + delay;
        if (way->last)
            way->last->next = chunk;
        else
            way->first = chunk;
        way->last = chunk;
    }
}

/* Writes what is due. Returns when the next chunk is due, 0 if there is none to wait for. */
static int64_t write_due(int fd, int64_t at) {
    struct direction *way = &directions[fd];
    struct chunk *chunk;
    while ((chunk = way->first) && chunk->due <= at) {
        if (chunk->end == 0) {
            shutdown(way->peer, SHUT_WR);
        } else {
            ssize_t put = send(way->peer, chunk->bytes + chunk->from, chunk->end - chunk->from, MSG_NOSIGNAL);
            if (put < 0 && errno == EAGAIN) {
                way->blocked = 1;
                return 0;
            }
            chunk->from += put > 0 ? (size_t)put : chunk->end - chunk->from;
            if (chunk->from < chunk->end)
                continue;
        }
        way->first = chunk->next;
        if (!way->first)
            way->last = NULL;
        chunk->next = spare;
        spare = chunk;
    }
    return way->first ? way->first->due : 0;
}

/* Closes a pair once both of its directions have ended. */
static void close_ended(int fd) {
    int peer = directions[fd].peer;
    struct direction *one = &directions[fd], *other = &directions[peer];
    if (one->ended && other->ended && !one->first && !other->first) {
        one->open = other->open = 0;
        close(fd);
        close(peer);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: delay_proxy LISTEN TARGET MICROSECONDS\n");
        return 2;
    }
    struct sockaddr_in here = local(argv[1]), target = local(argv[2]);
    int one = 1, door = socket(AF_INET, SOCK_STREAM, 0);
    delay = atoll(argv[3]) * 1000;
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(door, (struct sockaddr *)&here, sizeof here) || listen(door, 128))
        die("listen");
    prctl(PR_SET_TIMERSLACK, 1UL); /* else the kernel wakes it up to 50 us late */
    poll_fd = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = door};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, door, &event);
    for (int64_t next = 0;;) {
        struct epoll_event events[64];
        int64_t asleep = next ? next - now() - SPIN : 0;
        struct timespec until = {.tv_nsec = asleep > 0 ? asleep % 1000000000 : 0,
                                 .tv_sec = asleep > 0 ? asleep / 1000000000 : 0};
        int count = epoll_pwait2(poll_fd, events, 64, next ? &until : NULL, NULL);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == door) {
                accept_one(door, &target);
                continue;
            }
            if (events[i].events & EPOLLOUT)
                directions[directions[fd].peer].blocked = 0;
            read_all(fd);
        }
        int64_t at = now();
        next = 0;
        for (int fd = 0; fd <= highest; fd++) {
            if (!directions[fd].open)
                continue;
            int64_t due = directions[fd].blocked ? 0 : write_due(fd, at);
            if (due && (!next || due < next))
                next = due;
            close_ended(fd);
        }
    }
}
