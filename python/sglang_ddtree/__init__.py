"""DDTree speculative decoding for stock SGLang."""

from __future__ import annotations

__version__ = "0.1.0"
