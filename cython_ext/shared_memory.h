/* Memory that two processes of one machine have both mapped (shared_frames.pyx): one region, one descriptor.

   Linux alone has these files without a name; elsewhere no region is ever made. Results are those of the calls. */
#ifndef PSLIB_SHARED_MEMORY_H
#define PSLIB_SHARED_MEMORY_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

/* Whether who reads a region is done with it: its first word, which the reader writes last. What it has read before
   that comes before whatever the writer stores once it has seen the word. */
static int region_is_free(const void *region) { return __atomic_load_n((const uint32_t *)region, __ATOMIC_ACQUIRE) == 0; }

static void region_mark(void *region, int is_free) {
    __atomic_store_n((uint32_t *)region, is_free ? 0u : 1u, __ATOMIC_RELEASE);
}

#if defined(__linux__)

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What headers older than the kernel lack. */
#if !defined(SYS_memfd_create) && defined(__x86_64__)
#define SYS_memfd_create 319
#elif !defined(SYS_memfd_create) && defined(__aarch64__)
#define SYS_memfd_create 279
#endif
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#define MFD_ALLOW_SEALING 2u
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u /* since Linux 6.3, where a system may ask for it */
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#define F_SEAL_SEAL 1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif

/* A file without a name that keeps its size: who maps it need not fear that it ends. Its memory is taken at once,
   or not at all: a page that can't be had later would end a process. */
static int region_file(size_t bytes) {
#ifdef SYS_memfd_create
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = (int)syscall(SYS_memfd_create, "pslib-region", flags | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) fd = (int)syscall(SYS_memfd_create, "pslib-region", flags);
#else
    int fd = -1;
#endif
    if (fd < 0) return -1;
    if (ftruncate(fd, (off_t)bytes) == 0 && fallocate(fd, 0, 0, (off_t)bytes) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW) == 0)
        return fd;
    close(fd);
    return -1;
}

/* NULL: there is no room for it, or it is no such file of that size. A child that is forked does not have it, and so
   does not keep memory that was given up here. */
static void *region_map(int fd, size_t bytes) {
    const int seals = fcntl(fd, F_GET_SEALS);
    struct stat found;
    void *memory;
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &found) < 0 || (size_t)found.st_size != bytes) return NULL;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return NULL;
    madvise(memory, bytes, MADV_DONTFORK);
    return memory;
}

static void region_unmap(void *memory, size_t bytes) { munmap(memory, bytes); }

static void region_close(int fd) { close(fd); }

static int64_t region_process(void) { return getpid(); }

#else

static int region_file(size_t bytes) {
    (void)bytes;
    errno = ENOSYS;
    return -1;
}
static void *region_map(int fd, size_t bytes) { return (void)fd, (void)bytes, NULL; }
static void region_unmap(void *memory, size_t bytes) { (void)memory, (void)bytes; }
static void region_close(int fd) { (void)fd; }
static int64_t region_process(void) { return 0; }

#endif
#endif
