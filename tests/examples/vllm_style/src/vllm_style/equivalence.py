"""What equiv has to know of the kernel: whose place it takes, how it is called, what it does not do."""

from equiv.dsa_index.tensors import rows
from equiv.geometry.dsa import HEADS
from equiv.kernels import Kernel, tensor

KEY = "the kernel quantises the query; inserting the key is another one's work"

KERNEL = Kernel(
    pair="dsa_index",
    summary="the indexer's query to FP8, its scale folded into the head weights (a CuTe DSL kernel)",
    entry="vllm_style.indexer:quantise_query",
    packages=("nvidia-cutlass-dsl",),
    arguments={
        "query": tensor("q"),
        "weights": lambda case, tensors: tensors["projected"][:, rows(case)["weight_at"] :][:, :HEADS],
        "codes": tensor("q_out"),
        "folded": tensor("w_out"),
        "factor": 2.0**-6,
    },
    supports={"format": ("fp8",)},
    omits={"key_codes": KEY, "key_scale": KEY},
)
