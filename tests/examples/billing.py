"""What `outbox consume` calls: one result, in one transaction with your own rows."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

from outbox import Settlement
from tests.examples.charge import charge


def apply(session: Session, settlement: Settlement) -> None:
    """Carries a charge's business status into the invoices; it must not commit."""
    if (settlement.tool, settlement.tenant) != (charge.name, "acme"):
        return  # the results of every tool and tenant come here
    session.execute(
        text("UPDATE invoices SET status = :status WHERE id = :id"),
        {
            "id": str(settlement.identity.get("invoice_id")),
            "status": settlement.business_status or settlement.told,
        },
    )
