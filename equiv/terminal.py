"""Text of others (parties, compilers, files) as it can be shown on a terminal."""

from __future__ import annotations

import re

_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def visible(text: str) -> str:
    r"""The text with control characters spelt out, newline and tab excepted: what was ESC reads `\x1b`."""
    return text.translate(_ESCAPES)


def kernel_name(symbol: str) -> str:
    """What a person called a kernel: its symbol without what CuTe DSL puts around it, the types of all arguments."""
    found = re.match(r"kernel_cutlass_\w+?_\w*?([A-Z]\w*?)_object_at_", symbol)
    return found[1] if found else re.sub(r"^kernel_cutlass_(\w+?)_tensorptr\w*$", r"\1", symbol)
