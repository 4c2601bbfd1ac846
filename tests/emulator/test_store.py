"""Images are found by their machine code, and only if they are undamaged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from equiv.emulator.store import Image, ImageStore, digest
from equiv.errors import RecordError

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = Image(b"\x7fELF cubin", ".version 9.3\n", "sm_90a", {"triton": "3.8.0"}, "axpy")


def test_an_image_is_found_again_by_another_store_of_the_same_folder(tmp_path: Path) -> None:
    name = ImageStore(tmp_path).put(IMAGE)
    assert name == digest(b"\x7fELF cubin")
    found = ImageStore(tmp_path).get(name)
    assert found == IMAGE


def test_an_unknown_image_is_none_or_an_error_with_the_folder(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    assert store.find("0" * 64) is None
    with pytest.raises(RecordError, match=f"image {'0' * 64}: not in {tmp_path}"):
        store.get("0" * 64)


def test_the_first_toolchain_of_a_cubin_stays(tmp_path: Path) -> None:
    ImageStore(tmp_path).put(IMAGE)
    name = ImageStore(tmp_path).put(Image(IMAGE.cubin, "other", "sm_90a", {"triton": "3.7.0"}))
    assert ImageStore(tmp_path).get(name).toolchain == {"triton": "3.8.0"}


def test_a_lent_image_is_gone_after_the_block_and_never_on_disk(tmp_path: Path) -> None:
    store, forged = ImageStore(tmp_path), Image(IMAGE.cubin, "forged", "sm_90a", {})
    with store.lent(forged):
        assert store.get(IMAGE.digest).ptx == "forged"
    assert (store.find(IMAGE.digest), list(tmp_path.iterdir())) == (None, [])
    store.put(IMAGE)
    with pytest.raises(ZeroDivisionError), store.lent(forged):
        raise ZeroDivisionError
    assert store.get(IMAGE.digest) == IMAGE


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("cubin", b"\x7fELF other", "the cubin beside .* has sha256 "),
        ("ptx", b".version 9.4\n", r"\$\.ptx is "),
        ("json", b"{", "cannot be read"),
        ("json", b"[" * 100_000, "cannot be read: maximum recursion depth exceeded"),
        ("json", b"[]", r"\$\.schema is \[\], this version reads 1"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, kind: str, data: bytes, said: str) -> None:
    name = ImageStore(tmp_path).put(IMAGE)
    (tmp_path / name[:2] / f"{name}.{kind}").write_bytes(data)
    with pytest.raises(RecordError, match=said):
        ImageStore(tmp_path).get(name)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("schema", 2, r"\$\.schema is 2, this version reads 1"),
        ("arch", "sm_80", r"\$\.arch is 'sm_80', known: sm_90a, sm_100a"),
        ("toolchain", {"triton": 3}, r"\$\.toolchain is \{'triton': 3\}, wanted names to versions"),
        ("kernel", 7, r"\$\.kernel is 7, wanted a name or null"),
    ],
)
def test_a_wrong_field_of_the_index_is_named(tmp_path: Path, key: str, value: object, said: str) -> None:
    name = ImageStore(tmp_path).put(IMAGE)
    path = tmp_path / name[:2] / f"{name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(RecordError, match=said):
        ImageStore(tmp_path).get(name)
