"""batchata's complete example: invoices as objects, with the page that each field is from.

python examples/from/batchata_structured.py examples/invoices/*.pdf
"""

from argparse import ArgumentParser

from pydantic import BaseModel

import claude_batch as cb


class InvoiceAnalysis(BaseModel):
    invoice_number: str
    total_amount: float
    vendor: str
    payment_status: str


parser = ArgumentParser(description=__doc__)
parser.add_argument("paths", nargs="+")
extractor = cb.make_actor(
    "claude-sonnet-4-5", options={"temperature": 0.0}, budget_usd=5, max_wait="10m"
)
requests = [
    cb.ActorRequest(
        "Extract the invoice number, total amount, vendor name, and payment status.",
        documents=[path],
        citations=True,
        key=path,
    )
    for path in parser.parse_args().paths
]
with (
    extractor,
    extractor.run(
        requests, output_format=InvoiceAnalysis, progress=True, results_dir="invoice_results"
    ) as run,
):
    for result in run:
        if result.response is None:
            print(f"{result.key} failed: {result.error}")
            continue
        invoice = result.response.parsed_output
        print(f"{result.key}: {invoice.invoice_number} of {invoice.vendor}")
        for field, citations in result.response.field_citations.items():
            pages = ", ".join(citation.place for citation in citations)
            print(f"  {field}: {getattr(invoice, field)} ({pages})")
