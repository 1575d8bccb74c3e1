"""What axe, the accessibility checker, finds in a page."""

from __future__ import annotations

from importlib.resources import files

from tests.browser.chat_page import ChatPage

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()


def serious_issues(chat: ChatPage) -> list[str]:
    """What axe finds serious or critical, by rule with the first element it names."""
    chat.page.evaluate(AXE + ";undefined")
    found = chat.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{issue['id']}: {issue['help']}: {issue['nodes'][0]['html'][:200]}"
        for issue in found
        if issue["impact"] in ("serious", "critical")
    ]
