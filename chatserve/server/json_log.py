"""`JsonFormatter`: log lines as JSON objects, one a line."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

FIELDS = "fields"
"""Name of the extra attribute of a record whose entries become fields of the line."""


class JsonFormatter(logging.Formatter):
    """``{"time", "level", "logger", "message"}``, the record's extra fields, and ``"exception"`` when there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
