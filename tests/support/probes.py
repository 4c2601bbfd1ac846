"""Small PTX kernels for tests of the front end: a body between loads of `%f0` to `%f5` and stores."""

from __future__ import annotations

VERSIONS = {"sm_90a": "8.8", "sm_100a": "9.3"}


def header(arch: str) -> str:
    return f".version {VERSIONS[arch]}\n.target {arch}\n.address_size 64\n"


def probe(name: str, body: str) -> str:
    """A kernel with parameters P (an address, read into %p) and Q (a float32), and declared registers of every kind."""
    loads = "\n".join(f"ld.global.f32 %f{i}, [%p+{4 * i}];" for i in range(6))
    return f"""
.visible .entry {name}(.param .u64 P, .param .f32 Q) .reqntid 32 {{
.reg .f32 %f<40>; .reg .b64 %d<9>; .reg .b64 %p; .reg .pred %q<9>; .reg .b32 %r<20>; .reg .b16 %h<9>;
ld.param.u64 %p, [P];
cvta.to.global.u64 %p, %p;
{loads}
{body}
ret;
}}
"""


def store(register: int, offset: int) -> str:
    return f"st.global.f32 [%p+{offset}], %f{register};"
