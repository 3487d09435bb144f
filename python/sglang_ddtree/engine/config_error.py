"""Why a server can't start with its settings."""

from __future__ import annotations


class DDTreeConfigError(ValueError):
    """A server setting that DDTREE can't serve; the message says what to change."""


def stop_on(problems: list[str]) -> None:
    """Raise one ``DDTreeConfigError`` of all reasons, if there are any."""
    if problems:
        raise DDTreeConfigError(
            "DDTREE can't serve this configuration:\n" + "\n".join(f"  - {p}" for p in problems)
        )
