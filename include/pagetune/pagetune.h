/* The C ABI of pagetune. Every function returns a status; pt_last_error() is the calling thread's last message. */
#ifndef PAGETUNE_H
#define PAGETUNE_H
#include <stddef.h>
#include <stdint.h>

#include "pagetune/params.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PT_API __attribute__((visibility("default")))
#else
#define PT_API
#endif

typedef enum pt_status {
  PT_OK = 0,
  PT_INVALID_ARGUMENT = 1,
  PT_UNSUPPORTED = 2,
  PT_MISMATCH = 3,
  PT_NOT_PREPARED = 4,
  PT_NO_DEVICE = 5,
  PT_COMPILE_FAILED = 6,
  PT_DEVICE_ERROR = 7,
  PT_BAD_TABLE = 8,
  PT_IO = 9,
  PT_INTERNAL = 10,
  PT_CONTEXT_LOST = 11 /* a fault on the device ended its context: nothing works there any more until the process is started anew */
} pt_status;

typedef struct pt_kernel pt_kernel;

/* spec_json: an object with the keys of the canonical spec; absent keys take their defaults, unknown keys are errors.
   device: "auto", "cuda:N" or "cpu"; cache_dir: NULL for the default store. */
PT_API pt_status pt_get_kernel(const char* spec_json, const char* device, const char* cache_dir, pt_kernel** out);
PT_API void pt_kernel_release(pt_kernel*);

PT_API void pt_decode_params_init(pt_decode_params*);
PT_API pt_status pt_set_contiguous_strides(const pt_kernel*, int block_table_width, pt_decode_params*);
PT_API pt_status pt_workspace_bytes(const pt_kernel*, int max_batch, int max_len, size_t* bytes);
PT_API pt_status pt_prepare(pt_kernel*, int max_batch, int max_len);
PT_API pt_status pt_select(const pt_kernel*, int batch, int max_len, int64_t total_len, int* config_index);
PT_API pt_status pt_launch(pt_kernel*, const pt_decode_params*, void* stream);
PT_API pt_status pt_check(pt_kernel*, void* workspace, void* stream);
/* 64 hex digits and a terminating zero. */
PT_API pt_status pt_digest(const pt_kernel*, char out[65]);

/* The dispatch table as bytes, for ranks that must run the same kernels. *size: bytes of the buffer, then of the snapshot; PT_INVALID_ARGUMENT with *size set if the buffer is too small (NULL with 0 asks for the size). */
PT_API pt_status pt_snapshot(const pt_kernel*, char* buffer, size_t* size);
/* pt_get_kernel() with the bytes of another rank's pt_snapshot() in place of the stored winners. */
PT_API pt_status pt_get_kernel_from_snapshot(const char* spec_json, const char* device, const char* cache_dir, const char* snapshot, size_t size, pt_kernel** out);

/* What a launch or pt_prepare() does from now on that would still compile or load a kernel: as before; warn once for each kernel on stderr; PT_NOT_PREPARED. */
typedef enum pt_freeze_policy { PT_FREEZE_OFF = 0, PT_FREEZE_WARN = 1, PT_FREEZE_ERROR = 2 } pt_freeze_policy;
PT_API pt_status pt_freeze(pt_freeze_policy);

/* Valid until the next pagetune call on this thread; empty if that thread has seen no error. */
PT_API const char* pt_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
