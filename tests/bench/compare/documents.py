"""The documents that show figures of a record, and the record that they show."""

from __future__ import annotations

from pathlib import Path

from tests.bench.compare.peers import CHECKOUT
from tests.bench.compare.record import Record
from tests.bench.compare.tables import filled

RECORD = CHECKOUT / "docs" / "benchmarks.json"
DOCUMENTS = (CHECKOUT / "docs" / "benchmarks.md", CHECKOUT / "README.md")
IMAGES = CHECKOUT / "docs" / "images"


def publish(output: Path) -> None:
    """Keeps the record beside the documents, and writes their tables and plots from it."""
    from tests.bench.compare.plots import plot_all  # noqa: PLC0415  half a second of imports

    if not output.exists():
        raise SystemExit(f"bench: {output} is not there; `make bench` makes it")
    record = Record.load(output)
    if not (record.cells and record.children and record.latency):
        raise SystemExit(f"bench: {output} lacks a part; `make bench` without PARTS has them all")
    record.save(RECORD)
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text(), record))
    for path in plot_all(record, IMAGES):
        print(path.relative_to(CHECKOUT))
