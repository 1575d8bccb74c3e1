"""`UiAnswer`: one answer for the browser UI, which goes on for a while when nobody reads it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import msgspec

from chatserve.engine.async_engine import AsyncEngine, Generation
from chatserve.engine.generation import Delta, PublishedToken, TokenLogprob
from chatserve.engine.view import Progress, progress
from chatserve.errors import ChatserveError
from chatserve.server.answers import Answers
from chatserve.server.errors import Failure, failure_of
from chatserve.server.ui_log import EventLog

_log = logging.getLogger("chatserve.server")

MAX_KEPT_BYTES = 1_000_000
_STATUS_SECONDS = 0.2

_STATES = {"waiting": "queued", "preempted": "queued", "prefill": "prefill", "running": "decode"}


class UiAnswer:
    """Writes what becomes of one request into an event log; see docs/ui-protocol.md for the events.

    It must be made on the loop, and ends by itself, when stopped, or when more than `MAX_KEPT_BYTES` lie unread.

    Attributes:
        log: its events.
    """

    def __init__(self, engine: AsyncEngine, answers: Answers) -> None:
        self.log = EventLog(MAX_KEPT_BYTES)
        self._engine = engine
        self._answers = answers
        self._is_stopped = False
        self._last_status: dict[str, Any] | None = None
        self._first_delta_at: float | None = None
        self._prefilled_at: float | None = None
        self.log.append("open", self._opening())
        self._report_status()
        self._writing = asyncio.create_task(self._write())

    @property
    def request_id(self) -> str:
        return self._generation.request_id

    def stop(self) -> None:
        """End the request now; its blocks come back. Nothing but a last event is written any more."""
        if not self.log.is_complete:
            self._is_stopped = True
            self._answers.cancel()

    @property
    def _generation(self) -> Generation:
        return self._answers.generations[0]

    def _opening(self) -> dict[str, Any]:
        request = self._generation.request
        return {
            "request_id": self.request_id,
            "model": self._engine.info.name,
            "decoder": request.decoder_name,
            "n": self._answers.num_choices,
            "prompt_tokens": request.usage.prompt_tokens,
            "max_model_len": self._engine.info.max_model_len,
        }

    async def _write(self) -> None:
        reporting = asyncio.create_task(self._keep_reporting())
        try:
            async for delta in self._answers:
                self._write_delta(delta)
                if self.log.is_overfull:
                    self._cut_off()
                    return
            self.log.append("done", self._closing())
        except Exception as error:
            if not isinstance(error, ChatserveError):
                _log.exception("a stream of the UI broke")
            self._write_failure(failure_of(error))
        finally:
            reporting.cancel()
            self.log.complete()

    def _cut_off(self) -> None:
        _log.warning("request %s: ended, its reader is %d bytes behind", self.request_id, self.log.num_bytes)
        self._answers.cancel()
        self._write_failure(Failure(500, "server_error", "The answer was not read in time.", code="slow_reader"))

    def _write_failure(self, failure: Failure) -> None:
        self.log.append("error", msgspec.Raw(failure.body()))

    def _write_delta(self, delta: Delta) -> None:
        if self._first_delta_at is None:
            self._first_delta_at = time.monotonic()
            self._report_status()
        if delta.trace:
            self.log.append("trace", {"entries": delta.trace})
        if not (delta.text or delta.tokens or delta.finish_reason):
            return
        data: dict[str, Any] = {"choice": delta.choice, "text": delta.text}
        if delta.tokens:
            data["tokens"] = [self._token(token) for token in delta.tokens]
        if delta.finish_reason is not None:
            data["finish_reason"] = delta.finish_reason
        self.log.append("delta", data)

    def _token(self, token: PublishedToken) -> dict[str, Any]:
        return {**self._entry(token), "top": [self._entry(alternative) for alternative in token.top]}

    def _entry(self, token: PublishedToken | TokenLogprob) -> dict[str, Any]:
        """Tokens without text (end tokens) are shown by their name, parts of a character as replacement characters."""
        vocabulary = self._engine.vocabulary
        shown = vocabulary.token_bytes(token.token_id).decode("utf-8", "replace")
        text = shown or vocabulary.token_name(token.token_id)
        return {"id": token.token_id, "text": text, "bytes": list(token.bytes), "logprob": token.logprob}

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(_STATUS_SECONDS)
            self._report_status()

    def _report_status(self) -> None:
        """Write how far the request is, when that has changed."""
        if self._generation.request.is_finished:
            return
        now = progress(self._engine, self._generation)
        if now.state == "running" and self._prefilled_at is None:
            self._prefilled_at = time.monotonic()
        status = self._status(now)
        if status != self._last_status:
            self._last_status = status
            self.log.append("status", status)

    def _status(self, now: Progress) -> dict[str, Any]:
        status: dict[str, Any] = {"state": _STATES[now.state]}
        if now.position:
            status["position"] = now.position
        if now.state == "prefill":
            status["prefilled"] = now.num_prefilled
            status["prompt_tokens"] = self._answers.usage.prompt_tokens
            status["cached_tokens"] = now.num_cached
        return status

    def _closing(self) -> dict[str, Any]:
        usage = self._answers.usage
        return {
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                "cached_tokens": usage.cached_tokens,
                "computed_tokens": usage.computed_tokens,
            },
            "timings": self._timings(),
            "stopped": self._is_stopped,
        }

    def _timings(self) -> dict[str, float | None]:
        """Seconds of each phase; a search may be past its prefill long before it can publish anything."""
        request = self._generation.request
        known = [moment for moment in (self._prefilled_at, self._first_delta_at) if moment is not None]
        prefilled_at = min(known, default=None)
        return {
            "queue_s": _between(request.submitted_at, request.admitted_at),
            "prefill_s": _between(request.admitted_at, prefilled_at),
            "decode_s": _between(prefilled_at, time.monotonic()),
            "ttft_s": _between(request.submitted_at, self._first_delta_at),
        }


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(end - start, 6)
