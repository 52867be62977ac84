/* A decode step through the C ABI, on the CPU backend (whose memory is plain host memory): decode_c [device]
 *
 * One sequence of 40 tokens in three pages; all keys are equal, so attention is the mean of the values; the value of token t is t. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pagetune/pagetune.h"

enum { kHeads = 4, kDim = 64, kPage = 16, kTokens = 40, kPages = 3 };

static int failed(pt_status status) {
  if (status == PT_OK) return 0;
  fprintf(stderr, "pagetune: %s (status %d)\n", pt_last_error(), (int)status);
  return 1;
}

int main(int argc, char** argv) {
  const char* device = argc > 1 ? argv[1] : "cpu";
  const char* spec =
      "{\"q_heads\":4,\"kv_heads\":1,\"head_dim_k\":64,\"head_dim_v\":64,\"page_size\":16,\"q_dtype\":\"fp32\",\"kv_dtype\":\"fp32\",\"out_dtype\":\"fp32\"}";
  pt_kernel* kernel = NULL;
  if (failed(pt_get_kernel(spec, device, NULL, &kernel))) return 1;
  if (failed(pt_prepare(kernel, 1, kTokens))) return 1;

  static _Alignas(16) float q[kHeads * kDim], out[kHeads * kDim];
  float* k = aligned_alloc(256, sizeof(float) * kPages * kPage * kDim);
  float* v = aligned_alloc(256, sizeof(float) * kPages * kPage * kDim);
  if (k == NULL || v == NULL) return 1;
  const int table[kPages] = {2, 0, 1}; /* pages in any order */
  const int length = kTokens;
  memset(k, 0, sizeof(float) * kPages * kPage * kDim);
  for (int t = 0; t < kPages * kPage; ++t)
    for (int d = 0; d < kDim; ++d) v[(table[t / kPage] * kPage + t % kPage) * kDim + d] = t < kTokens ? (float)t : NAN; /* never read */
  for (int i = 0; i < kHeads * kDim; ++i) q[i] = 1.0f;

  size_t bytes = 0;
  if (failed(pt_workspace_bytes(kernel, 1, kTokens, &bytes))) return 1;
  pt_decode_params params;
  pt_decode_params_init(&params);
  if (failed(pt_set_contiguous_strides(kernel, kPages, &params))) return 1;
  params.q = q;
  params.k_cache = k;
  params.v_cache = v;
  params.out = out;
  params.block_tables = table;
  params.seq_lens = &length;
  params.workspace = bytes > 0 ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
  params.workspace_bytes = (long long)bytes;
  params.batch = 1;
  params.max_len = kTokens;
  params.num_pages = kPages;
  if (failed(pt_launch(kernel, &params, NULL))) return 1;

  printf("mean of 0 … 39: %.4f (exact: 19.5)\n", (double)out[0]);
  const int wrong = fabs((double)out[0] - 19.5) > 1e-3 || fabs((double)out[kHeads * kDim - 1] - 19.5) > 1e-3;
  free(params.workspace);
  free(k);
  free(v);
  pt_kernel_release(kernel);
  return wrong;
}
