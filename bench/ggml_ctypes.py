"""ggml's flash attention by ctypes, from the libraries that llama-cpp-python brings: as much as bench/cache_peers.py needs."""
import ctypes as c
import importlib.util
from pathlib import Path

import numpy as np

TYPES = {"f32": 0, "f16": 1, "q8_0": 8}  # enum ggml_type
ROW_BYTES = {"f32": lambda n: 4 * n, "f16": lambda n: 2 * n, "q8_0": lambda n: n // 32 * 34}
SLACK = 1 << 20  # for tensors' and the graph's own structs


class InitParams(c.Structure):
    _fields_ = [("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool)]


class ThreadpoolParams(c.Structure):
    _fields_ = [("cpumask", c.c_bool * 512), ("n_threads", c.c_int), ("prio", c.c_int), ("poll", c.c_uint32),
                ("strict_cpu", c.c_bool), ("paused", c.c_bool)]


class Plan(c.Structure):  # ggml_cplan, and room for fields that later versions add
    _fields_ = [("work_size", c.c_size_t), ("work_data", c.c_void_p), ("n_threads", c.c_int), ("threadpool", c.c_void_p),
                ("abort_callback", c.c_void_p), ("abort_data", c.c_void_p), ("more", c.c_uint64 * 4)]


def library():
    folder = Path(importlib.util.find_spec("llama_cpp").origin).parent / "lib"
    lib = c.CDLL(str(folder / "libggml-cpu.so"), mode=c.RTLD_GLOBAL)  # brings libggml-base
    pointer, i64 = c.c_void_p, c.c_int64
    for name, result, arguments in (
            ("ggml_init", pointer, [InitParams]),
            ("ggml_new_tensor_3d", pointer, [pointer, c.c_int, i64, i64, i64]),
            ("ggml_permute", pointer, [pointer, pointer] + 4 * [c.c_int]),
            ("ggml_get_data", pointer, [pointer]),
            ("ggml_nbytes", c.c_size_t, [pointer]),
            ("ggml_flash_attn_ext", pointer, 5 * [pointer] + 3 * [c.c_float]),
            ("ggml_new_graph", pointer, [pointer]),
            ("ggml_build_forward_expand", None, [pointer, pointer]),
            ("ggml_quantize_chunk", c.c_size_t, [c.c_int, pointer, pointer, i64, i64, i64, pointer]),
            ("ggml_threadpool_params_default", ThreadpoolParams, [c.c_int]),
            ("ggml_threadpool_new", pointer, [pointer]),
            ("ggml_graph_plan", Plan, [pointer, c.c_int, pointer]),
            ("ggml_graph_compute", c.c_int, [pointer, pointer])):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class FlashAttention:
    """One query token of q [heads, dim] against k, v [tokens, kv_heads, dim], which are stored as `element`."""

    def __init__(self, q, k, v, element, threads):
        self.lib = lib = library()
        tokens, kv_heads, dim = k.shape
        size = 2 * ROW_BYTES[element](k.size) + 4 * q.nbytes + SLACK
        self.context = lib.ggml_init(InitParams(size, None, False))
        query = lib.ggml_new_tensor_3d(self.context, TYPES["f32"], dim, 1, len(q))
        c.memmove(lib.ggml_get_data(query), q.ctypes.data, q.nbytes)
        keys, values = (self.stored(array, element, dim, kv_heads, tokens) for array in (k, v))
        self.out = lib.ggml_flash_attn_ext(self.context, query, keys, values, None, dim**-0.5, 0.0, 0.0)
        self.shape = q.shape
        self.graph = lib.ggml_new_graph(self.context)
        lib.ggml_build_forward_expand(self.graph, self.out)
        self.threads = lib.ggml_threadpool_new(c.byref(lib.ggml_threadpool_params_default(threads)))
        self.plan = lib.ggml_graph_plan(self.graph, threads, self.threads)
        self.work = np.empty(self.plan.work_size + 64, np.uint8)
        self.plan.work_data = self.work.ctypes.data

    def stored(self, array, element, dim, kv_heads, tokens):
        """[tokens, kv_heads, dim] as `element`, seen as ggml wants it: heads outermost."""
        tensor = self.lib.ggml_new_tensor_3d(self.context, TYPES[element], dim, kv_heads, tokens)
        to = self.lib.ggml_get_data(tensor)
        if element == "f16":
            half = array.astype(np.float16)
            c.memmove(to, half.ctypes.data, half.nbytes)
        else:
            self.lib.ggml_quantize_chunk(TYPES[element], array.ctypes.data, to, 0, tokens * kv_heads, dim, None)
        return self.lib.ggml_permute(self.context, tensor, 0, 2, 1, 3)

    def run(self):
        if self.lib.ggml_graph_compute(self.graph, c.byref(self.plan)) != 0:
            raise RuntimeError("ggml_graph_compute failed")

    def result(self):
        """[heads, dim]."""
        out = np.empty(self.shape, np.float32)
        c.memmove(out.ctypes.data, self.lib.ggml_get_data(self.out), out.nbytes)
        return out
