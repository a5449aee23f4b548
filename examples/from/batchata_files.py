"""batchata's demo of files: invoices that are written on the spot, and a line of progress.

python examples/from/batchata_files.py
"""

import random
import tempfile
from pathlib import Path

from pydantic import BaseModel

import claude_batch as cb


class InvoiceAnalysis(BaseModel):
    invoice_number: str
    total_amount: float
    vendor: str
    payment_status: str


def invoice(number: int) -> str:
    """The text of an invoice of some vendor."""
    return f"""INVOICE #INV-2024-{number:03d}
Vendor: {random.choice(["Sails & Sons", "Harbour Office", "Print Shop"])}
Total: ${random.randint(100, 1000)}.00
Payment Status: {random.choice(["PAID", "PENDING", "OVERDUE"])}"""


extractor = cb.make_actor(
    "claude-sonnet-4-5", options={"temperature": 0.7}, budget_usd=5, max_requests=1
)
prompt = "Extract the invoice number, total amount, vendor name, and payment status."
with tempfile.TemporaryDirectory() as folder, extractor:
    paths = [Path(folder) / f"invoice_{number:03d}.txt" for number in range(1, 4)]
    for number, path in enumerate(paths, 1):
        path.write_text(invoice(number))
    requests = [cb.ActorRequest(prompt, documents=[path], citations=True) for path in paths]
    run = extractor.submit_sync(requests, output_format=InvoiceAnalysis)
    run.wait_sync(
        progress=lambda now: print(f"\rProgress: {now.done:.0%}, ${now.cost_usd:.3f}", end="")
    )
    for result in run:
        if result.response is None:
            print(f"\n{result.position} failed: {result.error}")
            continue
        found = result.response.parsed_output
        print(f"\nInvoice: {found.invoice_number} of {found.vendor}")
        print(f"  Total: ${found.total_amount:.2f}, {found.payment_status}")
        for citation in result.response.citations[:2]:
            print(f"  - {citation.text[:50]}…")
