"""How findings are shown."""

from __future__ import annotations

from forkq.doctor.finding import Finding, as_text, unchecked


def test_checks_that_cannot_be_made_for_one_reason_share_a_line() -> None:
    """One that could be made between them is shown in its place."""
    lost = "there is no connection"
    ok = Finding("ok", "memory", "enough")
    findings = [unchecked("app", "none"), ok, unchecked("a", lost), unchecked("b", lost), ok]
    assert list(as_text(findings)) == [
        "warn  app           not checked; none",
        "ok    memory        enough",
        "warn  2 checks      not checked: a, b; there is no connection",
        "ok    memory        enough",
    ]
    assert list(as_text([unchecked("a", lost), unchecked("b", "other")])) == [
        "warn  a             not checked; there is no connection",
        "warn  b             not checked; other",
    ]
