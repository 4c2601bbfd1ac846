"""What a bundle says of itself, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equiv.bundle.contents import Bundle


def render(bundle: Bundle) -> str:
    """The verdict, how the inputs were changed, the versions, and how often it was run before it was offered."""
    lines = bundle.said.splitlines()
    lines += [f"  inputs    {bundle.changed}"] if bundle.changed else []
    lines.append("  with      " + ", ".join(f"{name} {version}" for name, version in bundle.environment.items()))
    lines.append(f"  recorded  on {bundle.device}; reproduced {bundle.equal}/{bundle.runs} in fresh processes")
    return "\n".join(lines)
