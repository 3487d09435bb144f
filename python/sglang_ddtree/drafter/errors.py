"""What a user of the drafter commands can put right."""

from __future__ import annotations

import errno


class DrafterError(Exception):
    """A problem whose message says what to change; the commands print it and exit with 1."""


def explain_os_error(error: OSError) -> DrafterError:
    """A full disk, a missing file or a forbidden folder, in one sentence."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DrafterError(
            f"the disk is full{where}: free some space and run the same command again; "
            "everything finished so far is kept"
        )
    return DrafterError(f"{error.strerror or error}{where}")
