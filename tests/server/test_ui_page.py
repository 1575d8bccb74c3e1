"""The page at ``/``: its files and their headers, with and without a built UI."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from chatserve.server import page

BUILT = {
    "index.html": "<!doctype html><script type=module src=./assets/app-1a2b3c.js></script>",
    "favicon.svg": "<svg/>",
    "assets/app-1a2b3c.js": "let built;" * 500,
    "assets/style-9f8e7d.css": "p{}",
}


@pytest.fixture
def client() -> Iterator[Callable[[], TestClient]]:
    """Makes a client of the page's routes alone, mounted below a root path as behind a proxy."""
    clients: list[TestClient] = []

    def make() -> TestClient:
        app = Starlette(routes=[Mount("/below", routes=page.page_routes())])
        clients.append(TestClient(app, base_url="http://server/below/"))
        return clients[-1]

    yield make
    for made in clients:
        made.close()


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a built UI in the place of the real one."""
    for name, text in BUILT.items():
        file = tmp_path / "web_dist" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(page, "_FOLDER", tmp_path)
    return tmp_path


def test_the_built_ui_is_served(client: Callable[[], TestClient], built: Path) -> None:
    http = client()
    for name, text in BUILT.items():
        response = http.get("" if name == "index.html" else name)
        assert (response.status_code, response.text) == (200, text)
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        is_hashed = name.startswith("assets/")
        lifetime = "public, max-age=31536000, immutable" if is_hashed else "no-cache"
        assert response.headers["cache-control"] == lifetime
    assert http.get("assets/app-1a2b3c.js").headers["content-type"].startswith("text/javascript")
    assert http.get("favicon.svg").headers["content-type"] == "image/svg+xml"


def test_the_policy_allows_nothing_from_outside_and_nothing_inline(
    client: Callable[[], TestClient], built: Path
) -> None:
    policy = client().get("").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("default-src") == "'none'"
    assert set(" ".join(rules.values()).split()) <= {"'self'", "'none'", "data:"}
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"


def test_compression_is_the_clients_choice(client: Callable[[], TestClient], built: Path) -> None:
    http = client()
    name = "assets/app-1a2b3c.js"
    plain = http.get(name, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text == BUILT[name]
    with http.stream("GET", name, headers={"accept-encoding": "gzip, br"}) as packed:
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == "Accept-Encoding"
        assert gzip.decompress(b"".join(packed.iter_raw())).decode() == BUILT[name]
    assert "content-encoding" not in http.get("assets/style-9f8e7d.css").headers  # too short to gain


@pytest.mark.parametrize("path", ["assets/none.js", "assets", "secret", "assets/%2e%2e/%2e%2e/secret", "index.html.gz"])
def test_nothing_else_is_served(client: Callable[[], TestClient], built: Path, path: str) -> None:
    (built / "secret").write_text("s")
    assert client().get(path).status_code == 404


def test_without_a_built_ui_a_plain_page_says_how_to_build_it(
    client: Callable[[], TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "page_folder", lambda: Path(page.__file__).parent / "static")
    http = client()
    text = http.get("").text
    assert "make serve" in text
    assert not re.search(r"<script|\sstyle=|\son\w+=|https?:|//", text)
    names = re.findall(r'(?:src|href)="([\w.]+)"', text)
    assert "style.css" in names
    for name in set(names) - {"health"}:
        assert http.get(name).status_code == 200
