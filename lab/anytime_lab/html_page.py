"""HTML frame and style of the report pages."""

import time
from html import escape

from anytime_jax import __version__
from anytime_jax.formatting import format_time

# It has dark colors for browsers that prefer them.
_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --page: #fff; --dim: #555; --rule: #e4e4e4;
        --note: #fff6e0; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e4e4; --page: #141414; --dim: #a8a8a8; --rule: #383838; --note: #3a2e10; }
  a { color: #8ab4f8; }
}
body { font: 16px/1.5 system-ui, Helvetica, Arial, sans-serif; color: var(--text);
       background: var(--page); max-width: 64rem; margin: 2rem auto; padding: 0 1.2rem; }
h1, h2 { line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin-top: 3rem; border-top: 1px solid var(--rule); padding-top: 1.2rem;
     font-size: 1.25rem; }
img { max-width: 100%; display: block; margin: 1rem auto; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; line-height: 1.4; margin: 1rem 0; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid var(--dim); }
td { border-bottom: 1px solid var(--rule); font-variant-numeric: tabular-nums; }
.note { background: var(--note); border-left: 4px solid #e69f00; padding: .4rem .8rem;
        font-size: 14px; overflow-wrap: anywhere; }
.files, .about { color: var(--dim); font-size: 13px; }
.state { margin: .2rem 0; overflow-wrap: anywhere; }
nav { font-size: 14px; columns: 2; }
pre { font-size: 12px; overflow-x: auto; }
"""

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{reload}<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}<p class="about">Written at {made} by anytime_jax {version}.</p>
</body>
</html>
"""


def make_page(title: str, body: str, reload_seconds: int | None = None) -> str:
    """Returns a page, which may reload itself; `body` is HTML, `title` text."""
    tag = '<meta http-equiv="refresh" content="{}">\n'
    reload = "" if reload_seconds is None else tag.format(reload_seconds)
    made = {"made": format_time(time.time()), "version": __version__}
    return _PAGE.format(title=escape(title), style=_STYLE, body=body, reload=reload, **made)
