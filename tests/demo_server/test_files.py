"""Pages and bundle files: media types, caching, policy."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import httpx
import pytest

from tabhelm_build.demo_app import POLICY
from tabhelm_build.demo_server import DemoServer

from .conftest import FILES


def get(server: DemoServer, path: str, **headers: str) -> httpx.Response:
    return httpx.get(server.url + path, headers=headers, verify=False, trust_env=False)


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/?test", "text/html; charset=utf-8"),
        ("/blank", "text/html; charset=utf-8"),
        ("/blank2", "text/html; charset=utf-8"),
        ("/demo/app.mjs", "text/javascript; charset=utf-8"),
        ("/demo/style.css", "text/css; charset=utf-8"),
        ("/demo/icon.svg", "image/svg+xml"),
        ("/favicon.ico", "image/svg+xml"),
    ],
)
def test_pages_are_asked_about_each_time_but_may_be_kept(server: DemoServer, path: str, media_type: str) -> None:
    answer = get(server, path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == media_type
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["content-security-policy"] == POLICY


@pytest.mark.parametrize("prefix", ["/tabhelm/", "/tabhelm2/"])
@pytest.mark.parametrize(
    ("name", "media_type", "caching"),
    [
        ("tabhelm.mjs", "text/javascript; charset=utf-8", "no-cache"),
        ("manifest.json", "application/json", "no-cache"),
        ("snapshot.bin.gz", "application/octet-stream", "public, max-age=3600"),
        ("tabhelm-0.1.0-py3-none-any.whl", "application/octet-stream", "public, max-age=3600"),
        ("pyodide/pyodide.asm.wasm", "application/wasm", "public, max-age=3600"),
        ("pyodide/pyodide.mjs", "text/javascript; charset=utf-8", "public, max-age=3600"),
        ("pyodide/python_stdlib.zip", "application/zip", "public, max-age=3600"),
    ],
)
def test_bundle_files(server: DemoServer, prefix: str, name: str, media_type: str, caching: str) -> None:
    answer = get(server, prefix + name)
    assert answer.content == FILES[name]
    assert answer.headers["content-type"] == media_type
    assert answer.headers["cache-control"] == caching
    assert "content-encoding" not in answer.headers
    assert answer.headers["content-security-policy"] == POLICY
    again = get(server, prefix + name, **{"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["cache-control"] == caching


def test_the_bundle_s_service_worker_may_serve_pages_outside_its_folder(bundle: Path, server: DemoServer) -> None:
    (bundle / "service-worker.js").write_bytes(b"//")
    answer = get(server, "/tabhelm/service-worker.js")
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert (answer.headers["service-worker-allowed"], answer.headers["cache-control"]) == ("/", "no-cache")
    assert "service-worker-allowed" not in get(server, "/tabhelm/tabhelm.mjs").headers


def test_the_demo_s_service_worker_keeps_every_file_of_the_demo(server: DemoServer) -> None:
    answer = get(server, "/service-worker.js")
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    first, _, told = answer.text.partition("\n")
    assert first == 'importScripts("/tabhelm/service-worker.js");'
    kept = json.loads(told.strip().removeprefix("tabhelmOffline(").removesuffix(");"))
    assert kept["base"] == "/tabhelm/" and kept["version"] and kept["alone"] is True
    assert "/blank" not in kept["files"]
    assert {"/", "/demo/app.mjs", "/demo/offline.mjs", "/demo/style.css"} <= set(kept["files"])
    assert [path for path in kept["files"] if get(server, path).status_code != 200] == []


def test_a_changed_file_has_another_tag(bundle: Path, server: DemoServer) -> None:
    before = get(server, "/tabhelm/manifest.json").headers["etag"]
    (bundle / "manifest.json").write_bytes(b'{"a":1}')
    answer = get(server, "/tabhelm/manifest.json", **{"if-none-match": before})
    (bundle / "manifest.json").write_bytes(FILES["manifest.json"])
    assert (answer.status_code, answer.content) == (200, b'{"a":1}')


@pytest.mark.parametrize("path", ["/nothing", "/tabhelm/", "/tabhelm/../secret.txt", "/tabhelm/%2e%2e/secret.txt"])
def test_nothing_else_is_served(server: DemoServer, path: str) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    connection.request("GET", path)  # as it is: other clients tidy the path first
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("content-security-policy")) == (404, POLICY)
    connection.close()


def test_other_names_of_this_machine_are_not_answered(server: DemoServer) -> None:
    assert get(server, "/", host="rebound.example").status_code == 400
    assert get(server, "/", host="localhost").status_code == 200


def test_without_bundles_the_rest_is_served() -> None:
    with DemoServer(dist=None) as server:
        assert get(server, "/tabhelm/tabhelm.mjs").status_code == 404
        assert get(server, "/blank").status_code == 200
        assert server.effects() == []
