#!/usr/bin/env python3
"""How fast this GPU reads memory, whatever is done with it: H200s differ by 3 % and more, and with them what a read floor of 4.55 TB/s means.

  bench/lab/read_rate.py

Plain loads of 16 bytes, 8 in flight for each thread, each byte once, behind a graph of launches; the fastest of some grids. Prints TB/s for each size.
"""
import ctypes as C

import numpy as np

import kernel_lab as lab

SOURCE = """
extern "C" __global__ void __launch_bounds__(512) read(const uint4* from, unsigned long long count, unsigned* out) {
  const unsigned long long step = gridDim.x * 512ull;
  unsigned seen = 0;
  for (unsigned long long i = blockIdx.x * 512ull + threadIdx.x; i < count; i += 8 * step) {
    uint4 x[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      x[k] = make_uint4(0, 0, 0, 0);
      if (i + k * step < count) asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x[k].x), "=r"(x[k].y), "=r"(x[k].z), "=r"(x[k].w) : "l"(from + i + k * step));
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) seen ^= x[k].x ^ x[k].y ^ x[k].z ^ x[k].w;
  }
  if (seen == 0x12345679) *out = seen;
}
"""
SIZES = (1 << 28, 1 << 30, 1 << 32)
LAUNCHES = 8


def main():
    stream = lab.open_device()
    module, function = C.c_void_p(), C.c_void_p()
    lab.check(lab.cuda.cuModuleLoadData(C.byref(module), lab.compile_source(SOURCE)), "loading the kernel")
    lab.check(lab.cuda.cuModuleGetFunction(C.byref(function), module, b"read"), "looking for it")
    memory, out = lab.allocate(max(SIZES)), lab.allocate(4)
    lab.check(lab.cuda.cuMemsetD32_v2(C.c_uint64(memory), 0x3F8CCCCD, C.c_size_t(max(SIZES) // 4)), "filling")
    for size in SIZES:
        graphs = []
        for ctas in (264, 396, 528, 1056):
            values = C.c_uint64(memory), C.c_uint64(size // 16), C.c_uint64(out)
            arguments = (C.c_void_p * 3)(*map(C.addressof, values))
            graph, executable = C.c_void_p(), C.c_void_p()
            lab.check(lab.cuda.cuStreamBeginCapture_v2(stream, 2), "beginning a capture")
            for _ in range(LAUNCHES):
                lab.check(lab.cuda.cuLaunchKernel(function, ctas, 1, 1, 512, 1, 1, 0, stream, arguments, None), "launching")
            lab.check(lab.cuda.cuStreamEndCapture(stream, C.byref(graph)), "ending a capture")
            lab.check(lab.cuda.cuGraphInstantiateWithFlags(C.byref(executable), graph, C.c_ulonglong(0)), "instantiating a graph")
            graphs.append(executable)
        times = [us * lab.LAUNCHES / LAUNCHES for us in lab.time_us(graphs, stream, rounds=9)]  # time_us() divides by the launches of its own graphs
        print(f"{size / 2**30:5.2f} GiB: {size / min(times) / 1e6:.3f} TB/s", flush=True)


if __name__ == "__main__":
    main()
