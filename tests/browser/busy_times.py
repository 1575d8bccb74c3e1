"""How long pages are busy at a stretch, in CPU time: what other processes take meanwhile does not count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page

_TASKS = "disabled-by-default-devtools.timeline"
_CONFIG = {
    "recordMode": "recordAsMuchAsPossible",
    "includedCategories": [_TASKS, "__metadata"],
    "excludedCategories": ["*"],
}


@dataclass
class BusyTimes:
    """Milliseconds of CPU time of each task on the main threads of all pages, longest first; filled at the end."""

    milliseconds: list[float] = field(default_factory=list)

    @property
    def longest(self) -> float:
        return self.milliseconds[0]


@contextmanager
def busy_times(browser: Browser, page: Page) -> Iterator[BusyTimes]:
    """Record tasks by the browser's own tracing; `page` is only used to wait with."""
    session = browser.new_browser_cdp_session()
    events: list[dict[str, Any]] = []
    ends: list[object] = []
    session.on("Tracing.dataCollected", lambda part: events.extend(part["value"]))
    session.on("Tracing.tracingComplete", lambda end: ends.append(end))
    session.send("Tracing.start", {"transferMode": "ReportEvents", "traceConfig": _CONFIG})
    times = BusyTimes()
    yield times
    session.send("Tracing.end")
    while not ends:
        page.wait_for_timeout(20)
    session.detach()
    times.milliseconds = _main_thread_tasks(events)


def _main_thread_tasks(events: list[dict[str, Any]]) -> list[float]:
    main_threads = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = (event for event in events if event["name"] == "RunTask" and "tdur" in event)
    return sorted((e["tdur"] / 1000 for e in tasks if (e["pid"], e["tid"]) in main_threads), reverse=True)
