"""One upstream symbol that this project relies on."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pkgutil
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Seam:
    """One upstream symbol.

    Attributes:
        path: dotted path; the last part may be an attribute that a class sets on its instances.
        parameters: names that its signature must have, in any order; empty for attributes.
        why: what we do with it.
    """

    path: str
    parameters: tuple[str, ...]
    why: str

    def problem(self) -> str | None:
        """Why the installed SGLang does not fit, or ``None``."""
        try:
            target = pkgutil.resolve_name(self.path)
        except (ImportError, AttributeError) as error:
            if self._is_set_on_instances():
                return None
            return f"{self.path} is gone ({error}); it is needed to {self.why}"
        if not self.parameters:
            return None
        found = inspect.signature(target).parameters
        missing = [name for name in self.parameters if name not in found]
        if missing:
            return f"{self.path} lacks parameters {missing}; it is needed to {self.why}"
        return None

    def _is_set_on_instances(self) -> bool:
        """Whether the path's class, or one that it derives from, assigns or declares the name."""
        owner_path, _, name = self.path.rpartition(".")
        with contextlib.suppress(ImportError, AttributeError, ValueError):
            owner = pkgutil.resolve_name(owner_path)
            if inspect.isclass(owner):
                assigns = re.compile(rf"\bself\.{name}\b[^=\n]*=(?!=)")
                return any(
                    name in vars(each).get("__annotations__", ()) or assigns.search(_source(each))
                    for each in owner.__mro__
                )
        return False


@functools.cache  # finding a class in its file takes a tenth of a second
def _source(owner: type) -> str:
    try:
        return inspect.getsource(owner)
    except (OSError, TypeError):  # a builtin has none
        return ""
