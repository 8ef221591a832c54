"""Polyhead's C ABI by ctypes, as much of it as bench/peers.py needs. Structs are the first fields of
polyhead_c.h's and polyhead_layer_c.h's, which `struct_bytes` allows."""
import ctypes as c

import numpy as np

FLOAT32, FLOAT16, BFLOAT16, INT32, INT64, BOOLEAN = 1, 2, 3, 4, 5, 6
ALIGN_START, ALIGN_END = 1, 2
BFLOAT16_STORAGE = np.dtype(np.uint16)  # numpy has no bfloat16: its bits, named by the element type
ELEMENTS = {np.dtype(np.float32): FLOAT32, np.dtype(np.float16): FLOAT16, BFLOAT16_STORAGE: BFLOAT16,
            np.dtype(np.int32): INT32, np.dtype(np.int64): INT64, np.dtype(np.bool_): BOOLEAN}


class Sized(c.Structure):
    """A struct of the C ABI: its size first, all else zero unless named. Keeps what its pointers point to."""

    def __init__(self, **fields):
        super().__init__()
        self.struct_bytes = c.sizeof(self)
        self.keep = []
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                value = view(value)
            if isinstance(value, Sized):
                self.keep.append(value)
                value = c.cast(c.pointer(value), c.c_void_p)
            setattr(self, name, value)


def pointers(*names):
    return [(name, c.c_void_p) for name in names]


class View(Sized):
    _fields_ = [("struct_bytes", c.c_size_t), ("data", c.c_void_p), ("element_type", c.c_int32),
                ("axes", c.c_int32), ("extents", c.c_int64 * 8), ("strides", c.c_int64 * 8)]


class Options(Sized):
    _fields_ = [("struct_bytes", c.c_size_t), ("isa", c.c_int32), ("threads", c.c_int32),
                ("executor", c.c_void_p)]


class Mask(Sized):
    _fields_ = [("struct_bytes", c.c_size_t), ("causal", c.c_int32), ("windowed", c.c_int32),
                ("left", c.c_int64), ("right", c.c_int64), ("align", c.c_int32),
                ("reserved", c.c_int32), ("prefix_length", c.c_int64),
                *pointers("prefix_lengths", "kv_lengths", "q_lengths", "q_documents", "kv_documents",
                          "visible")]


class Modifiers(Sized):
    _fields_ = [("struct_bytes", c.c_size_t), ("scale_given", c.c_int32), ("scale", c.c_float),
                ("soft_cap", c.c_float), ("alibi", c.c_int32), *pointers("alibi_slopes", "bias"),
                ("custom", c.c_void_p * 4), *pointers("sink"), ("dropout", c.c_float),
                ("reserved", c.c_int32), ("dropout_seed", c.c_uint64), *pointers("sequence_ids")]


class AttentionArguments(Sized):
    _fields_ = [("struct_bytes", c.c_size_t),
                *pointers("q", "k", "v", "out", "mask", "modifiers", "q_offsets", "kv_offsets",
                          "q_start", "lse", "entropy", "max_weight", "max_key")]


class Limits(Sized):
    _fields_ = [("struct_bytes", c.c_size_t),
                *[(name, c.c_int64) for name in ("batch", "q_len", "kv_len", "q_heads", "kv_heads",
                                                 "head_dim", "value_dim")],
                ("q_type", c.c_int32), ("kv_type", c.c_int32)]


class InspectArguments(Sized):
    _fields_ = [("struct_bytes", c.c_size_t), *pointers("weights", "heads"),
                ("first_query", c.c_int64), *pointers("received", "pooled")]


class LayerConfig(Sized):
    _fields_ = [("struct_bytes", c.c_size_t),
                *[(name, c.c_int64) for name in ("model_dim", "q_heads", "kv_heads", "head_dim",
                                                 "value_dim", "context_dim")],
                ("no_projections", c.c_int32), ("qk_norm", c.c_int32), ("norm_eps", c.c_float),
                ("weight_type", c.c_int32), *pointers("rope", "mask", "modifiers")]


class LayerWeights(Sized):
    _fields_ = [("struct_bytes", c.c_size_t),
                *pointers("w_q", "w_k", "w_v", "w_qkv", "w_o", "b_q", "b_k", "b_v", "b_qkv", "b_o",
                          "q_norm", "k_norm")]


class LayerCall(Sized):
    _fields_ = [("struct_bytes", c.c_size_t),
                *pointers("mask", "bias", "lengths", "context_lengths", "offsets", "positions", "lse",
                          "entropy", "max_weight", "max_key", "workspace")]


def view(array):
    """An array, in whatever strides numpy has it."""
    size = array.itemsize
    result = View(data=array.ctypes.data, element_type=ELEMENTS[array.dtype], axes=array.ndim)
    for axis in range(array.ndim):
        result.extents[axis] = array.shape[axis]
        result.strides[axis] = array.strides[axis] // size
    result.keep.append(array)
    return result


class Polyhead:
    """libpolyhead.so with an executor of `threads` threads; a failing call raises with the library's message."""

    def __init__(self, path, threads):
        self.lib = c.CDLL(str(path))
        self.lib.polyhead_last_error.restype = c.c_char_p
        self.lib.polyhead_isa_name.restype = c.c_char_p
        self.executor = self.create("executor_create_pool", threads)
        self.options = Options(executor=self.executor)

    def check(self, status):
        if status:
            raise RuntimeError(self.lib.polyhead_last_error().decode())

    def create(self, name, *arguments):
        handle = c.c_void_p()
        self.check(getattr(self.lib, "polyhead_" + name)(*arguments, c.byref(handle)))
        return handle

    def isa(self):
        isa = c.c_int32()
        self.check(self.lib.polyhead_resolve_isa(0, c.byref(isa)))
        return self.lib.polyhead_isa_name(isa).decode()

    def attention(self, q, k, v, out, **rest):
        """A function of no arguments that runs one call, planned here. Axes [batch, tokens, heads, dim]."""
        call = AttentionArguments(q=q, k=k, v=v, out=out, **rest)
        limits = Limits(batch=q.shape[0], q_len=q.shape[1], kv_len=k.shape[1], q_heads=q.shape[2],
                        kv_heads=k.shape[2], head_dim=q.shape[3], value_dim=v.shape[3],
                        q_type=ELEMENTS[q.dtype], kv_type=ELEMENTS[k.dtype])
        plan = self.create("plan_create", c.byref(limits), c.byref(self.options))
        workspace = self.create("workspace_create", plan)
        run, pointer = self.lib.polyhead_plan_run, c.byref(call)
        return lambda: self.check(run(plan, pointer, workspace))

    def inspect_weights(self, q, k, lse, weights):
        call = AttentionArguments(q=q, k=k, lse=lse)
        wanted = InspectArguments(weights=weights)
        run, pointers_ = self.lib.polyhead_inspect, (c.byref(call), c.byref(wanted), c.byref(self.options))
        return lambda: self.check(run(*pointers_))

    def layer(self, config, weights):
        return self.create("layer_create", c.byref(config), c.byref(weights), c.byref(self.options))

    def layer_forward(self, layer, x, y):
        call = LayerCall(workspace=self.create("layer_workspace_create"))
        run, x_view, y_view = self.lib.polyhead_layer_forward, view(x), view(y)
        return lambda: self.check(run(layer, c.byref(x_view), c.byref(y_view), c.byref(call)))

    def layer_with_weights(self, layer, x, y, weights, heads):
        """The five steps taken one at a time, with every head's weights: project, split, attend, inspect, output."""
        batch, tokens, model_dim = x.shape
        packed_dim = c.c_int64()
        self.check(self.lib.polyhead_layer_packed_dim(layer, c.byref(packed_dim)))
        packed = np.empty((batch, tokens, packed_dim.value), np.float32)
        attended = np.empty((batch, tokens, heads, model_dim // heads), np.float32)
        lse = np.empty((batch, tokens, heads), np.float32)
        views = {name: view(array) for name, array in
                 {"x": x, "y": y, "packed": packed, "attended": attended,
                  "concatenated": attended.reshape(batch, tokens, model_dim)}.items()}
        q, k, v = View(), View(), View()
        self.check(self.lib.polyhead_layer_split(layer, c.byref(views["packed"]), c.byref(q), c.byref(k),
                                                 c.byref(v)))
        call = LayerCall(lse=lse, workspace=self.create("layer_workspace_create"))
        inspected = AttentionArguments(q=q, k=k, lse=lse)
        wanted = InspectArguments(weights=weights)
        lib, by = self.lib, c.byref

        def run():
            self.check(lib.polyhead_layer_project(layer, by(views["x"]), by(views["packed"]), None))
            self.check(lib.polyhead_layer_attend(layer, by(q), by(k), by(v), by(views["attended"]),
                                                 by(call)))
            self.check(lib.polyhead_inspect(by(inspected), by(wanted), by(self.options)))
            self.check(lib.polyhead_layer_output(layer, by(views["concatenated"]), by(views["y"])))

        return run
