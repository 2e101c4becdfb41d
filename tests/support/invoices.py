"""The example of an invoice: a schema, and a prompt that the built-in model answers rightly."""

import json
from pathlib import Path

SCHEMA_FILE = Path(__file__).parents[2] / "examples" / "invoice.json"
SCHEMA = json.loads(SCHEMA_FILE.read_text())
PROMPT = (
    "Extract invoice_id, customer, total, paid as JSON. "
    "Invoice AK-4071 for Silver Robotics came to 218.50 euros and has been paid."
)
INVOICE = {"invoice_id": "AK-4071", "customer": "Silver Robotics", "total": 218.5, "paid": True}
