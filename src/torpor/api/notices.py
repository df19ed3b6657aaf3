"""HTML pages for users who followed a link that does not work."""

from html import escape

from fastapi.responses import HTMLResponse

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 34rem; margin: 15vh auto; padding: 0 1.5rem }
body { color: #222; background: #fff } h1 { font-size: 1.4rem } a { color: inherit }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #17181b } }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

NO_SUCH_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Page not found · Torpor</title>
<h1>Page not found</h1>
<p>There is no page <code>{path}</code> here. The <a href="/">first page</a> shows your workspaces.</p>
</html>
"""


def notice_page(status: int, title: str, words: str, *, way_on: tuple[str, str] = ("/", "To the dashboard")) -> HTMLResponse:
    """`way_on`: the address of the link below the text, and its label."""
    address, means = way_on
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1><p>{escape(words)}</p>"
        f'<p><a href="{escape(address)}">{escape(means)}</a></p></html>',
        status,
        {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"},
    )


def no_such_page(path: str) -> HTMLResponse:
    return HTMLResponse(NO_SUCH_PAGE.format(path=escape(path)), 404, {"Content-Security-Policy": "default-src 'none'"})
