"""Text of others (parties, compilers, files) as it can be shown on a terminal."""

from __future__ import annotations

import re

_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def visible(text: str) -> str:
    r"""The text with control characters spelt out, newline and tab excepted: what was ESC reads `\x1b`."""
    return text.translate(_ESCAPES)


def kernel_name(symbol: str) -> str:
    """A kernel's symbol without the types of all arguments that CuTe DSL appends: `kernel_cutlass_f_equivKdaWS...`."""
    return re.sub(r"^(kernel_cutlass_\w+?)(_object_at_|_tensorptr)\w*$", r"\1...", symbol)
