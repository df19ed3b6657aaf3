"""What does a person see who came here by a link, and cannot go on?"""

from html import escape

from fastapi.responses import HTMLResponse

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 34rem; margin: 15vh auto; padding: 0 1.5rem }
body { color: #222; background: #fff } h1 { font-size: 1.4rem } a { color: inherit }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #17181b } }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def notice_page(status: int, title: str, words: str, *, way_on: tuple[str, str] = ("/", "To the dashboard")) -> HTMLResponse:
    """`way_on`: an address of ours, and what it is."""
    address, means = way_on
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1><p>{escape(words)}</p>"
        f'<p><a href="{escape(address)}">{escape(means)}</a></p></html>',
        status,
        {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"},
    )
