"""Control characters in text of others."""

from __future__ import annotations

from equiv.terminal import kernel_name, visible


def test_control_characters_are_spelt_out_and_lines_tabs_and_letters_stay() -> None:
    shown = visible("a\x1b[2Jb\r\x00\x7f\x9b\n\tc \u00b1 \\x1b")
    assert shown == "a\\x1b[2Jb\\r\\x00\\x7f\\x9b\n\tc \u00b1 \\x1b"


def test_a_mangled_kernel_name_loses_its_argument_types_and_others_stay() -> None:
    stem = "kernel_cutlass_kernel_equivcutekdawsKdaWS"
    assert kernel_name(f"{stem}_object_at__tensorptrbf16gmemoi641_tensorptrf32gmemo1_0") == f"{stem}..."
    assert kernel_name("kernel_cutlass_scale_tensorptrf32gmemo1_0") == "kernel_cutlass_scale..."
    assert kernel_name("verify_kernel") == "verify_kernel"
    assert kernel_name("my_tensorptr_kernel") == "my_tensorptr_kernel"
