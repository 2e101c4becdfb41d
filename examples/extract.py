"""Data from a sentence, as an object of a class of your own.

python scripts/serve.py &
python examples/extract.py
"""

import os

from openai import OpenAI
from pydantic import BaseModel

SENTENCE = "Invoice AK-4071 for Silver Robotics came to 218.50 euros and has been paid."


class Invoice(BaseModel):
    invoice_id: str
    customer: str
    total: float
    paid: bool


def main(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=client.models.list().data[0].id,
        messages=[
            {
                "role": "user",
                "content": f"Extract {', '.join(Invoice.model_fields)} as JSON. {SENTENCE}",
            }
        ],
        response_format=Invoice,
        temperature=0,
    )
    invoice = answer.choices[0].message.parsed
    if invoice is None:
        raise SystemExit(f"no invoice: the answer ended by {answer.choices[0].finish_reason}")
    print(f"{invoice.invoice_id}: {invoice.customer} owes {0 if invoice.paid else invoice.total}")


if __name__ == "__main__":
    url = os.environ.get("DLM_URL", "http://127.0.0.1:8000/v1")
    main(OpenAI(base_url=url, api_key=os.environ.get("DLM_API_KEY", "none")))
