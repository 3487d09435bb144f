"""The exception that is HTTP 400 wherever SGLang's API servers meet it."""

from __future__ import annotations

from fastapi import HTTPException


class BadRequest(HTTPException, ValueError):
    """A request that can't be served, and what to change in it.

    SGLang's handlers answer a ``ValueError`` with HTTP 400 where they look for one; everywhere
    else FastAPI answers an ``HTTPException`` with its own status.
    """

    def __init__(self, message: str) -> None:
        super().__init__(status_code=400, detail=message)

    def __str__(self) -> str:
        return self.detail
