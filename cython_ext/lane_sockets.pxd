"""The system calls of lanes (``lane_sockets.h``), for their packets, their epoll, and whoever keeps them."""

from libc.stdint cimport int64_t, uint64_t

cdef extern from "lane_sockets.h":
    enum:
        LANE_BYTES_MAX
        LANE_EVENTS
        LANE_MESSAGES
        LANE_WHOLE
    ctypedef struct LaneEvent:
        uint64_t number
        int can_read
        int can_write
    ctypedef struct LaneMessages:
        unsigned int sizes[LANE_MESSAGES]
        int fds[LANE_MESSAGES]
        unsigned char data[LANE_MESSAGES][LANE_BYTES_MAX]
    int lane_epoll()
    int lane_socket()
    void lane_close(int fd)
    void lane_end(int fd)
    int lane_is_affordable(int fd)
    int lane_bind(int fd, const char *name, size_t size, int backlog)
    int lane_connect(int fd, const char *name, size_t size)
    int lane_accept(int fd)
    int lane_bound(int fd)
    int lane_is_ours(int fd)
    int lane_watch(int epoll, int fd, uint64_t number, int can_write, int is_new)
    void lane_forget(int epoll, int fd)
    int64_t lane_process()
    int lane_events(int epoll, LaneEvent *out, int timeout_ms) nogil
    int64_t lane_send(int fd, const void *head, size_t head_size, const void *rest, size_t rest_size)
    int64_t lane_send_with(int fd, const void *data, size_t size, int passed)
    int lane_receive(int fd, LaneMessages *out)
