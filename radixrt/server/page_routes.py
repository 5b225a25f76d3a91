"""GET / and its two files: a page for trying the server out, without a build step and without another host."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def page(request: Request) -> Response:
    """One of the page's files. Everybody may have them: what they show is asked for with the user's key."""
    name, kind = FILES[request.url.path]
    content = (files("radixrt.server") / "page" / name).read_bytes()
    return Response(content, headers={**HEADERS, "Content-Type": f"{kind}; charset=utf-8"})
