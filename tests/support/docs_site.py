"""The hook of mkdocs.yml: a link out of docs/ leads to the file on GitHub.

On GitHub the same link leads there by itself. A link to nothing stays as it is: mkdocs refuses it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_CODE_OR_LINK = re.compile(r"^```.*?^```$|`[^`\n]*`|\]\((\.\./[^()\s]+)\)", re.M | re.S)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for each page before it looks at the links."""
    docs = Path(config["docs_dir"]).resolve()
    folder = (docs / page.file.src_uri).parent
    source = config["extra"]["source"]

    def led_out(found: re.Match[str]) -> str:
        target, _, anchor = (found[1] or "").partition("#")
        path = (folder / target).resolve()
        if not target or path.is_relative_to(docs) or not path.exists():
            return found[0]
        kind = "tree" if path.is_dir() else "blob"
        name = path.relative_to(docs.parent).as_posix()
        return f"]({source}/{kind}/main/{name}{'#' * bool(anchor)}{anchor})"

    return _CODE_OR_LINK.sub(led_out, markdown)
