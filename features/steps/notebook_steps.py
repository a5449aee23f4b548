"""Steps that execute a notebook in a real kernel."""

from __future__ import annotations

from collections import Counter
from typing import Any

import nbformat
from behave import then
from behave.runner import Context
from nbclient import NotebookClient
from pages import ROOT


class Client(NotebookClient):
    """Counts how often an output of a cell was replaced; the notebook keeps only the last one."""

    redrawn: Counter[int]

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "update_display_data":
            self.redrawn[cell_index] += 1
        return super().process_message(msg, cell, cell_index)


@then("of a notebook's cells, {number:d} alone has an output, redrawn, that has: {words}")
def _(context: Context, number: int, words: str) -> None:
    cells = [nbformat.v4.new_code_cell(row["cell"]) for row in context.table]
    notebook = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": str(ROOT)}}
    client = Client(notebook, timeout=120, resources=resources)
    client.redrawn = Counter()
    client.execute()
    [*others] = notebook.cells
    outputs = others.pop(number - 1).outputs
    assert [output.output_type for output in outputs] == ["display_data"], outputs
    [output] = outputs
    assert words in output.data["text/plain"], output
    assert words in output.data["text/html"], output
    assert client.redrawn[number - 1] >= 1, client.redrawn
    assert not any(cell.outputs for cell in others), others
