"""One com.microsoft operator of ONNX Runtime as a function: what bench/peers.py and bench/cache_peers.py share."""
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

ONNX_TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16,
              np.dtype(np.int32): TensorProto.INT32, np.dtype(np.int8): TensorProto.INT8}


def run_operator(operator, attributes, inputs, outputs, threads):
    """A function that runs one com.microsoft operator; inputs and outputs {name: array}, None for a gap. An array named
    twice is shared, as a cache that is appended to where it lies."""
    def info(name, array):
        return helper.make_tensor_value_info(name, ONNX_TYPES[array.dtype], array.shape)

    given = {name: array for name, array in inputs.items() if array is not None}
    node = helper.make_node(operator, [name if name in given else "" for name in inputs], list(outputs),
                            domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], operator, [info(*item) for item in given.items()],
                              [info(*item) for item in outputs.items()])
    model = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in given.items():
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    for name, array in outputs.items():
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    keep = (given, outputs)
    return lambda: (session.run_with_iobinding(binding), keep) and None
