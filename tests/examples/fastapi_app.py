"""FastAPI and an AsyncSession: uvicorn tests.examples.fastapi_app:app"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy import update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outbox import Outbox, OutboxError, Scope
from resolvers.receiving import Receiver
from tests.examples.charge import charge
from tests.examples.refusals import refusal
from workers.web import build_app

outbox, receiver = Outbox.from_env(), Receiver.from_env()
engine = create_async_engine(outbox.settings.database_url)
transaction = async_sessionmaker(engine).begin


class Base(DeclarativeBase):
    """The application's own tables."""


class Invoice(Base):
    """What a customer owes."""

    __tablename__ = "invoices"
    id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str]


@asynccontextmanager
async def _life(_: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()
    outbox.close()
    receiver.close()


app = FastAPI(lifespan=_life)
app.mount("/outbox", build_app(receiver))  # the vendor posts to /outbox/webhooks/stripe/default


@app.exception_handler(OutboxError)
async def refuse(_: Request, error: OutboxError) -> JSONResponse:
    """Bad input is the caller's to mend: 4xx with the field, and nothing was recorded."""
    status, body = refusal(error)
    return JSONResponse(body, status)


@app.post("/invoices/{invoice_id}/charge")
async def charge_invoice(invoice_id: str, payment: dict[str, Any]) -> dict[str, Any]:
    """Records the charge beside the invoice, in one transaction; tells what is known of it."""
    args = {**payment, "invoice_id": invoice_id}
    async with transaction() as session:
        intent = await outbox.aenqueue(session, charge, Scope(tenant="acme", run_id="app"), args)
        new = insert(Invoice).values(id=invoice_id, status="collecting")
        await session.execute(new.on_conflict_do_nothing())  # a retry leaves what is booked
    return (await outbox.await_settled(intent)).as_json()


@app.post("/results")
async def book_results() -> dict[str, int]:
    """Carries each result into the invoices, once; a timer calls this."""
    async with transaction() as session:
        results = await session.run_sync(lambda plain: outbox.settlements(plain, "billing"))
        for result in results:
            if (result.tool, result.tenant) == (charge.name, "acme"):  # others' come here too
                its = update(Invoice).where(Invoice.id == str(result.identity.get("invoice_id")))
                await session.execute(its.values(status=result.business_status or result.told))
    return {"booked": len(results)}
