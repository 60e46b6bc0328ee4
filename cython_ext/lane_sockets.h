/* The system calls of lanes (lanes.pyx): sequenced packets at abstract Unix names, watched by one epoll.

   Linux alone has these; elsewhere no lane is ever made. Results are those of the calls: below 0 with errno. */
#ifndef PSLIB_LANE_SOCKETS_H
#define PSLIB_LANE_SOCKETS_H

#include <errno.h>
#include <stdint.h>
#include <stddef.h>

#define LANE_BYTES_MAX 65536 /* of a message, with what says how its frames follow each other */
#define LANE_MESSAGES 8      /* taken from one lane at a time */
#define LANE_ROOM_BYTES 212992
#define LANE_WHOLE 320       /* there is no room for more than that many messages in a lane */
#define LANE_EVENTS 16       /* lanes looked at at a time */

typedef struct {
    uint64_t number; /* of the lane */
    int can_read, can_write;
} LaneEvent;

typedef struct {
    unsigned sizes[LANE_MESSAGES]; /* 0: the other end has hung up; above LANE_BYTES_MAX: it was larger */
    int fds[LANE_MESSAGES];        /* a descriptor that came with it; -1: none */
    unsigned char data[LANE_MESSAGES][LANE_BYTES_MAX];
} LaneMessages;

#ifdef __linux__

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

struct lane_credentials { /* struct ucred, which some headers show to _GNU_SOURCE alone */
    pid_t process;
    uid_t user;
    gid_t group;
};

static int lane_epoll(void) { return epoll_create1(EPOLL_CLOEXEC); }

static int lane_socket(void) { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

static void lane_close(int fd) { close(fd); }

/* Tell the other end too: a process that was forked may have the same socket and keep it open. */
static void lane_end(int fd) { shutdown(fd, SHUT_RDWR); }

/* Lanes are no need, and ZeroMQ ends a process that has no descriptor for a connection: a quarter is left to it. */
static int lane_is_affordable(int fd) {
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd < limit.rlim_cur / 4 * 3;
}

/* An abstract name begins with a 0, and ends where its length says. */
static socklen_t lane_address(struct sockaddr_un *address, const char *name, size_t size) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    if (size > sizeof address->sun_path - 1) size = sizeof address->sun_path - 1;
    memcpy(address->sun_path + 1, name, size);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + size);
}

static int lane_bind(int fd, const char *name, size_t size, int backlog) {
    struct sockaddr_un address;
    socklen_t length = lane_address(&address, name, size);
    return bind(fd, (struct sockaddr *)&address, length) < 0 ? -1 : listen(fd, backlog);
}

static int lane_connect(int fd, const char *name, size_t size) {
    struct sockaddr_un address;
    socklen_t length = lane_address(&address, name, size);
    return connect(fd, (struct sockaddr *)&address, length);
}

/* What one end may have on its way, whatever the system's own limit: so many bytes hold 277 short messages. */
static int lane_bound(int fd) {
    int bytes = LANE_ROOM_BYTES / 2; /* the kernel doubles it */
    return setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

static int lane_accept(int fd) { return accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC); }

/* Whether the other end belongs to the user of this process. */
static int lane_is_ours(int fd) {
    struct lane_credentials found;
    socklen_t size = sizeof found;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &found, &size) == 0 && found.user == geteuid();
}

/* Hear of a lane that can be read, and if can_write is not 0 of one that can be written too. */
static int lane_watch(int epoll, int fd, uint64_t number, int can_write, int is_new) {
    struct epoll_event event;
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN | (can_write ? EPOLLOUT : 0);
    event.data.u64 = number;
    return epoll_ctl(epoll, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
}

/* Before it is closed: that is not enough where a process that was forked has the same socket. */
static void lane_forget(int epoll, int fd) { epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL); }

static int64_t lane_process(void) { return getpid(); }

static int lane_events(int epoll, LaneEvent *out, int timeout_ms) {
    struct epoll_event events[LANE_EVENTS];
    int place, count = epoll_wait(epoll, events, LANE_EVENTS, timeout_ms);
    for (place = 0; place < count; place++) {
        out[place].number = events[place].data.u64;
        out[place].can_read = (events[place].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
        out[place].can_write = (events[place].events & EPOLLOUT) != 0;
    }
    return count;
}

/* A message of two stretches; all of it or nothing. */
static int64_t lane_send(int fd, const void *head, size_t head_size, const void *rest, size_t rest_size) {
    struct iovec parts[2] = {{(void *)head, head_size}, {(void *)rest, rest_size}};
    struct msghdr message;
    memset(&message, 0, sizeof message);
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* A message that brings a descriptor with it; -1 for none. */
static int64_t lane_send_with(int fd, const void *data, size_t size, int passed) {
    struct iovec part = {(void *)data, size};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message;
    memset(&message, 0, sizeof message);
    memset(&control, 0, sizeof control);
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (passed >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.head), &passed, sizeof passed);
    }
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* The first descriptor that has come with a message; all others are closed. */
static int lane_passed(struct msghdr *message) {
    struct cmsghdr *head;
    int found = -1, fd;
    size_t place;
    for (head = CMSG_FIRSTHDR(message); head != NULL; head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
        for (place = 0; CMSG_LEN((place + 1) * sizeof fd) <= head->cmsg_len; place++) {
            memcpy(&fd, CMSG_DATA(head) + place * sizeof fd, sizeof fd);
            if (found < 0) found = fd;
            else close(fd);
        }
    }
    return found;
}

static int lane_receive(int fd, LaneMessages *out) {
    struct mmsghdr messages[LANE_MESSAGES];
    struct iovec parts[LANE_MESSAGES];
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } controls[LANE_MESSAGES];
    int place, count;
    memset(messages, 0, sizeof messages);
    for (place = 0; place < LANE_MESSAGES; place++) {
        parts[place].iov_base = out->data[place];
        parts[place].iov_len = LANE_BYTES_MAX;
        messages[place].msg_hdr.msg_iov = &parts[place];
        messages[place].msg_hdr.msg_iovlen = 1;
        messages[place].msg_hdr.msg_control = &controls[place];
        messages[place].msg_hdr.msg_controllen = sizeof controls[place];
    }
    count = recvmmsg(fd, messages, LANE_MESSAGES, MSG_DONTWAIT | MSG_CMSG_CLOEXEC, NULL);
    for (place = 0; place < count; place++) {
        out->fds[place] = lane_passed(&messages[place].msg_hdr);
        int cut = messages[place].msg_hdr.msg_flags & MSG_TRUNC;
        out->sizes[place] = cut ? LANE_BYTES_MAX + 1 : messages[place].msg_len;
    }
    return count;
}

#else

static int lane_none(void) {
    errno = ENOSYS;
    return -1;
}
static int lane_epoll(void) { return lane_none(); }
static int lane_socket(void) { return lane_none(); }
static void lane_close(int fd) { (void)fd; }
static void lane_end(int fd) { (void)fd; }
static int lane_is_affordable(int fd) { return 0; }
static int lane_bind(int fd, const char *name, size_t size, int backlog) { return lane_none(); }
static int lane_connect(int fd, const char *name, size_t size) { return lane_none(); }
static int lane_accept(int fd) { return lane_none(); }
static int lane_bound(int fd) { return lane_none(); }
static int lane_is_ours(int fd) { return 0; }
static int lane_watch(int epoll, int fd, uint64_t number, int can_write, int is_new) { return lane_none(); }
static void lane_forget(int epoll, int fd) { (void)epoll, (void)fd; }
static int64_t lane_process(void) { return 0; }
static int lane_events(int epoll, LaneEvent *out, int timeout_ms) { return lane_none(); }
static int64_t lane_send(int fd, const void *head, size_t head_size, const void *rest, size_t rest_size) { return lane_none(); }
static int64_t lane_send_with(int fd, const void *data, size_t size, int passed) { return lane_none(); }
static int lane_receive(int fd, LaneMessages *out) { return lane_none(); }

#endif
#endif
