"""Control characters in text of others."""

from __future__ import annotations

from equiv.terminal import visible


def test_control_characters_are_spelt_out_and_lines_tabs_and_letters_stay() -> None:
    shown = visible("a\x1b[2Jb\r\x00\x7f\x9b\n\tc \u00b1 \\x1b")
    assert shown == "a\\x1b[2Jb\\r\\x00\\x7f\\x9b\n\tc \u00b1 \\x1b"
