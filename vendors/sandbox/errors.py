"""A refused request, as Stripe words it."""

from __future__ import annotations

from typing import Any


class Refusal(Exception):
    """An error answer. `executed`: execution had begun, so it is stored under the key.

    `details` are further fields of the error object (decline_code, payment_intent, charge).
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        executed: bool = False,
        headers: dict[str, str] | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.executed = executed
        self.headers = headers or {}
        self.error: dict[str, Any] = {"message": message, "type": type}
        for name, value in (("code", code), ("param", param), *details.items()):
            if value is not None:
                self.error[name] = value


def missing(what: str, object_id: str, param: str, status: int = 400) -> Refusal:
    """No such object: found before execution begins, so never stored under a key."""
    return Refusal(status, f"No such {what}: '{object_id}'", code="resource_missing", param=param)
