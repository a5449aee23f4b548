"""Read invoices (PDFs, pictures, texts) into objects, and tell where each field stands.

    python examples/invoices.py --sandbox                  # tried out: nothing is sent or paid
    python examples/invoices.py examples/invoices/*.pdf    # with your key

A hundred or a hundred thousand of them are one batch. What does not fit the model is told, with
what is wrong, beside what does. `examples/invoices/make.py` made the PDFs.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import claude_batch as cb

HERE = Path(__file__).parent


class Currency(enum.Enum):
    EUR = "EUR"
    USD = "USD"


class Invoice(BaseModel):
    number: str
    issued: dt.date
    seller: str
    currency: Currency
    items: list[str]
    total: float


async def read_invoices(paths: list[Path], **settings: Any) -> int:
    """Print each invoice, and what its fields rest on; returns how many could not be read."""
    extractor = cb.load_actor(HERE / "actors" / "extractor.yaml", **settings)
    requests = [
        cb.ActorRequest("What was billed?", documents=[path], citations=True, key=path.name)
        for path in paths
    ]
    failed = 0
    try:
        async for result in extractor.respond_all(requests, output_format=Invoice):
            failed += not result.ok
            if result.response is None:
                print(f"{result.key}: {result.error}")
                continue
            invoice = result.response.parsed_output
            print(f"{result.key}: {invoice.issued} {invoice.total:.2f} {invoice.currency.value}")
            for field, citations in result.response.field_citations.items():
                places = dict.fromkeys(f"{each.title}, {each.place}" for each in citations)
                print(f"  {field}: {'; '.join(places) or 'nothing is cited'}")
    finally:
        await extractor.provider.aclose()
    return failed


def main() -> int:
    """Read the files that are named, or those beside this program; returns the exit code."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("paths", metavar="FILE", nargs="*")
    parser.add_argument("--sandbox", action="store_true", help="try it: nothing is sent or paid")
    given = parser.parse_args()
    paths = [Path(name) for name in given.paths] or sorted((HERE / "invoices").glob("*.pdf"))
    with ExitStack() as stack:
        settings: dict[str, Any] = {}
        if given.sandbox:
            from claude_batch.sandbox import SandboxServer

            server = stack.enter_context(SandboxServer(latency=0.2))
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            settings = {"base_url": server.url, "api_key": "sk-sandbox", "poll_interval": 0.1}
            settings["ledger"] = f"{folder}/ledger.db"
        return 1 if asyncio.run(read_invoices(paths, **settings)) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except cb.ActorError as error:  # a wrong key, a halted account, a wait that was too long
        sys.exit(str(error))
