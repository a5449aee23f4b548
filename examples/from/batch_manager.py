"""BatchManager's invoices: nested items, citations of each value, a cost limit and a retry.

python examples/from/batch_manager.py examples/invoices/*.pdf
"""

from argparse import ArgumentParser

from pydantic import BaseModel

import claude_batch as cb


class LineItem(BaseModel):
    description: str
    quantity: int
    unit_price: float
    total: float


class Invoice(BaseModel):
    invoice_number: str
    company_name: str
    total_amount: float
    line_items: list[LineItem]


parser = ArgumentParser(description=__doc__)
parser.add_argument("paths", nargs="+")
ask = "Extract invoice data"
paths = parser.parse_args().paths
requests = [cb.ActorRequest(ask, documents=[each], citations=True, key=each) for each in paths]
with cb.make_actor("claude-sonnet-4-5", budget_usd=2) as extractor:
    run = extractor.submit_sync(requests, output_format=Invoice)
    if run.wait_sync(progress=True).failed:
        run.retry_failed_sync()
    for result in run:
        if result.response is None:
            print(f"{result.key}: {result.error}")
            continue
        invoice, citations = result.response.parsed_output, result.response.field_citations
        print(f"{result.key}: {invoice.company_name}, ${invoice.total_amount:.2f}")
        for place, item in enumerate(invoice.line_items):
            pages = [citation.place for citation in citations[f"line_items[{place}].total"]]
            print(f"  {item.description}: ${item.total:.2f} ({', '.join(pages)})")
    print(f"Total cost: ${run.cost().total.cost_usd:.2f}")
