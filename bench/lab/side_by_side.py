#!/usr/bin/env python3
"""Versions of the templates and configs side by side in one process: a line for each cell and way, a column for each version.

  bench/lab/side_by_side.py PLAN [--compile-only]

PLAN is a file of calls of add(), for example bench/lab/plans/windows.py. Kernels are compiled on all cores first. A version is the name of a folder under --versions that holds
`templates` (git archive REVISION templates | tar -x -C FOLDER), or "here", this tree's.
"""
import argparse
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import kernel_lab as lab

HERE = "here"
plan = []


def even(ctas, warps, stages, tile=32, **how):
    """An even share among so many CTAs. how: arguments of lab.launch(), and window: of all KV heads, or, with spec=HEADWISE, of the first half."""
    return f"even {ctas}, {warps} x {stages}", dict(VARIANT=2, NUM_SPLITS=1, CTA_QUARTERS=4, MERGE=1), (warps, stages, tile), dict(num_ctas=ctas, **how)


def clusters(splits, stages, tile=32, warps=4, **how):
    return f"clusters {splits}, {warps} x {stages}", dict(VARIANT=2, NUM_SPLITS=16, CTA_QUARTERS=0, MERGE=2), (warps, stages, tile), dict(num_splits=splits, **how)


def one_pass(warps, stages, tile=32, **how):
    return f"one pass, {warps} x {stages}", dict(VARIANT=1, NUM_SPLITS=1, CTA_QUARTERS=0, MERGE=0), (warps, stages, tile), how


HEADWISE = dict(headwise=1, window=1)


def add(shape, cells, ways, versions=HERE, page=16, spec={}, hnd=False):
    """shape: "32/8/128"; cells: "8x1024 64x8192r", r for lengths from len / 16 to len; versions: names, separated by blanks."""
    for cell in cells.split():
        plan.append((tuple(int(x) for x in shape.split("/")), page, cell, spec, ways, versions.split(), hnd))


def key_of(shape, page, spec, way):
    return shape, page, tuple(sorted(spec.items())), tuple(sorted(way[1].items())), way[2]


def source_of(key):
    shape, page, spec, schedule, (warps, stages, tile) = key
    return lab.source(shape, page, 8, 8192, dict(schedule, LOADER=2, NUM_WARPS=warps, NUM_STAGES=stages, TILE_KV=tile), **dict(spec))


def problem_of(shape, page, cell, spec, hnd):
    problem = lab.problem_of(shape, page, cell, hnd=hnd)
    if spec.get("headwise"):  # a table of its own for each KV head
        batch = len(problem.lengths)
        random, each = np.random.default_rng(2), problem.width * batch
        orders = [random.permutation(problem.pages) for _ in range(shape[1])]
        tables = [np.stack([order[r * each : (r + 1) * each].reshape(batch, problem.width) for order in orders], 1) for r in range(problem.rotations)]
        problem.tables = [lab.upload(table.reshape(-1).astype(np.int32)) for table in tables]
    return problem


def record(kernel, problem, stream, spec, window=0, **how):
    full = problem.kv_heads // 2 if spec.get("headwise") else 0
    windows = lab.upload(np.array([window] * (problem.kv_heads - full) + [0] * full, np.int32)) if spec.get("window") else None
    sinks = lab.upload(np.zeros(problem.q_heads, np.float32)) if spec.get("sinks") else None

    def adjust(p):
        p.window, p.sinks = windows, sinks

    return lab.record(kernel, problem, stream, adjust=adjust, **how)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("--versions", default=".", help="the folder of the versions' folders")
    parser.add_argument("--compile-only", action="store_true", help="needs no GPU")
    arguments = parser.parse_args()
    with open(arguments.plan) as file:
        exec(compile(file.read(), arguments.plan, "exec"), globals())
    stream = None if arguments.compile_only else lab.open_device()
    folder = lambda version: lab.ROOT if version == HERE else os.path.join(arguments.versions, version)

    def image(job):
        try:
            return lab.compile_source(lab.with_templates_of(texts[job[0]], folder(job[1])))
        except RuntimeError as error:
            return error

    keys = sorted({key_of(shape, page, spec, way) for shape, page, _, spec, ways, _, _ in plan for way in ways})
    jobs = sorted({(key_of(shape, page, spec, way), version) for shape, page, _, spec, ways, versions, _ in plan for way in ways for version in versions})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = dict(zip(keys, pool.map(source_of, keys)))
        images = dict(zip(jobs, pool.map(image, jobs)))
    for job, result in images.items():
        if isinstance(result, RuntimeError):
            print(f"left out: {job}: {str(result)[:300]}")
    if arguments.compile_only:
        return
    kernels = {job: lab.Kernel(image=result) for job, result in images.items() if not isinstance(result, RuntimeError)}
    for shape, page, cell, spec, ways, versions, hnd in plan:
        problem = problem_of(shape, page, cell, spec, hnd)
        known = [(way, version) for way in ways for version in versions if (key_of(shape, page, spec, way), version) in kernels]
        graphs = [record(kernels[key_of(shape, page, spec, way), version], problem, stream, spec, **way[3]) for way, version in known]
        times = dict(zip([(way[0], way[3].get("window"), version) for way, version in known], lab.time_us(graphs, stream, rounds=12 if problem.bytes < 3e8 else 7)))
        print(f"{'/'.join(map(str, shape))}, page {page}, {'hnd, ' if hnd else ''}{cell}, floor of all keys {problem.bytes / 4.55e6:.1f}")
        for name, window in dict.fromkeys((way[0], way[3].get("window")) for way in ways):
            row = "  ".join(f"{version} {times[name, window, version]:.2f}" for version in versions if (name, window, version) in times)
            print(f"   {name + (f', window {window}' if window else ''):32} {row}", flush=True)
        for graph in graphs:
            lab.cuda.cuGraphExecDestroy(graph)
        problem.release()


if __name__ == "__main__":
    main()
