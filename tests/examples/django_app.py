"""Django on psycopg 3 in one file: python -m tests.examples.django_app runserver"""

from __future__ import annotations

import json
import sys
from typing import Any

from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.db import connection, models, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from psycopg.conninfo import conninfo_to_dict

from outbox import Invalid, Outbox, OutboxError, Scope
from resolvers.receiving import Receiver
from tests.examples.charge import charge
from tests.examples.refusals import refusal

outbox, receiver = Outbox.from_env(), Receiver.from_env()
address = conninfo_to_dict(outbox.settings.database_url.replace("+psycopg", ""))
postgres = {"ENGINE": "django.db.backends.postgresql", "NAME": address.pop("dbname")}
settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {**postgres, "OPTIONS": address}},
    ROOT_URLCONF=__name__,
)
application = get_wsgi_application()


class Invoice(models.Model):
    """What a customer owes."""

    id = models.TextField(primary_key=True)
    status = models.TextField()

    class Meta:
        app_label, db_table = "shop", "invoices"


@csrf_exempt
def charge_invoice(request: HttpRequest, invoice_id: str) -> HttpResponse:
    """Records the charge beside the invoice, in one transaction; tells what is known of it."""
    try:
        args = {**_object(request.body), "invoice_id": invoice_id}
        with transaction.atomic():
            scope = Scope(tenant="acme", run_id="app")
            intent = outbox.enqueue(connection.connection, charge, scope, args)  # psycopg's beneath
            # A retry leaves what is booked.
            Invoice.objects.get_or_create(id=invoice_id, defaults={"status": "collecting"})
            transaction.on_commit(outbox.ring)
    except OutboxError as error:
        status, body = refusal(error)  # bad input: 4xx with the field, and nothing was recorded
        return JsonResponse(body, status=status)
    return JsonResponse(outbox.wait(intent).as_json())


def _object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises ``Invalid``."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Invalid("body", "must be a JSON object")
    return found


@csrf_exempt
def webhook(request: HttpRequest, vendor: str, account: str) -> HttpResponse:
    """Takes the vendor's events: the raw bytes go in, and its answer goes back."""
    status, text = receiver.receive(vendor, account, request.headers, request.body)
    return HttpResponse(text, status=status, content_type="text/plain")


def book_results() -> int:
    """Carries each result into the invoices, once; a timer calls this."""
    with transaction.atomic():
        results = outbox.settlements(connection.connection, "billing")
        for result in results:
            if (result.tool, result.tenant) == (charge.name, "acme"):  # others' come here too
                its = Invoice.objects.filter(id=str(result.identity.get("invoice_id")))
                its.update(status=result.business_status or result.told)
    return len(results)


urlpatterns = [
    path("invoices/<invoice_id>/charge", charge_invoice),
    path("webhooks/<vendor>/<account>", webhook),
]
if __name__ == "__main__":
    if "invoices" not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(Invoice)
    execute_from_command_line(sys.argv)
