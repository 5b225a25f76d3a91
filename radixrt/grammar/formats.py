"""Formats that the back end does not know, as patterns or bounds: each is regular by the document that defines it.

RFC 3986 (uri-reference), RFC 3987 (iri, iri-reference), RFC 6570 (uri-template), RFC 6901 (json-pointer), the
draft-handrews-relative-json-pointer; `byte` and `int32` as the OpenAPI format registry has them.
"""

from __future__ import annotations

from typing import Any

_HEX = "%[0-9A-Fa-f]{2}"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_LAST = f"(?:{_GROUP}:{_GROUP}|{_IPV4})"
_IPV6 = "(?:" + "|".join(
    [
        f"(?:{_GROUP}:){{6}}{_LAST}",
        f"::(?:{_GROUP}:){{5}}{_LAST}",
        *(f"(?:(?:{_GROUP}:){{0,{n}}}{_GROUP})?::(?:{_GROUP}:){{{4 - n}}}{_LAST}" for n in range(5)),
        f"(?:(?:{_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}",
        f"(?:(?:{_GROUP}:){{0,6}}{_GROUP})?::",
    ]
) + ")"  # fmt: skip
_UCS = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\U00010000-\U0001fffd\U00020000-\U0002fffd\U00030000-\U0003fffd"


def _reference(beyond: str, private: str) -> tuple[str, str]:
    """(absolute or relative, with a scheme) identifiers; `beyond`: characters beyond ASCII, `private`: in queries."""
    letters = f"A-Za-z0-9._~{beyond}"
    pchar = f"(?:[{letters}!$&'()*+,;=:@-]|{_HEX})"
    no_colon = f"(?:[{letters}!$&'()*+,;=@-]|{_HEX})"
    future = r"[Vv][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+"
    host = rf"(?:\[(?:{_IPV6}|{future})\]|(?:[{letters}!$&'()*+,;=-]|{_HEX})*)"
    authority = f"(?:(?:[{letters}!$&'()*+,;=:-]|{_HEX})*@)?{host}(?::[0-9]*)?"
    rest = f"(?:/{pchar}*)*"
    query = f"(?:\\?(?:{pchar}|[/?{private}])*)?(?:#(?:{pchar}|[/?])*)?"
    rooted = f"//{authority}{rest}|/(?:{pchar}+{rest})?"
    absolute = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{rooted}|{pchar}+{rest}|)"
    relative = f"{rooted}|{no_colon}+{rest}|"
    return f"^(?:(?:{absolute}|{relative}){query})$", f"^(?:(?:{absolute}){query})$"


_URI_REFERENCE, _ = _reference("", "")
_IRI_REFERENCE, _IRI = _reference(_UCS, "\ue000-\uf8ff")
_VARIABLE = f"(?:[A-Za-z0-9_]|{_HEX})(?:\\.?(?:[A-Za-z0-9_]|{_HEX}))*(?::[1-9][0-9]{{0,3}}|\\*)?"
_TOKEN = "(?:/(?:[^/~]|~[01])*)*"

PATTERNS = {
    "byte": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    "json-pointer": f"^{_TOKEN}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_TOKEN})$",
    "uri-reference": _URI_REFERENCE,
    "uri-template": (
        f"^(?:[!#$&(-;=?-\\[\\]_a-z~{_UCS}\ue000-\uf8ff]|{_HEX}|\\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\\}})*$"
    ),
}
"""Formats of strings -> the pattern that says the same."""

NUMBERS: dict[str, dict[str, Any]] = {"int32": {"minimum": -(2**31), "maximum": 2**31 - 1}}
"""Formats of numbers -> the bounds that say the same."""

ANNOTATIONS = frozenset({"binary", "double", "float", "password"})
"""Formats that their definition (OpenAPI) gives nothing to check in: every string, every number satisfies them."""
