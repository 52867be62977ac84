#!/usr/bin/env python3
"""What limits the streaming loop: rings of several sizes, CTAs to a multiprocessor, promotion in L2, prefetches into L2 ahead of the ring; and a
timeline of one launch. Prints a line for each cell, fastest first.

  bench/lab/rings.py [--shapes 32/8/128,64/8/64] [--cells 1x8192,1x32768,8x1024,8x8192] [--no-trace]
"""
import argparse

import numpy as np

import kernel_lab as lab

EVEN = dict(VARIANT=2, NUM_SPLITS=1, CTA_QUARTERS=4, MERGE=1)
CLUSTERS = dict(VARIANT=2, NUM_SPLITS=16, CTA_QUARTERS=0, MERGE=2)
ONE_PASS = dict(VARIANT=1, NUM_SPLITS=1, CTA_QUARTERS=0, MERGE=0)
SHAPES = {"L2 w4 t32 s4": (2, 4, 32, 4), "L2 w4 t32 s8": (2, 4, 32, 8), "L2 w4 t32 s12": (2, 4, 32, 12), "L2 w3 t32 s3": (2, 3, 32, 3), "L2 w3 t32 s6": (2, 3, 32, 6), "L2 w6 t16 s12": (2, 6, 16, 12), "L2 w4 t16 s8": (2, 4, 16, 8),
          "L0 w8 t16 s3": (0, 8, 16, 3)}
BASE = "L2 w4 t32 s4"
PROCESSORS = 132


def config(schedule, shape):
    return dict(schedule, **dict(zip(("LOADER", "NUM_WARPS", "TILE_KV", "NUM_STAGES"), SHAPES[shape])))


def with_prefetch(text, ahead):
    """The producer also brings the `ahead` units after the one it copies into L2, from its start on, so before the launch before has finished."""
    method = """  int fetched = 0;  // units of the segment
  __device__ __forceinline__ void prefetch_ahead(const pt_decode_params& p, const Segment& s, const pt_tensor_maps& maps, int lane) {
    const int copied = (tile - s.first) * config::num_warps + unit;
    if (copied == 0) fetched = 0;
    while (fetched < copied + AHEAD && prefetch_unit(p, s, maps, lane, fetched)) ++fetched;
  }
  __device__ __forceinline__ bool prefetch_unit(const pt_decode_params& p, const Segment& s, const pt_tensor_maps& maps, int lane, int which) const {
    const int t = s.first + which / config::num_warps, first = s.span.token_of(t) + which % config::num_warps * config::tile_kv;
    const int begin = static_cast<u32>(first) / static_cast<u32>(spec::page_size);
    if (t >= s.first + s.count || static_cast<u32>(begin - pages.base) >= 60u) return false;
    constexpr int kCopies = KeyRows::kCopies + ValueRows::kCopies;
    const int box = lane % kBoxes, copy = lane / kBoxes, at = begin + box - pages.base;
    const int near = __shfl_sync(0xffffffffu, pages.ids, at & 31), far = __shfl_sync(0xffffffffu, pages.more, at & 31), page = at < 32 ? near : far;
    if (copy >= kCopies || static_cast<u32>(page) >= static_cast<u32>(p.num_pages)) return true;
    const int token = static_cast<u32>(first + box * kBoxTokens) % static_cast<u32>(spec::page_size);
    asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];" ::"l"(copy < KeyRows::kCopies ? maps.k : maps.v), "r"(0), "r"(token), "r"(0), "r"(s.head), "r"(page) : "memory");
    return true;
  }
""".replace("AHEAD", str(ahead))
    place = "  // One box for each page, of each panel where"
    text = lab.patch(text, place, method + place)
    wait = "    ptx::barrier_wait(barriers + kStages * 8 + stage * 8, parity);\n"
    return lab.patch(text, wait, "    loader.prefetch_ahead(p, walk.now, maps, lane);\n" + wait)


def timeline(kernel, ctas):
    times = lab.traced(kernel)[:ctas]
    start = times[:, :4, lab.RELEASED][times[:, :4, lab.RELEASED] > 0].min()
    us = lambda x: (x - start) / 1e3
    for name in ("STARTED", "RELEASED", "QUERY", "LOOPED", "MET", "PUSHED", "COUNTED", "DONE"):
        seen = times[:, :4, getattr(lab, name)]
        seen = seen[seen > start - 50_000]
        if seen.size:
            print(f"  {name.lower():9} min {us(seen.min()):6.2f}  median {us(np.median(seen)):6.2f}  max {us(seen.max()):6.2f}")
    row = lambda warp, cta: " ".join(f"{us(x):.2f}" for x in times[cta, warp, lab.UNITS : lab.UNITS + 32] if x > 0)
    for cta in (0, min(60, ctas - 1)):
        print(f"  CTA {cta}: units issued {row(4, cta)}")
        print(f"    warp 0 waits, has: {row(0, cta)}\n    warp 3 waits, has: {row(3, cta)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="32/8/128,64/8/64")
    parser.add_argument("--cells", default="1x8192,1x32768,8x1024,8x8192")
    parser.add_argument("--page", type=int, default=16)
    parser.add_argument("--no-trace", action="store_true")
    arguments = parser.parse_args()
    stream = lab.open_device()
    for text in arguments.shapes.split(","):
        shape = tuple(int(x) for x in text.split("/"))
        make = lambda schedule, name, change=lambda x: x: lab.Kernel(change(lab.source(shape, arguments.page, 8, 8192, config(schedule, name))))
        even = {}
        for name in SHAPES:
            try:
                even[name] = make(EVEN, name)
            except RuntimeError as error:
                print(f"left out: {text}, {name}: {error}")
        ahead = {n: make(EVEN, BASE, lambda x, n=n: with_prefetch(x, n)) for n in (8, 16, 64)}
        clusters, one_pass = make(CLUSTERS, BASE), make(ONE_PASS, BASE)
        print(text, "; ".join(f"{name}: {k.registers} registers, {k.shared} bytes" for name, k in even.items()))
        for cell in arguments.cells.split(","):
            batch, length = (int(x) for x in cell.split("x"))
            problem = lab.Problem(shape, arguments.page, [length] * batch)
            ways = [(f"E{q} {name}", kernel, dict(num_ctas=PROCESSORS * q // 4)) for name, kernel in even.items() for q in (4, 8, 12)]
            ways += [(f"E{q} {BASE} +L2 prefetch {n}", kernel, dict(num_ctas=PROCESSORS * q // 4)) for n, kernel in ahead.items() for q in (4, 8)]
            ways += [(f"E{q} {BASE} promotion {p}", even[BASE], dict(num_ctas=PROCESSORS * q // 4, promotion=p)) for q in (4, 8) for p in (0, 3)]
            ways += [(f"clusters x {n} {BASE}", clusters, dict(num_splits=n)) for n in (8, 16, 24, 32, 48) if batch * shape[1] * n <= 2 * PROCESSORS]
            if batch * shape[1] >= 32:
                ways += [(f"V1 {BASE} promotion {p}", one_pass, dict(promotion=p)) for p in (2, 3)]
            graphs = [lab.record(kernel, problem, stream, **how) for _, kernel, how in ways]
            times = lab.time_us(graphs, stream, rounds=10)
            print(f"{text} {cell}, floor {problem.bytes / 4.55e6:.1f}: " + "; ".join(f"{t:.1f} {name}" for t, (name, _, _) in sorted(zip(times, ways), key=lambda x: x[0])), flush=True)
            for graph in graphs:
                lab.cuda.cuGraphExecDestroy(graph)
            if not arguments.no_trace and batch == 1:
                for name, schedule, how in (("E4", EVEN, dict(num_ctas=PROCESSORS)), ("clusters x 16", CLUSTERS, dict(num_splits=16))):
                    kernel = make(schedule, BASE, lab.with_trace)
                    graph = lab.record(kernel, problem, stream, **how)
                    print(f" {name}, traced: {lab.time_us([graph], stream, rounds=5)[0]:.1f} us; us after the release of the first CTA:")
                    timeline(kernel, how.get("num_ctas") or batch * shape[1] * how["num_splits"])
            problem.release()


if __name__ == "__main__":
    main()
