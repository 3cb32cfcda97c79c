"""What `outbox consume` calls: one result, in one transaction with your own rows."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

from outbox import Settlement


def apply(session: Session, settlement: Settlement) -> None:
    """Carries a charge's business status into the invoices; it must not commit."""
    session.execute(
        text("UPDATE invoices SET status = :status WHERE id = :id"),
        {
            "id": settlement.identity["invoice_id"],
            "status": settlement.business_status or settlement.told,
        },
    )
