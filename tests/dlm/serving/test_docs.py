"""docs/serving.md and docs/batch.md name every flag, route, field and metric."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from doubles import Random
from values import V

from dlm.occupancy import Occupancy
from dlm.openai.decisions import DecisionFields
from dlm.serving.fields import with_tables
from dlm.serving.metrics import Metrics
from dlm.serving.openapi import document
from dlm.serving.service import app_of
from dlm.serving.settings import Settings

ROOT = Path(__file__).parents[3]
DOC = "".join(
    (ROOT / "docs" / page).read_text() for page in ("serving.md", "batch.md", "responses.md")
)


@pytest.mark.parametrize("name", ["serve.py", "batch.py"])
def test_every_flag_is_documented(name):
    script = [sys.executable, str(ROOT / "scripts" / name), "--help"]
    help = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    flags = set(re.findall(r"--[a-z-]+", help)) - {"--help", "--version"}
    assert len(flags) > 15
    assert not {flag for flag in flags if not re.search(rf"{flag}(?![a-z-])", DOC)}


@pytest.mark.parametrize("name", ["serving.md", "responses.md"])
def test_tables_of_fields_are_up_to_date(name):
    page = (ROOT / "docs" / name).read_text()
    assert with_tables(page) == page, f"run python -m dlm.serving.fields docs/{name}"
    assert with_tables(re.sub(r"\| `(stream|max_tokens)`", "| `other`", page)) == page


def test_every_field_of_decisions_is_documented():
    page = (ROOT / "docs" / "serving.md").read_text()
    left_out = {name for name in DecisionFields.names() if not re.search(rf"\b{name}\b", page)}
    assert not left_out


def test_every_route_is_described_by_openapi_and_no_other(engine_of):
    app, _ = app_of(engine_of(Random(V, seed=1)), Settings())
    paths = {re.sub(r"\{.*\}", "{id}", path) for path in _paths(app)}
    refusal, pages = "/v1/responses/compact", {"/", "/page/{id}", "/docs", "/openapi.json"}
    assert paths == {*document()["paths"], refusal, *pages}


def test_every_route_is_documented(engine_of):
    app, _ = app_of(engine_of(Random(V, seed=1)), Settings())
    paths = {"/" + part for path in _paths(app) for part in path.strip("/").split("/{")[:1]}
    assert len(paths) == 20
    assert not {path for path in paths if path not in DOC}


def _paths(app):
    waiting, found = list(app.routes), []
    while waiting:
        route = waiting.pop()
        found += [route.path] if getattr(route, "path", "") else []
        waiting += getattr(getattr(route, "original_router", None), "routes", [])
    return found


def test_every_metric_is_documented():
    idle = Occupancy(running=0, waiting=0, cache=0.0)
    names = re.findall(r"# TYPE dlm:(\w+) ", Metrics("m", 1, lambda: idle).text().decode())
    documented = {name.removesuffix("_total") for name in names if not name.endswith("_created")}
    assert len(documented) > 20
    assert not {name for name in documented if name not in DOC}
