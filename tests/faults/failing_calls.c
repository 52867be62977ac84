// System calls that fail when they are told to, on paths under one directory; and a clock that runs backwards. Linked into the helper programs: what an executable defines comes before every
// library's, the sanitizers' included, so nothing has to be preloaded.
//
//   FAIL_UNDER   the directory, absolute and without links; without it nothing fails
//   FAIL_CALL    open, write, sync, rename, link, unlink, truncate, lock or read: a group of calls
//   FAIL_AT      which of them, counted from 1 ...
//   FAIL_ON      ... and if set, all that follow
//   FAIL_WITH    the errno; a negative number is a signal to this process, after which the call goes on
//   FAIL_MARK    a file that is made when the call is reached
//   CLOCK_BACK   seconds between a look at the clock and the next one, backwards
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int is_under(const char* path) {
  const char* dir = getenv("FAIL_UNDER");
  return dir != NULL && path != NULL && strncmp(path, dir, strlen(dir)) == 0;
}

static int is_under_fd(int fd) {
  char link[32], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  long n = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  return is_under(path);
}

// True, and errno, if this call of the group has to fail.
static int fails(const char* group) {
  static atomic_int calls;
  const char* wanted = getenv("FAIL_CALL");
  if (wanted == NULL || strcmp(wanted, group) != 0) return 0;
  const int call = ++calls, at = atoi(getenv("FAIL_AT")), code = atoi(getenv("FAIL_WITH"));
  if (call < at || (call > at && getenv("FAIL_ON") == NULL)) return 0;
  syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, getenv("FAIL_MARK"), O_CREAT | O_WRONLY, 0600));
  if (code < 0) raise(-code);
  errno = code;
  return code > 0;
}

#define NEXT(name) (__extension__(__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WITH_PATH(group, name, parameters, arguments) \
  int name parameters { return is_under(path) && fails(group) ? -1 : NEXT(name) arguments; }
#define WITH_FD(type, group, name, parameters, arguments) \
  type name parameters { return is_under_fd(fd) && fails(group) ? -1 : NEXT(name) arguments; }

static int has_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

#define OPEN(name) \
  int name(const char* path, int flags, ...) { \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = has_mode(flags) ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    return is_under(path) && fails("open") ? -1 : NEXT(name)(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
  int name(int dir, const char* path, int flags, ...) { \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = has_mode(flags) ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    return (path[0] == '/' ? is_under(path) : is_under_fd(dir)) && fails("open") ? -1 : NEXT(name)(dir, path, flags, mode); \
  }
OPENAT(openat)
OPENAT(openat64)

WITH_FD(ssize_t, "read", pread, (int fd, void* data, size_t size, off_t at), (fd, data, size, at))
WITH_FD(ssize_t, "read", pread64, (int fd, void* data, size_t size, off64_t at), (fd, data, size, at))
WITH_FD(ssize_t, "write", write, (int fd, const void* data, size_t size), (fd, data, size))
WITH_FD(ssize_t, "write", pwrite, (int fd, const void* data, size_t size, off_t at), (fd, data, size, at))
WITH_FD(ssize_t, "write", pwrite64, (int fd, const void* data, size_t size, off64_t at), (fd, data, size, at))
WITH_FD(int, "sync", fsync, (int fd), (fd))
WITH_FD(int, "sync", fdatasync, (int fd), (fd))
WITH_FD(int, "truncate", ftruncate, (int fd, off_t size), (fd, size))
WITH_FD(int, "truncate", ftruncate64, (int fd, off64_t size), (fd, size))
WITH_FD(int, "lock", flock, (int fd, int operation), (fd, operation))
WITH_PATH("rename", rename, (const char* path, const char* to), (path, to))
WITH_PATH("link", link, (const char* path, const char* to), (path, to))
WITH_PATH("unlink", unlink, (const char* path), (path))
WITH_PATH("open", mkdir, (const char* path, mode_t mode), (path, mode))

#define FCNTL(name) \
  int name(int fd, int command, ...) { \
    va_list rest; \
    va_start(rest, command); \
    void* argument = va_arg(rest, void*); \
    va_end(rest); \
    const int locks = command == F_SETLK || command == F_SETLKW || command == F_GETLK || command == F_OFD_SETLK; \
    return locks && is_under_fd(fd) && fails("lock") ? -1 : NEXT(name)(fd, command, argument); \
  }
FCNTL(fcntl)
FCNTL(fcntl64)

// What to take away from the time of day: more with every look.
static time_t behind(void) {
  static atomic_long looks;
  const char* step = getenv("CLOCK_BACK");
  return step == NULL ? 0 : atol(step) * ++looks;
}

time_t time(time_t* to) {
  struct timespec now = {0};
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  now.tv_sec -= behind();
  if (to != NULL) *to = now.tv_sec;
  return now.tv_sec;
}

int clock_gettime(clockid_t clock, struct timespec* to) {
  const int result = (int)syscall(SYS_clock_gettime, clock, to);
  if (clock == CLOCK_REALTIME) to->tv_sec -= behind();
  return result;
}

int gettimeofday(struct timeval* restrict to, void* restrict zone) {
  (void)zone;
  struct timespec now = {0};
  clock_gettime(CLOCK_REALTIME, &now);
  to->tv_sec = now.tv_sec;
  to->tv_usec = now.tv_nsec / 1000;
  return 0;
}
