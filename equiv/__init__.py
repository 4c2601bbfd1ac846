"""equiv: does a GPU kernel compute the same numbers as the one it replaces, bit for bit, with or without a GPU?

    case = equiv.load_cases("cases/dsa_index.toml")[0]
    verdict = equiv.verify(equiv.pair(case.pair), case, equiv.device("emulated:sm_100a"))

Importing this loads neither torch nor a compiler; the names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equiv.casefile import load as load_cases
    from equiv.device import device
    from equiv.errors import EquivError
    from equiv.pairs import get as pair
    from equiv.records import Case, Status, Verdict
    from equiv.verify import verify

__all__ = ["Case", "EquivError", "Status", "Verdict", "__version__", "device", "load_cases", "pair", "verify"]

_HOME = {
    "Case": ("equiv.records", "Case"),
    "EquivError": ("equiv.errors", "EquivError"),
    "Status": ("equiv.records", "Status"),
    "Verdict": ("equiv.records", "Verdict"),
    "device": ("equiv.device", "device"),
    "load_cases": ("equiv.casefile", "load"),
    "pair": ("equiv.pairs", "get"),
    "verify": ("equiv.verify", "verify"),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  whatever the name stands for
    if name == "__version__":
        from importlib.metadata import version

        return version("equiv")
    if name not in _HOME:
        raise AttributeError(f"module 'equiv' has no attribute {name!r}")
    module, attribute = _HOME[name]
    return getattr(importlib.import_module(module), attribute)


class _CallableModule(ModuleType):
    """A module named like its one public function, callable as that function."""

    def __call__(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **options)


class _Package(ModuleType):
    """Keeps `equiv.device(...)` callable: importing the submodule `equiv.device` puts it in place of the function."""

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401
        if isinstance(value, ModuleType) and name in _HOME:
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
