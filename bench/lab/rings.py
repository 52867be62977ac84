#!/usr/bin/env python3
"""What limits the streaming loop: schedules and rings of several sizes, producer warps, the loads alone; and a timeline of one launch.
Prints a line for each cell, fastest first.

  bench/lab/rings.py [--shapes 32/8/128,64/8/64] [--cells 1x8192,8x8192,8x8192r: r for lengths from len / 16 to len] [--rings 2:4:32:8,…: loader:warps:tokens of a tile:stages] [--splits 8,16]
                     [--producers 1,2,4] [--late] [--reverse] [--loads-only] [--apart] [--trace]
"""
import argparse

import numpy as np

import kernel_lab as lab

PROCESSORS = 132
SCHEDULES = {
    "even": dict(VARIANT=2, NUM_SPLITS=1, CTA_QUARTERS=4, MERGE=1),
    "clusters": dict(VARIANT=2, NUM_SPLITS=16, CTA_QUARTERS=0, MERGE=2),
    "fixed": dict(VARIANT=2, NUM_SPLITS=16, CTA_QUARTERS=0, MERGE=1),
    "one pass": dict(VARIANT=1, NUM_SPLITS=1, CTA_QUARTERS=0, MERGE=0),
}


def config(schedule, ring):
    return dict(SCHEDULES[schedule], **dict(zip(("LOADER", "NUM_WARPS", "TILE_KV", "NUM_STAGES"), ring)))


def name_of(ring):
    return "L{} w{} t{} s{}".format(*ring)


def with_producers(text, most):
    return lab.patch(text, ": producers(kCopyBytes < 4096 && kRingBytes > kHalfOfAProcessor ? 4 : 2)", f": producers({most})") if most else text


def with_late_start(text):
    """The next kernel may start when the last copies have been issued, instead of at once."""
    text = lab.patch(text, "#endif\n  ptx::let_next_kernel_start();\n", "#endif\n")
    text = lab.patch(text, "    if (loader.at >= walk.now.count) return;\n", "    if (loader.at >= walk.now.count) {\n      ptx::let_next_kernel_start();\n      return;\n    }\n")
    return lab.patch(text, "      if (open) {\n", "      if (open) {\n        if (walk.left == 0) ptx::let_next_kernel_start();\n")


def with_reverse_order(text):
    """CTAs without work are placed first, so that they do not wait for a place until the launch before has ended."""
    return lab.patch(text, "start_walk(p, lane, blockIdx.x,", "start_walk(p, lane, p.num_ctas - 1 - blockIdx.x,")


def without_products(text):
    """Only the loads: what the copies alone can do."""
    return lab.patch(text, "    if (present != 0) state.absorb(", "    if (present == 12345u) state.absorb(")


def timeline(kernel, ctas, warps):
    times = lab.traced(kernel)[:ctas]
    start = times[:, :warps, lab.RELEASED][times[:, :warps, lab.RELEASED] > 0].min()
    us = lambda x: (x - start) / 1e3
    for name in ("STARTED", "RELEASED", "QUERY", "LOOPED", "MET", "PUSHED", "COUNTED", "DONE"):
        seen = times[:, :warps, getattr(lab, name)]
        seen = seen[seen > start - 50_000]
        if seen.size:
            print(f"  {name.lower():9} min {us(seen.min()):6.2f}  median {us(np.median(seen)):6.2f}  max {us(seen.max()):6.2f}")
    ends = times[:, 0, lab.LOOPED]
    order = [cta for cta in np.argsort(ends) if ends[cta] > start]
    told = lambda ctas: " ".join(f"{us(ends[cta]):.1f} on {lab.processors(kernel)[cta]}" for cta in ctas)
    print(f"  looped, by multiprocessor: first {told(order[:12])}; last {told(order[-12:])}")
    row = lambda warp, cta: " ".join(f"{us(x):.2f}" for x in times[cta, warp, lab.TILES : lab.TILES + 32] if x > 0)
    for cta in (0, min(60, ctas - 1)):
        print(f"  CTA {cta}: tiles issued {row(warps, cta)}")
        print(f"    warp 0 waits, has: {row(0, cta)}\n    warp {warps - 1} waits, has: {row(warps - 1, cta)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="32/8/128,64/8/64")
    parser.add_argument("--cells", default="1x8192,8x8192")
    parser.add_argument("--rings", default="2:4:32:4,2:4:32:8,2:4:32:12")
    parser.add_argument("--splits", default="2,4,8,16,32,48,64")
    parser.add_argument("--quarters", default="4,8")
    parser.add_argument("--producers", default="0", help="warps, at most; 0: as the template says")
    parser.add_argument("--page", type=int, default=16)
    parser.add_argument("--late", action="store_true", help="the next kernel's start late, too")
    parser.add_argument("--reverse", action="store_true", help="the even share's CTAs in reverse order, too")
    parser.add_argument("--loads-only", action="store_true")
    parser.add_argument("--apart", action="store_true", help="the even share without clusters of two, too")
    parser.add_argument("--trace", action="store_true")
    arguments = parser.parse_args()
    numbers = lambda text: [int(x) for x in text.split(",") if x]
    rings = [tuple(int(x) for x in text.split(":")) for text in arguments.rings.split(",")]
    stream = lab.open_device()
    for text in arguments.shapes.split(","):
        shape = tuple(int(x) for x in text.split("/"))
        kernels = {}

        def make(schedule, ring, label, change):
            try:
                kernels[schedule, ring, label] = lab.Kernel(change(lab.source(shape, arguments.page, 8, 8192, config(schedule, ring))))
            except RuntimeError as error:
                print(f"left out: {text}, {schedule} {name_of(ring)}{label}: {error}")

        for ring in rings:
            for schedule in SCHEDULES:
                for most in numbers(arguments.producers) if ring[0] == 2 else [0]:
                    make(schedule, ring, f" {most} producers" if most else "", lambda x: with_producers(x, most))
                if arguments.late:
                    make(schedule, ring, " late", with_late_start)
            if arguments.reverse:
                make("even", ring, " reverse", with_reverse_order)
            if arguments.loads_only:
                make("even", ring, " loads only", without_products)
        print(text, "; ".join(f"{name_of(ring)}: {k.registers} registers, {k.shared} bytes" for (schedule, ring, label), k in kernels.items() if schedule == "even" and not label))
        for cell in arguments.cells.split(","):
            problem = lab.problem_of(shape, arguments.page, cell)
            pairs, length = len(problem.lengths) * shape[1], max(problem.lengths)
            ways = []
            for (schedule, ring, label), kernel in kernels.items():
                if schedule == "even":
                    for apart in [False, True] if arguments.apart else [False]:
                        ways += [(f"E{q} {name_of(ring)}{label}{' apart' if apart else ''}", kernel, dict(num_ctas=PROCESSORS * q // 4, pairs=not apart)) for q in numbers(arguments.quarters)]
                elif schedule == "one pass":
                    if pairs >= PROCESSORS // 4:
                        ways.append((f"V1 {name_of(ring)}{label}", kernel, {}))
                else:
                    letter = "C" if schedule == "clusters" else "F"
                    ways += [(f"{letter}{n} {name_of(ring)}{label}", kernel, dict(num_splits=n)) for n in numbers(arguments.splits) if PROCESSORS // 4 <= pairs * n <= 2 * PROCESSORS and length // n >= 64]
            graphs = [lab.record(kernel, problem, stream, **how) for _, kernel, how in ways]
            times = lab.time_us(graphs, stream, rounds=10)
            print(f"{text} {cell}, floor {problem.bytes / 4.55e6:.1f}: " + "; ".join(f"{t:.1f} {name}" for t, (name, _, _) in sorted(zip(times, ways), key=lambda x: x[0])), flush=True)
            for graph in graphs:
                lab.cuda.cuGraphExecDestroy(graph)
            if arguments.trace:
                ring = rings[-1]
                for schedule, how in (("even", dict(num_ctas=PROCESSORS)), ("clusters", dict(num_splits=16))):
                    if schedule == "clusters" and pairs * 16 > PROCESSORS:
                        continue
                    change = with_late_start if arguments.late else lambda x: x
                    kernel = lab.Kernel(lab.with_trace(change(lab.source(shape, arguments.page, 8, 8192, config(schedule, ring)))))
                    graph = lab.record(kernel, problem, stream, **how)
                    print(f" {schedule} {name_of(ring)}, traced: {lab.time_us([graph], stream, rounds=5)[0]:.1f} us; us after the release of the first CTA:")
                    timeline(kernel, how.get("num_ctas") or pairs * how["num_splits"], ring[1])
            problem.release()


if __name__ == "__main__":
    main()
