"""`python -m broken_import MODULE found|loaded ARGUMENT...`: the command `equiv` where a module cannot be imported.

`found`: whoever looks for it gets an ImportError. `loaded`: it is found, and a library that it needs is not there.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


class Broken(MetaPathFinder, Loader):
    """Stands in front of every other finder."""

    def __init__(self, module: str, how: str) -> None:
        self.module = module
        self.how = how

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] != self.module:
            return None
        if self.how == "found":
            raise ImportError(f"{name} must not\nbe looked for")
        return ModuleSpec(name, self, is_package=True)

    def exec_module(self, _module: ModuleType) -> None:
        raise OSError("libmissing.so: cannot open\nshared object file")


if __name__ == "__main__":
    sys.meta_path.insert(0, Broken(*sys.argv[1:3]))
    from equiv import cli

    sys.exit(cli.main(sys.argv[3:]))
