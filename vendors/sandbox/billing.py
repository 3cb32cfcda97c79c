"""Invoices, invoice items, subscriptions, checkout sessions, products and prices."""

from __future__ import annotations

from vendors.sandbox.errors import Refusal, missing
from vendors.sandbox.execution import Execution
from vendors.sandbox.ledger import Json
from vendors.sandbox.params import listed
from vendors.sandbox.payments import DECLINED, expect, payment_method

_PRICE_OF_UNKNOWN = 1000


def create_invoice_item(x: Execution, _: str) -> Json:
    invoice = x.params.get("invoice")
    if invoice:
        expect(x.find("invoices", invoice, "invoice"), "change", "draft")
    amount = x.params.get("amount", 0)
    line = x.create(
        "invoiceitems",
        {
            "amount": amount,
            "currency": x.params.get("currency", "usd").lower(),
            "customer": x.customer(),
            "date": int(x.at),
            "description": x.params.get("description"),
            "invoice": invoice,
            "quantity": x.params.get("quantity", 1),
        },
    )
    if invoice:
        _add_to_invoice(x, invoice, amount)
    x.effect("create", line)
    x.emit("invoiceitem.created", line)
    return line


def _add_to_invoice(x: Execution, invoice_id: str, amount: int) -> None:
    invoice = x.find("invoices", invoice_id, "invoice")
    total = invoice["total"] + amount
    x.update(invoice, total=total, amount_due=total, amount_remaining=total, subtotal=total)


def create_invoice(x: Execution, _: str) -> Json:
    invoice = _new_invoice(x, x.customer(), x.params.get("currency", "usd"))
    if x.params.get("pending_invoice_items_behavior") == "include":
        rows = x.ledger.all(
            "select id from objects where account = ? and kind = 'invoiceitems'"
            " and json_extract(body, '$.customer') = ? and json_extract(body, '$.invoice') is null",
            x.account, invoice["customer"],
        )  # fmt: skip
        for row in rows:
            line = x.find("invoiceitems", row["id"], "invoiceitem")
            x.update(line, invoice=invoice["id"])
            _add_to_invoice(x, invoice["id"], line["amount"])
        invoice = x.find("invoices", invoice["id"], "invoice")
    x.effect("create", invoice, invoice["total"])
    x.emit("invoice.created", invoice)
    return invoice


def _new_invoice(x: Execution, customer: str | None, currency: str) -> Json:
    names = ("description", "days_until_due", "due_date", "default_payment_method", "footer")
    return x.create(
        "invoices",
        {
            "amount_due": 0,
            "amount_paid": 0,
            "amount_remaining": 0,
            "auto_advance": x.params.get("auto_advance", False),
            "collection_method": x.params.get("collection_method", "charge_automatically"),
            "currency": currency.lower(),
            "customer": customer,
            "number": None,
            "payment_intent": None,
            "status": "draft",
            "subtotal": 0,
            "total": 0,
            **{name: x.params.get(name) for name in names},
        },
    )


def finalize_invoice(x: Execution, object_id: str) -> Json:
    invoice = x.find("invoices", object_id, "invoice")
    expect(invoice, "finalize", "draft")
    number = f"SBX-{object_id[-8:].upper()}"
    x.update(invoice, status="open", number=number)
    x.effect("finalize", invoice, invoice["amount_due"])
    x.emit("invoice.finalized", invoice)
    if invoice["amount_due"] == 0:
        _paid(x, invoice)
    return invoice


def pay_invoice(x: Execution, object_id: str) -> Json:
    invoice = x.find("invoices", object_id, "invoice")
    expect(invoice, "pay", "draft", "open")
    if x.params.get("paid_out_of_band") is not True and invoice["amount_due"] > 0:
        method = (
            payment_method(x.params.get("payment_method"))
            or invoice["default_payment_method"]
            or "pm_card_visa"
        )
        if method in DECLINED:
            x.effect("pay", invoice, invoice["amount_due"], outcome="declined")
            x.emit("invoice.payment_failed", invoice)
            raise Refusal(
                402, "Your card was declined.", type="card_error", code=DECLINED[method][0],
                executed=True, decline_code=DECLINED[method][1], invoice=invoice,
            )  # fmt: skip
    x.effect("pay", invoice, invoice["amount_due"])
    _paid(x, invoice)
    x.emit("invoice.payment_succeeded", invoice)
    return invoice


def _paid(x: Execution, invoice: Json) -> None:
    x.update(invoice, status="paid", amount_paid=invoice["amount_due"], amount_remaining=0)
    x.emit("invoice.paid", invoice)


def void_invoice(x: Execution, object_id: str) -> Json:
    invoice = x.find("invoices", object_id, "invoice")
    expect(invoice, "void", "open")
    x.update(invoice, status="void")
    x.effect("void", invoice, invoice["amount_due"])
    x.emit("invoice.voided", invoice)
    return invoice


def create_subscription(x: Execution, _: str) -> Json:
    lines, total = [], 0
    for wanted in listed(x.params["items"]):
        price_id = wanted.get("price") if isinstance(wanted, dict) else None
        if not price_id or not price_id.startswith("price_"):
            raise missing("price", str(price_id), "items[0][price]")
        price = x.ledger.load(x.account, "prices", price_id) or {
            "id": price_id, "object": "price", "unit_amount": _PRICE_OF_UNKNOWN, "currency": "usd",
        }  # fmt: skip
        quantity = int(wanted.get("quantity", 1))
        total += price["unit_amount"] * quantity
        line_id = x.ledger.new_id("si_")
        lines.append(
            {"id": line_id, "object": "subscription_item", "price": price, "quantity": quantity}
        )
    customer = x.customer()
    invoice = _new_invoice(x, customer, "usd")
    x.update(invoice, amount_due=total, total=total, subtotal=total, status="open")
    items = {"object": "list", "data": lines, "has_more": False, "url": "/v1/subscription_items"}
    subscription = x.create(
        "subscriptions",
        {
            "cancel_at_period_end": x.params.get("cancel_at_period_end", False),
            "canceled_at": None,
            "collection_method": x.params.get("collection_method", "charge_automatically"),
            "currency": "usd",
            "customer": customer,
            "default_payment_method": x.params.get("default_payment_method"),
            "description": x.params.get("description"),
            "items": items,
            "latest_invoice": invoice["id"],
            "start_date": int(x.at),
            "status": "active",
        },
    )  # fmt: skip
    x.emit("customer.subscription.created", subscription)
    x.emit("invoice.created", invoice)
    if subscription["status"] == "active":
        _paid(x, invoice)
    x.effect("create", subscription, total)
    return subscription


def cancel_subscription(x: Execution, object_id: str) -> Json:
    subscription = x.find("subscriptions", object_id, "id")
    expect(subscription, "cancel", "active", "incomplete", "trialing", "past_due", "unpaid")
    x.update(subscription, status="canceled", canceled_at=int(x.at))
    x.effect("cancel", subscription)
    x.emit("customer.subscription.deleted", subscription)
    return subscription


def create_session(x: Execution, _: str) -> Json:
    mode = x.params["mode"]
    if mode not in ("payment", "setup", "subscription"):
        raise Refusal(400, f"Invalid mode: {mode}", param="mode")
    total = 0
    for line in listed(x.params.get("line_items")):
        price_data = line.get("price_data") or {}
        unit = int(price_data.get("unit_amount", _PRICE_OF_UNKNOWN))
        total += unit * int(line.get("quantity", 1))
    session = x.create(
        "checkout/sessions",
        {
            "amount_total": total,
            "cancel_url": x.params.get("cancel_url"),
            "client_reference_id": x.params.get("client_reference_id"),
            "currency": x.params.get("currency", "usd"),
            "customer": x.customer(),
            "expires_at": x.params.get("expires_at", int(x.at) + 86400),
            "mode": mode,
            "payment_intent": None,
            "payment_status": "unpaid",
            "status": "open",
            "success_url": x.params.get("success_url"),
            "url": f"http://127.0.0.1/pay/{x.ledger.new_id('')}",
        },
    )
    x.effect("create", session, total)
    return session


def expire_session(x: Execution, object_id: str) -> Json:
    session = x.find("checkout/sessions", object_id, "session")
    expect(session, "expire", "open")
    x.update(session, status="expired", url=None)
    x.effect("expire", session)
    x.emit("checkout.session.expired", session)
    return session


def create_product(x: Execution, _: str) -> Json:
    names = ("description", "default_price", "tax_code", "url")
    fields = {name: x.params.get(name) for name in names}
    product = x.create("products", {"active": True, "name": x.params["name"], **fields})
    x.effect("create", product)
    x.emit("product.created", product)
    return product


def create_price(x: Execution, _: str) -> Json:
    recurring = x.params.get("recurring")
    price = x.create(
        "prices",
        {
            "active": True,
            "currency": x.params["currency"].lower(),
            "lookup_key": x.params.get("lookup_key"),
            "nickname": x.params.get("nickname"),
            "product": x.params.get("product") or x.ledger.new_id("prod_"),
            "recurring": recurring,
            "type": "recurring" if recurring else "one_time",
            "unit_amount": x.params.get("unit_amount", 0),
        },
    )
    x.effect("create", price, price["unit_amount"])
    x.emit("price.created", price)
    return price
