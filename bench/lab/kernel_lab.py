"""A bench for kernel engineers: the text of a generated decode kernel, patched, timed and traced without rebuilding anything.

Kernels come from `pagetune gen --show source`; patches are plain replacements in that text. Each is compiled with NVRTC, launched as a chain of
dependent launches in a graph (the query of a launch is the output of the one before; programmatic dependent launch), over as many block tables as
keep K and V out of the L2. Nothing is checked here: what wins goes into the templates, and the tests decide.

Needs libcuda, libnvrtc and NumPy; head dims that are multiples of 64, bf16, NHD pages, one query token.
"""
import ctypes as C
import json
import os
import re
import subprocess
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = [os.path.join(ROOT, "out/gpu-bundle/pagetune"), os.path.join(ROOT, "build/default/bin/pagetune")]


def library(names):
    for name in names:
        try:
            return C.CDLL(name)
        except OSError:
            pass
    raise SystemExit(f"none of these libraries could be loaded: {', '.join(names)}")


nvrtc = library(["libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"])
cuda = None  # set by open_device()


def check(result, what):
    if result:
        name = C.c_char_p()
        cuda.cuGetErrorName(result, C.byref(name))
        raise RuntimeError(f"{what}: {name.value.decode() if name.value else result}")


def open_device():
    """The first GPU. Returns a stream."""
    global cuda
    cuda = library(["libcuda.so.1"])
    context, stream = C.c_void_p(), C.c_void_p()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDevicePrimaryCtxRetain(C.byref(context), 0), "retaining the context")
    check(cuda.cuCtxSetCurrent(context), "making the context current")
    check(cuda.cuStreamCreate(C.byref(stream), 1), "creating a stream")
    return stream


def with_templates_of(text, folder):
    """The same kernel from the templates of another version of pagetune: `folder` is its tree (git archive REVISION templates | tar -x -C FOLDER)."""
    seen = set()

    def expanded(path):
        if path in seen:
            return ""
        seen.add(path)
        with open(os.path.join(folder, path)) as file:
            rows = [row for row in file if row != "#pragma once\n"]
        included = [re.match(r'#include "(.*)"', row) for row in rows]
        return "".join(expanded("templates/" + name[1]) if name else row for name, row in zip(included, rows))

    return text[: text.index('#line 1 "templates/cuda/decode.cu"')] + expanded("templates/cuda/decode.cu")


def source(shape, page, batch, length, config, **spec):
    """The kernel's text; shape: (query heads, KV heads, head dim); config: what differs from the default, as a dict; spec: flags of the prelude's namespace spec to set."""
    q_heads, kv_heads, dim = shape
    built = [p for p in PROGRAMS if os.path.exists(p)]
    if not built:
        raise SystemExit("build pagetune first: cmake --build --preset gpu-bundle, or default")
    program = max(built, key=os.path.getmtime)
    model = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=q_heads * dim, num_attention_heads=q_heads, num_key_value_heads=kv_heads, head_dim=dim,
                 num_hidden_layers=1, torch_dtype="bfloat16", max_position_embeddings=131072)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(model, file)
        file.flush()
        command = [program, "gen", file.name, "--page-size", str(page), "--batch", str(batch), "--len", str(length), "--show", "source", "--config", json.dumps(config)]
        run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr.strip()[-300:])
    text = run.stdout
    for name, value in spec.items():
        text = patch(text, f"constexpr int {name} = 0;", f"constexpr int {name} = {value};")
    return text


def compile_source(text, arch="sm_90a"):
    program, size = C.c_void_p(), C.c_size_t()
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"-default-device"]
    nvrtc.nvrtcCreateProgram(C.byref(program), text.encode(), b"kernel.cu", 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (C.c_char_p * len(options))(*options))
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, C.byref(size))
        log = C.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.value.decode()[:3000])
    nvrtc.nvrtcGetCUBINSize(program, C.byref(size))
    image = C.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, image)
    return image.raw


def params_type():
    """pt_decode_params as a ctypes structure, read from templates/params.h."""
    with open(os.path.join(ROOT, "templates/params.h")) as file:
        body = re.search(r"typedef struct pt_decode_params \{(.*?)\} pt_decode_params;", file.read(), re.S).group(1)
    types = {"long long": C.c_longlong, "unsigned": C.c_uint, "int": C.c_int, "float": C.c_float}
    fields = []
    for declaration in re.sub(r"//.*", "", body).split(";"):
        declaration = declaration.strip()
        if "*" in declaration:
            fields.append((declaration.split("*")[-1].strip(), C.c_void_p))
        elif declaration:
            kind, names = re.match(r"(long long|unsigned|int|float)\s+(.*)", declaration, re.S).groups()
            fields += [(name.strip(), types[kind]) for name in names.split(",")]
    return type("Params", (C.Structure,), {"_fields_": fields})


Params = params_type()


class Attribute(C.Structure):
    _fields_ = [("id", C.c_int), ("padding", C.c_int), ("value", C.c_uint * 16)]


class LaunchConfig(C.Structure):
    _fields_ = [("grid", C.c_uint * 3), ("block", C.c_uint * 3), ("shared", C.c_uint), ("stream", C.c_void_p), ("attributes", C.c_void_p), ("count", C.c_uint)]


def allocate(size):
    pointer = C.c_uint64()
    check(cuda.cuMemAlloc_v2(C.byref(pointer), C.c_size_t(size)), f"allocating {size} bytes")
    return pointer.value


def upload(array):
    array = np.ascontiguousarray(array)
    pointer = allocate(array.nbytes)
    check(cuda.cuMemcpyHtoD_v2(C.c_uint64(pointer), array.ctypes.data_as(C.c_void_p), C.c_size_t(array.nbytes)), "uploading")
    return pointer


def download(pointer, count, dtype):
    array = np.empty(count, dtype)
    check(cuda.cuMemcpyDtoH_v2(array.ctypes.data_as(C.c_void_p), C.c_uint64(pointer), C.c_size_t(array.nbytes)), "downloading")
    return array


class Kernel:
    def __init__(self, text="", image=None):
        self.module, self.function, registers = C.c_void_p(), C.c_void_p(), C.c_int()
        check(cuda.cuModuleLoadData(C.byref(self.module), image or compile_source(text)), "loading a kernel")
        check(cuda.cuModuleGetFunction(C.byref(self.function), self.module, b"pt_decode"), "looking for pt_decode")
        facts = [int(x) for x in self.array(b"pt_facts", np.int32)]
        self.threads, self.shared, self.row_tiles, self.kv_heads = facts[3], facts[4], facts[7], facts[9]
        self.even_share, self.cluster, self.box_tokens, self.page, self.dim = facts[11], facts[12], facts[13], facts[14], facts[15]
        check(cuda.cuFuncSetAttribute(self.function, 8, self.shared), "raising the shared-memory limit")
        cuda.cuFuncSetAttribute(self.function, 14, 1)
        cuda.cuFuncGetAttribute(C.byref(registers), 4, self.function)
        self.registers = registers.value

    def array(self, name, dtype):
        pointer, size = C.c_uint64(), C.c_size_t()
        check(cuda.cuModuleGetGlobal_v2(C.byref(pointer), C.byref(size), self.module, name), f"looking for {name.decode()}")
        return download(pointer.value, size.value // np.dtype(dtype).itemsize, dtype)

    def tensor_map(self, cache, problem, promotion):
        """128 bytes; as runtime/cuda/cuda_device.cpp describes K and V. promotion: CUtensorMapL2promotion, 2 = 128 bytes, 3 = 256."""
        raw = np.zeros(192, np.uint8)
        at = -raw.ctypes.data % 64
        panels = self.dim // 64
        sizes = (C.c_uint64 * 5)(64, self.page, panels, self.kv_heads, problem.pages)
        strides = (C.c_uint64 * 4)(problem.token_stride * 2, 128, problem.head_stride * 2, self.page * self.kv_heads * self.dim * 2)
        box, steps = (C.c_uint32 * 5)(64, self.box_tokens, panels, 1, 1), (C.c_uint32 * 5)(1, 1, 1, 1, 1)
        check(cuda.cuTensorMapEncodeTiled(C.c_void_p(raw.ctypes.data + at), 9, 5, C.c_void_p(cache), sizes, strides, box, steps, 0, 3, promotion, 0), "describing the cache")
        return bytes(raw[at : at + 128])


class Problem:
    """A decode step on random pages: K and V in `rotations` disjoint sets of pages, so that no launch finds its own in the L2. hnd: a page holds its heads one after the other."""

    def __init__(self, shape, page, lengths, seed=1, hnd=False):
        q_heads, kv_heads, dim = shape
        self.token_stride, self.head_stride = (dim, page * dim) if hnd else (kv_heads * dim, dim)
        random = np.random.default_rng(seed)
        self.q_heads, self.kv_heads, self.dim, self.page, self.lengths = q_heads, kv_heads, dim, page, lengths
        each = [-(-n // page) for n in lengths]
        self.width, needed = max(each), sum(each)
        self.bytes = sum(lengths) * kv_heads * dim * 4
        self.rotations = max(2, min(24, int(400e6 // self.bytes) + 1))
        self.pages = needed * self.rotations
        order, at = random.permutation(self.pages).astype(np.int32), 0
        bf16 = lambda n: (random.standard_normal(n).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        size, block = self.pages * page * kv_heads * dim * 2, bf16(1 << 22)
        self.memory = [allocate(size), allocate(size)]
        self.k, self.v = self.memory
        random_block = upload(block)
        for cache in (self.k, self.v):
            for begin in range(0, size, block.nbytes):
                check(cuda.cuMemcpyDtoD_v2(C.c_uint64(cache + begin), C.c_uint64(random_block), C.c_size_t(min(block.nbytes, size - begin))), "filling")
        self.tables = []
        for _ in range(self.rotations):
            table = np.full((len(lengths), self.width), -1, np.int32)
            for row, count in enumerate(each):
                table[row, :count] = order[at : at + count]
                at += count
            self.tables.append(upload(table))
        self.seq_lens = upload(np.array(lengths, np.int32))
        self.rows = [upload(bf16(len(lengths) * q_heads * dim)) for _ in range(2)]
        self.workspace = allocate(256 << 20)
        self.memory += self.tables + self.rows + [random_block, self.seq_lens, self.workspace]

    def release(self):
        for pointer in self.memory:
            cuda.cuMemFree_v2(C.c_uint64(pointer))


def problem_of(shape, page, cell, **how):
    """cell: "8x1024", batch and length; with an r behind lengths from len / 16 to len, the longest first."""
    batch, length = (int(x) for x in cell.rstrip("r").split("x"))
    ragged = [int(length / 16 ** (i / max(batch - 1, 1))) for i in range(batch)]
    return Problem(shape, page, ragged if cell.endswith("r") else [length] * batch, **how)


def launch(kernel, problem, step, stream, num_splits=1, num_ctas=0, promotion=2, overlap=True, pairs=True, adjust=None):
    """adjust: a function that changes the parameters before they are handed over (windows, other tables)."""
    q_heads, kv_heads, dim, page = problem.q_heads, problem.kv_heads, problem.dim, problem.page
    p = Params()
    p.struct_size, p.version, p.flags = C.sizeof(Params), 3, 1
    p.q, p.out = problem.rows[step % 2], problem.rows[1 - step % 2]
    p.k_cache, p.v_cache, p.block_tables, p.seq_lens = problem.k, problem.v, problem.tables[step % problem.rotations], problem.seq_lens
    p.q_stride_seq = p.out_stride_seq = p.q_stride_token = p.out_stride_token = q_heads * dim
    p.q_stride_head = p.out_stride_head = dim
    for cache in "kv":
        setattr(p, cache + "_stride_page", page * kv_heads * dim)
        setattr(p, cache + "_stride_token", problem.token_stride)
        setattr(p, cache + "_stride_head", problem.head_stride)
    p.block_table_stride = p.block_table_width = problem.width
    p.batch, p.max_len, p.num_pages, p.seq_lens_stride_seq = len(problem.lengths), max(problem.lengths), problem.pages, 1
    p.scale = dim**-0.5
    p.scale_log2 = p.scale * 1.4426950408889634
    p.num_splits, p.num_ctas = num_splits, num_ctas
    p.counters, p.partial_out, p.partial_lse = problem.workspace, problem.workspace + (16 << 20), problem.workspace + (240 << 20)
    if adjust:
        adjust(p)
    if num_ctas:  # codegen/launch_plan.hpp, ShareFit
        lanes, side_by_side = kv_heads * kernel.row_tiles, not p.window and num_ctas >= kv_heads * kernel.row_tiles
        every, ranges = (p.batch, num_ctas // lanes) if side_by_side else (p.batch * lanes, num_ctas)
        p.whole_pairs = -(-every // ranges)
        p.whole_ranges = -(-every // p.whole_pairs)
        p.cut_ranges = ranges // every
    maps = C.create_string_buffer(320)
    at = C.addressof(maps) + -C.addressof(maps) % 64
    if kernel.box_tokens:
        C.memmove(at, kernel.tensor_map(problem.k, problem, promotion) + kernel.tensor_map(problem.v, problem, promotion), 256)
    arguments = (C.c_void_p * 2)(C.addressof(p), at)
    attributes, count = (Attribute * 2)(), 0
    if overlap:
        attributes[count].id, attributes[count].value[0] = 6, 1
        count += 1
    grid = num_ctas if kernel.even_share else len(problem.lengths) * kv_heads * kernel.row_tiles * num_splits
    cluster = min(num_splits & -num_splits, 16) if kernel.cluster else 2 if pairs and kernel.even_share and grid % 2 == 0 else 1
    if cluster > 1:
        attributes[count].id = 4
        attributes[count].value[0:3] = [cluster, 1, 1]
        count += 1
    config = LaunchConfig((grid, 1, 1), (kernel.threads, 1, 1), kernel.shared, stream, C.addressof(attributes), count)
    check(cuda.cuLaunchKernelEx(C.byref(config), kernel.function, arguments, None), "launching")


LAUNCHES = 20  # of a graph


def record(kernel, problem, stream, **how):
    graph, executable = C.c_void_p(), C.c_void_p()
    check(cuda.cuStreamBeginCapture_v2(stream, 2), "beginning a capture")
    for step in range(LAUNCHES):
        launch(kernel, problem, step, stream, **how)
    check(cuda.cuStreamEndCapture(stream, C.byref(graph)), "ending a capture")
    check(cuda.cuGraphInstantiateWithFlags(C.byref(executable), graph, C.c_ulonglong(0)), "instantiating a graph")
    return executable


def time_us(executables, stream, rounds=15):
    """Medians of the microseconds of a launch; the graphs are sampled in turn."""
    events = [C.c_void_p(), C.c_void_p()]
    for event in events:
        cuda.cuEventCreate(C.byref(event), 0)
    samples = [[] for _ in executables]
    for turn in range(rounds + 3):
        for i, executable in enumerate(executables):
            cuda.cuEventRecord(events[0], stream)
            check(cuda.cuGraphLaunch(executable, stream), "launching a graph")
            cuda.cuEventRecord(events[1], stream)
            check(cuda.cuStreamSynchronize(stream), "replaying a graph")
            ms = C.c_float()
            cuda.cuEventElapsedTime(C.byref(ms), events[0], events[1])
            if turn >= 3:
                samples[i].append(ms.value * 1e3 / LAUNCHES)
    return [float(np.median(x)) for x in samples]


def patch(text, old, new):
    """Replaces the one place where `old` stands."""
    if text.count(old) != 1:
        raise ValueError(f"expected once, found {text.count(old)} times: {old}")
    return text.replace(old, new)


TRACED_CTAS, TRACED_WARPS, TRACE_SLOTS = 320, 8, 64
TRACE = """
__device__ unsigned long long lab_trace[%d];
__device__ unsigned lab_processor[%d];
__device__ __forceinline__ void trace(int slot) {
  if (threadIdx.x %% 32 != 0 || blockIdx.x >= %d || slot >= %d) return;
  unsigned long long now;
  asm volatile("mov.u64 %%0, %%globaltimer;" : "=l"(now));
  lab_trace[(blockIdx.x * %d + threadIdx.x / 32) * %d + slot] = now;
  if (slot == 0) asm volatile("mov.u32 %%0, %%smid;" : "=r"(lab_processor[blockIdx.x]));
}
""" % (TRACED_CTAS * TRACED_WARPS * TRACE_SLOTS, TRACED_CTAS, TRACED_CTAS, TRACE_SLOTS, TRACED_WARPS, TRACE_SLOTS)
STARTED, RELEASED, QUERY, LOOPED, MET, PUSHED, COUNTED, DONE, TILES = range(9)


def with_trace(text):
    """Each warp leaves times (ns) in lab_trace[CTA][warp][slot]: STARTED, RELEASED (the launch before has finished), QUERY (loaded), LOOPED, MET, PUSHED,
    COUNTED, DONE; from TILES on the producer the time of each tile's issue, a consumer when it begins to wait for a tile and when it has it."""
    text = patch(text, "// config::merge\n", TRACE + "// config::merge\n")
    threads = "  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;\n"
    text = patch(text, threads, threads + f"  trace({STARTED});\n")
    text = patch(text, "  bool alone = false;\n#pragma unroll 1\n  for (;;) {\n    if (loader", f"  bool alone = false;\n  int tile = {TILES};\n#pragma unroll 1\n  for (;;) {{\n    if (loader")
    text = patch(text, "ptx::barrier_wait(barriers + kStages * 8 + stage * 8, parity);", "ptx::barrier_wait(barriers + kStages * 8 + stage * 8, parity), trace(tile++);")
    text = patch(text, "  bool alone = false;  // the preceding kernel has finished\n", f"  bool alone = false;\n  int tile = {TILES};\n")
    text = patch(text, "      if (!alone) ptx::wait_for_previous_kernel();\n      alone = true;", f"      if (!alone) ptx::wait_for_previous_kernel(), trace({RELEASED});\n      alone = true;")
    text = patch(text, "    state.start();\n  };\n", f"    state.start();\n    trace({QUERY});\n  }};\n")
    text = patch(text, "    else ptx::barrier_wait(barriers + reading * 8, parity);\n", "    else trace(tile++), ptx::barrier_wait(barriers + reading * 8, parity), trace(tile++);\n")
    text = patch(text, "    ptx::wait_for_previous_kernel();\n    alone = true;\n    rows.open", f"    ptx::wait_for_previous_kernel();\n    trace({RELEASED});\n    alone = true;\n    rows.open")
    for more in ("false", "walk.left > 0"):
        text = patch(text, f"ending.run(state, s, rows, {more});", f"trace({LOOPED}), ending.run(state, s, rows, {more}), trace({DONE});")
    text = patch(text, "      if (is_last || two_steps) merges = ", f"      trace({COUNTED});\n      if (is_last || two_steps) merges = ")
    text = patch(text, "ending.finish(s, rows);", f"ending.finish(s, rows), trace({DONE});")
    text = patch(text, "    meeting.put(state, team);\n    sync_workers();", f"    meeting.put(state, team);\n    sync_workers();\n    trace({MET});")
    text = patch(text, "    if (last) merge(s, rows", f"    trace({COUNTED});\n    if (last) merge(s, rows")
    return patch(text, "    ptx::barrier_wait(to.barrier, 0);", f"    trace({PUSHED});\n    ptx::barrier_wait(to.barrier, 0);")


def processors(kernel):
    """The multiprocessor of each CTA."""
    return kernel.array(b"lab_processor", np.uint32)


def traced(kernel):
    return kernel.array(b"lab_trace", np.uint64).reshape(TRACED_CTAS, TRACED_WARPS, TRACE_SLOTS).astype(np.int64)
