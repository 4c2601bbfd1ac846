"""Control characters in text of others."""

from __future__ import annotations

from equiv.terminal import kernel_name, visible


def test_control_characters_are_spelt_out_and_lines_tabs_and_letters_stay() -> None:
    shown = visible("a\x1b[2Jb\r\x00\x7f\x9b\n\tc \u00b1 \\x1b")
    assert shown == "a\\x1b[2Jb\\r\\x00\\x7f\\x9b\n\tc \u00b1 \\x1b"


def test_a_kernel_s_name_is_what_people_call_it() -> None:
    assert kernel_name("kernel_cutlass_kernel_equivcutekdawsKdaWS_object_at__tensorptrbf16gmemoi641_0") == "KdaWS"
    assert kernel_name("kernel_cutlass_double_tensorptrf32gmem_0") == "double"
    assert kernel_name("verify_kernel") == "verify_kernel"
    assert kernel_name("my_tensorptr_kernel") == "my_tensorptr_kernel"
