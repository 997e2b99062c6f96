"""The error for a request that is answered at the door."""

from __future__ import annotations

from k3stack.errors import InputError

__all__ = ["RefusedError"]


class RefusedError(InputError):
    """A request that must not reach the upstream; `status` is the HTTP status for the client."""

    def __init__(self, what: str, *, where: str, hint: str | None = None, status: int = 400) -> None:
        super().__init__(what, where=where, hint=hint)
        self.status = status
