"""What the server says about itself: models, decoders, health."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatserve.decoding.registry import DecoderInfo
from chatserve.engine.async_engine import AsyncEngine
from chatserve.server.generation_requests import check_model
from chatserve.server.responses import json_response


class InformationRoutes:
    """Read-only routes over one engine."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._created = int(time.time())

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.list_models),
            Route("/v1/models/{id:path}", self.get_model),
            Route("/v1/decoders", self.list_decoders),
            Route("/health", self.health),
        ]

    async def list_models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._model()]})

    async def get_model(self, request: Request) -> Response:
        """Ids may contain slashes. Raises ModelNotFoundError."""
        check_model(self._engine, request.path_params["id"])
        return json_response(self._model())

    def _model(self) -> dict[str, Any]:
        info = self._engine.info
        return {
            "id": info.name,
            "object": "model",
            "created": self._created,
            "owned_by": "chatserve",
            "max_model_len": info.max_model_len,
        }

    async def list_decoders(self, request: Request) -> Response:
        decoders = [_decoder_body(decoder) for decoder in self._engine.list_decoders()]
        return json_response({"object": "list", "data": decoders})

    async def health(self, request: Request) -> Response:
        """200 when requests are taken, else 503; the counters are for people and tests."""
        status = self._engine.status
        body = {"status": status, "model": self._engine.info.name, "stats": self._engine.stats()}
        return json_response(body, 200 if status == "ready" else 503)


def _decoder_body(decoder: DecoderInfo) -> dict[str, Any]:
    fields = ("id", "name", "description", "version", "distribution", "api", "parameters", "state", "reason")
    return {field: getattr(decoder, field) for field in fields}
