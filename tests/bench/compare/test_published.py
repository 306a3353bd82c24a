"""The documents show the figures of the record that lies beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.compare.documents import DOCUMENTS, RECORD
from tests.bench.compare.record import Record
from tests.bench.compare.tables import filled


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_documents_show_the_record_beside_them(document: Path) -> None:
    text = document.read_text()
    assert "<!-- figures: " in text
    assert filled(text, Record.load(RECORD)) == text, "run `make bench-docs`"
