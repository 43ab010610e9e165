"""The tutorial runs as it is written, and the outputs that it is stored with are those of a run."""

from __future__ import annotations

import os

import nbformat
from nbclient import NotebookClient

from conftest import ROOT

NOTEBOOK = ROOT / "docs/notebooks/tutorial.ipynb"


def texts(notebook) -> list[str]:
    """What cells print or show as text; pictures and the names of objects in memory differ."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            if "image/png" not in output.get("data", {}):
                found.append(text)
    return found


def test_the_tutorial_gives_what_it_shows():
    stored = nbformat.read(NOTEBOOK, as_version=4)
    fresh = nbformat.read(NOTEBOOK, as_version=4)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(fresh, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    for cell in fresh.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:  # standard error has libraries' logs, with times
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    if os.environ.get("UPDATE_GOLDEN"):
        nbformat.write(fresh, NOTEBOOK)
        return
    pictures = [output for cell in stored.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    assert len(pictures) >= 3, "the tutorial is stored without its plots: run with UPDATE_GOLDEN=1"
    assert texts(fresh) == texts(stored), "the outputs have changed: run with UPDATE_GOLDEN=1, and read the difference"
