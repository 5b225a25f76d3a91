"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixrt.server.openai_shapes import json_response
from radixrt.server.state import ServerState


class Model(msgspec.Struct, kw_only=True):
    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "radixrt"


class ModelList(msgspec.Struct, kw_only=True):
    data: list[Model]
    object: Literal["list"] = "list"


async def list_models(request: Request) -> Response:
    """The one model that is served."""
    return json_response(ModelList(data=[_model(request.app.state.radixrt, None)]))


async def get_model(request: Request) -> Response:
    """The model of that name, or 404."""
    return json_response(_model(request.app.state.radixrt, request.path_params["model_id"]))


def _model(state: ServerState, name: str | None) -> Model:
    engine = state.engine_for(name)
    return Model(
        id=state.served_name or engine.info.name,
        created=int(state.started),
        max_model_len=engine.info.context_length,
    )
