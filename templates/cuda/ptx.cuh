// All PTX in one place: asynchronous copies, barriers, shared-memory matrix loads, tensor-core products, clusters, overlap of launches.
// Needs sm_80; what exists only from sm_90 on says so. No toolkit header is included anywhere in the templates: a kernel then compiles in a fraction of a second.
#pragma once

using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;

#if __CUDA_ARCH__ >= 900
constexpr bool kHopper = true;  // bulk copies, clusters, dependent launches
constexpr bool kWorkstation = __CUDA_ARCH__ >= 1200;  // less shared memory
#else
constexpr bool kHopper = false, kWorkstation = false;
#endif

namespace ptx {

__device__ __forceinline__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// A load that is issued here, however much later the value is used.
__device__ __forceinline__ int load_now(const int* global) {
#ifdef __CUDA_ARCH__
  int value;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(value) : "l"(global));
  return value;
#else
  return *global;
#endif
}

// 16 bytes global -> shared.
__device__ __forceinline__ void copy16_async(u32 shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// bytes = 0 writes zeros and reads nothing.
__device__ __forceinline__ void copy16_or_zero_async(u32 shared, const void* global, u32 bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- bulk copies on an mbarrier (sm_90): the copy engine moves whole rows, one instruction each

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory"); }
// Makes initialised barriers and ordinary stores to shared memory visible to the copy engine.
__device__ __forceinline__ void fence_async() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// Arrives once and announces the bytes that copies will bring in this phase.
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}" ::"r"(barrier), "r"(parity) : "memory");
#endif
}
// bytes: a multiple of 16; both addresses 16-byte aligned. KV is read once: it should leave L2 before anything else does.
__device__ __forceinline__ void copy_bulk(u32 shared, const void* global, u32 bytes, u32 barrier) {
#if __CUDA_ARCH__ >= 900
  constexpr u64 kEvictFirst = 0x12f0000000000000;
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared), "l"(global), "r"(bytes), "r"(barrier), "l"(kEvictFirst)
               : "memory");
#endif
}
// True in one lane of a warp that is whole. The compiler knows that it is one, and needs no loop around what takes uniform registers only.
__device__ __forceinline__ bool elect_one() {
  u32 chosen = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(chosen));
#endif
  return chosen != 0;
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory"); }
// A box of a tensor, from the coordinates of its corner; parts outside the tensor become zeros. `map`: address of a tensor map in parameter space.
__device__ __forceinline__ void copy_box(u32 shared, const void* map, int dim, int token, int panel, int head, int page, u32 barrier) {
#if __CUDA_ARCH__ >= 900
  constexpr u64 kEvictFirst = 0x12f0000000000000;
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared), "l"(map), "r"(dim),
               "r"(token), "r"(panel), "r"(head), "r"(page), "r"(barrier), "l"(kEvictFirst)
               : "memory");
#endif
}
// Brings a tensor map near: each launch has maps of its own, and the first box would wait for them.
__device__ __forceinline__ void prefetch_map(const void* map) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}
__device__ __forceinline__ void prefetch_l2(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }

// ---- overlap with the stream's neighbours (sm_90); without the launch attribute both do nothing

// Called at the start: the next kernel then looks up its work and fills its pipelines as soon as a CTA of this one leaves room. Waiting until the last
// bytes are asked for was 1 to 2 % slower in every cell but one.

__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- clusters (sm_90)

// CTAs of the cluster, a power of two, as its exponent.
__device__ __forceinline__ int cluster_ctas_log2() {
  u32 n = 1;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
#endif
  return __ffs(static_cast<int>(n)) - 1;
}
__device__ __forceinline__ int cluster_rank() {
  int rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
// The address of this CTA's shared variable in the CTA `rank` of the cluster.
__device__ __forceinline__ u32 cluster_address(u32 shared, u32 rank) {
  u32 r = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(shared), "r"(rank));
#endif
  return r;
}
// Stores into another CTA of the cluster that count as bytes on a barrier there; the store is done when that barrier says so.
__device__ __forceinline__ void push_cluster(u32 address, float4 x, u32 barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier) : "memory");
#endif
}
__device__ __forceinline__ void push_cluster(u32 address, float x, u32 barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address), "f"(x), "r"(barrier) : "memory");
#endif
}

// A barrier of some of the CTA's warps.
__device__ __forceinline__ void sync_threads(u32 barrier, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

// ---- what other CTAs wrote: past L1, which is not coherent

__device__ __forceinline__ u64 add_acq_rel(u64* p, u64 value) {
  u64 old;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(value) : "memory");
  return old;
}
__device__ __forceinline__ u64 swap_if_acq_rel(u64* p, u64 expected, u64 value) {
  u64 old;
  asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;" : "=l"(old) : "l"(p), "l"(expected), "l"(value) : "memory");
  return old;
}

// ---- tensor cores

// Four 8x8 matrices of 16-bit elements; lanes 8i … 8i+7 give the rows of matrix i.
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}

__device__ __forceinline__ u32 transpose(u32 r) {
  u32 t;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(r));
  return t;
}

// c[16x8] += a[16x16] * b[16x8], fp32 accumulation.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_fp16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- a warpgroup's products (sm_90a): 64 rows in M, A in registers, B read from shared memory while the threads go on; sums must be left alone until warpgroup_close()

__device__ __forceinline__ void warpgroup_open() {
#if PT_WARPGROUPS
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void warpgroup_close() {
#if PT_WARPGROUPS
  asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
}
// Registers of a thread from here on, by all warps of a warpgroup: what some give others take.
template <int kCount>
__device__ __forceinline__ void give_registers() {
#if PT_WARPGROUPS
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
#if PT_WARPGROUPS
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
// Describes a matrix in panels of 64 16-bit elements, 128 bytes a row, with the 128-byte swizzle: where it begins, and the bytes from 8 rows to the next 8.
__device__ __forceinline__ u64 matrix_in_panels(u32 shared, u32 eight_rows) { return static_cast<u64>((shared & 0x3ffff) >> 4) | 1ull << 16 | static_cast<u64>(eight_rows >> 4) << 32 | 1ull << 62; }

#if PT_WARPGROUPS
#define PT_SUMS(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define PT_PRODUCT(n, types, list, a0, a1, a2, a3, b, adds, transposed)                                                                           \
  "{\n.reg .pred adds;\nsetp.ne.u32 adds, %" adds ", 0;\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32." types " {" list "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b ", adds, 1, 1, %" transposed ";\n}"
#define PT_LIST8 "%0, %1, %2, %3"
#define PT_LIST16 PT_LIST8 ", %4, %5, %6, %7"
#define PT_LIST32 PT_LIST16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define PT_LIST64 PT_LIST32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PT_INPUTS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds), "n"(kTransposed)
// c[64 x 8 kFragments] (+)= a[64 x 16] b, whose rows are N, or, transposed, K: tokens of keys, tokens of values.
template <bool kBf16, bool kTransposed, int kFragments>
__device__ __forceinline__ void warpgroup_mma(float (&c)[kFragments][4], const u32 (&a)[4], u64 b, u32 adds) {
  static_assert(kFragments == 1 || kFragments == 2 || kFragments == 4 || kFragments == 8, "N is 8, 16, 32 or 64");
  if constexpr (kFragments == 1) {
    if constexpr (kBf16) asm volatile(PT_PRODUCT("8", "bf16.bf16", PT_LIST8, "4", "5", "6", "7", "8", "9", "10") : PT_SUMS(0) : PT_INPUTS);
    else asm volatile(PT_PRODUCT("8", "f16.f16", PT_LIST8, "4", "5", "6", "7", "8", "9", "10") : PT_SUMS(0) : PT_INPUTS);
  } else if constexpr (kFragments == 2) {
    if constexpr (kBf16) asm volatile(PT_PRODUCT("16", "bf16.bf16", PT_LIST16, "8", "9", "10", "11", "12", "13", "14") : PT_SUMS(0), PT_SUMS(1) : PT_INPUTS);
    else asm volatile(PT_PRODUCT("16", "f16.f16", PT_LIST16, "8", "9", "10", "11", "12", "13", "14") : PT_SUMS(0), PT_SUMS(1) : PT_INPUTS);
  } else if constexpr (kFragments == 4) {
    if constexpr (kBf16) asm volatile(PT_PRODUCT("32", "bf16.bf16", PT_LIST32, "16", "17", "18", "19", "20", "21", "22") : PT_SUMS(0), PT_SUMS(1), PT_SUMS(2), PT_SUMS(3) : PT_INPUTS);
    else asm volatile(PT_PRODUCT("32", "f16.f16", PT_LIST32, "16", "17", "18", "19", "20", "21", "22") : PT_SUMS(0), PT_SUMS(1), PT_SUMS(2), PT_SUMS(3) : PT_INPUTS);
  } else {
    if constexpr (kBf16)
      asm volatile(PT_PRODUCT("64", "bf16.bf16", PT_LIST64, "32", "33", "34", "35", "36", "37", "38")
                   : PT_SUMS(0), PT_SUMS(1), PT_SUMS(2), PT_SUMS(3), PT_SUMS(4), PT_SUMS(5), PT_SUMS(6), PT_SUMS(7) : PT_INPUTS);
    else
      asm volatile(PT_PRODUCT("64", "f16.f16", PT_LIST64, "32", "33", "34", "35", "36", "37", "38")
                   : PT_SUMS(0), PT_SUMS(1), PT_SUMS(2), PT_SUMS(3), PT_SUMS(4), PT_SUMS(5), PT_SUMS(6), PT_SUMS(7) : PT_INPUTS);
  }
}
#undef PT_INPUTS
#undef PT_LIST64
#undef PT_LIST32
#undef PT_LIST16
#undef PT_LIST8
#undef PT_PRODUCT
#undef PT_SUMS
#endif

// Two floats to one register of two 16-bit floats, round to nearest even; `low` lands in the low half.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ u32 pack_fp16(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace ptx
