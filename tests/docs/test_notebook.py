"""The notebook of the tutorials: it runs to its end, and what is committed is such a run."""

import ast
import json
import re

import pytest
from forked_starts import environment
from paths import REPOSITORY

NOTEBOOK = REPOSITORY / "docs" / "tutorials" / "anytime_run.ipynb"
TEXT = NOTEBOOK.read_text("utf-8")
CODE = [cell for cell in json.loads(TEXT)["cells"] if cell["cell_type"] == "code"]


def losses_in(outputs):
    """The dicts of losses that the cells return, in order."""
    texts = (
        "".join(x["data"]["text/plain"]) for x in outputs if x.get("data", {}).get("text/plain")
    )
    return [ast.literal_eval(text) for text in texts if text.startswith("{")]


def check_losses(cells):
    compared, decayed, longer = losses_in([x for cell in cells for x in cell["outputs"]])
    assert compared["f25"] < compared["last"] - 0.05
    assert decayed["f25"] == compared["f25"]
    assert decayed["f25"] < decayed["live weights after the decay"] + 0.05
    assert decayed["live weights after the decay"] < decayed["live weights"] - 0.05
    assert longer["f25"] > 0


def test_committed_outputs_are_those_of_one_run():
    assert [cell["execution_count"] for cell in CODE] == [*range(1, len(CODE) + 1)]
    kinds = {x["output_type"] for cell in CODE for x in cell["outputs"]}
    assert kinds == {"display_data", "execute_result", "stream"}  # no error
    assert sum("image/png" in x.get("data", {}) for cell in CODE for x in cell["outputs"]) == 2
    assert not any(x.get("name") == "stderr" for cell in CODE for x in cell["outputs"])
    check_losses(CODE)


def test_notebook_is_small_and_names_no_place_of_a_machine():
    assert len(TEXT) < 200_000
    assert not re.search(r"/(?:home|root|tmp|work|Users)/", TEXT)
    assert all(cell["metadata"] == {} for cell in json.loads(TEXT)["cells"])


@pytest.mark.slow
def test_notebook_runs(tmp_path, monkeypatch):
    import nbclient
    import nbformat

    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XLA_FLAGS")  # programs run longer here than they compile
    notebook = nbformat.reads(TEXT, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=1_800, resources=place).execute()
    assert [cell.source for cell in notebook.cells if cell.cell_type == "code"] == [
        "".join(cell["source"]) for cell in CODE
    ]
    check_losses([cell for cell in notebook.cells if cell.cell_type == "code"])
