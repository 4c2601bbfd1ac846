"""flash-linear-attention's fused KDA recurrence as a kernel for the pair `kda`.

The pair's step is projection, convolution, recurrence and gated norm. Only the recurrence is fla's here; the other
three stages are the stock kernels of the oracle, so what differs is the recurrence.
"""

from dataclasses import replace

from equiv.kernels import Kernel
from equiv.rounding.declarations import find


def declaration(toolchain, arch, form):
    """What fla-core 0.6.0 is known to do: for sm_90a the same orders and variants as the stock one-token kernel."""
    if toolchain["fla-core"] != "0.6.0" or arch != "sm_90a":
        return None
    stock = find("kda", "oracle", toolchain, arch, form)
    return stock and replace(stock, party="fla")


KERNEL = Kernel(
    pair="kda",
    summary="the stock chain with flash-linear-attention's fused recurrence in the middle",
    entry="fla_kda.step:step",
    packages=("triton", "fla-core"),
    supports={"mode": ("step",)},
    declaration=declaration,
    forms=("packed", "packed-bf16"),
    form=lambda case: "packed" if case.axes["state"] == "f32" else "packed-bf16",
)
