"""Names of Python's library that Linux has and macOS has not."""

from __future__ import annotations

LACKS = {
    "fcntl": "F_GETLEASE F_GETPIPE_SZ F_GETSIG F_NOTIFY F_OFD_GETLK F_OFD_SETLK F_SETLEASE F_SETPIPE_SZ "
    "F_SETSIG",
    "mmap": "MADV_DONTFORK MADV_HUGEPAGE MADV_MERGEABLE MADV_NOHUGEPAGE MADV_REMOVE MAP_POPULATE MAP_STACK",
    "os": "CLONE_NEWNS EFD_CLOEXEC EFD_NONBLOCK EFD_SEMAPHORE GRND_NONBLOCK MFD_CLOEXEC O_DIRECT "
    "O_LARGEFILE O_NOATIME O_PATH O_RSYNC O_TMPFILE POSIX_FADV_DONTNEED POSIX_FADV_SEQUENTIAL "
    "POSIX_FADV_WILLNEED P_PIDFD SCHED_BATCH SCHED_IDLE copy_file_range eventfd eventfd_read "
    "eventfd_write fdatasync getrandom getresgid getresuid memfd_create pidfd_open pipe2 "
    "posix_fadvise posix_fallocate sched_getaffinity sched_getparam sched_getscheduler "
    "sched_rr_get_interval sched_setaffinity sched_setparam sched_setscheduler setns setresgid "
    "setresuid splice timerfd_create unshare waitid",
    "resource": "RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING RUSAGE_THREAD "
    "prlimit",
    "select": "EPOLLERR EPOLLET EPOLLHUP EPOLLIN EPOLLOUT epoll",
    "signal": "SIGCLD SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT pidfd_send_signal sigtimedwait sigwaitinfo",
    "socket": "AF_ALG AF_NETLINK AF_PACKET SOCK_CLOEXEC SOCK_NONBLOCK SO_BINDTODEVICE SO_DOMAIN "
    "SO_INCOMING_CPU "
    "SO_MARK SO_PASSCRED SO_PEERCRED SO_PRIORITY SO_PROTOCOL TCP_CORK TCP_DEFER_ACCEPT TCP_LINGER2 "
    "TCP_QUICKACK TCP_SYNCNT TCP_USER_TIMEOUT TCP_WINDOW_CLAMP",
    "time": "CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
}
"""Names of each module, as the manual of Python says."""
