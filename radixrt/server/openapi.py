"""/openapi.json with the bodies' types, which FastAPI does not see because the handlers read them with msgspec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi


def describe(app: FastAPI, bodies: Mapping[str, type]) -> None:
    """Make `app` describe the JSON body of each POST path in `bodies`; computed when first asked for."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            types = list(bodies.values())
            references, components = msgspec.json.schema_components(
                types, schema_hook=_schema_hook, ref_template="#/components/schemas/{name}"
            )
            for path, reference in zip(bodies, references, strict=True):
                schema["paths"][path]["post"]["requestBody"] = {
                    "required": True,
                    "content": {"application/json": {"schema": reference}},
                }
            schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _schema_hook(kind: type) -> dict[str, Any]:
    if kind is np.ndarray:
        return {"type": "array", "items": {"type": "integer", "minimum": 0}}
    raise NotImplementedError(f"{kind} has no JSON Schema")
