"""GPUs of xdist workers."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from equiv import pytest_plugin
from equiv.errors import UsageError

ROOT_CONFTEST = Path(__file__).parent.parent / "conftest.py"


def visible(monkeypatch: pytest.MonkeyPatch, devices: str | None, worker: str | None) -> str | None:
    """What CUDA_VISIBLE_DEVICES is once the root conftest was loaded."""
    for name, value in (("CUDA_VISIBLE_DEVICES", devices), ("PYTEST_XDIST_WORKER", worker)):
        monkeypatch.setenv(name, value or "")  # known to monkeypatch, so that what is written is taken back, too
        if value is None:
            monkeypatch.delenv(name)
    spec = importlib.util.spec_from_file_location("root_conftest", ROOT_CONFTEST)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def configured(device: str) -> None:
    """Lets the plugin see `--equiv-device`."""
    options = {"equiv_device": [device]}
    config = SimpleNamespace(
        getoption=lambda name: options.get(name, []),
        pluginmanager=SimpleNamespace(register=lambda *_: None),
    )
    pytest_plugin.pytest_configure(config)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("devices", "worker", "pinned"),
    [
        ("0,1,2,3", "gw1", "1"),
        ("4,6", "gw3", "6"),
        ("GPU-8f1c,GPU-22ab", "gw0", "GPU-8f1c"),
        ("MIG-4f1c/1/0, MIG-4f1c/2/0", "gw1", "MIG-4f1c/2/0"),
        ("", "gw1", ""),
        ("0,1", None, "0,1"),
        ("0,1", "main", "0,1"),
        (None, "gw0", None),
    ],
)
def test_a_worker_gets_one_entry_of_the_caller_s_list(
    monkeypatch: pytest.MonkeyPatch, devices: str | None, worker: str | None, pinned: str | None
) -> None:
    assert visible(monkeypatch, devices, worker) == pinned


def test_loading_it_loads_no_cuda_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(sys.modules)
    visible(monkeypatch, "0,1", "gw0")
    assert not {
        name for name in set(sys.modules) - before if name.split(".")[0] in {"torch", "triton", "cuda", "cutlass"}
    }


def test_a_bad_list_is_refused_with_the_entry_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES=0,one: entry 2, 'one', is no index"):
        visible(monkeypatch, "0,one", "gw0")
    assert visible(monkeypatch, "0,one", None) == "0,one"


def test_the_plugin_pins_xdist_workers_also_where_the_caller_lists_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # known to monkeypatch, as above
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw3")
    monkeypatch.setattr("equiv.gpus.count", lambda _environment: 2)
    configured("cuda")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize(("device", "pinned"), [("cuda", "6"), ("cuda:0", "4,6"), ("emulated:sm_90a", "4,6")])
def test_the_plugin_pins_xdist_workers_of_anybody_s_repository_when_all_gpus_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, device: str, pinned: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw3")
    configured(device)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == pinned
