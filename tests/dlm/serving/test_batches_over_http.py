"""Files and batches through the official client, and under hostile bodies."""

import io
import json
import re
import time

import openai
import pytest
from batch_lines import CHAT, line, lines
from waiting import PATIENCE


def uploaded(client, content, name="rows.jsonl"):
    return client.files.create(file=(name, io.BytesIO(content)), purpose="batch")


def begun(client, file, **more):
    fields = {"endpoint": CHAT, "completion_window": "24h"} | more
    return client.batches.create(input_file_id=file.id, **fields)


def ended(client, batch):
    end = time.monotonic() + PATIENCE
    while batch.status not in ("completed", "failed", "cancelled", "expired"):
        assert time.monotonic() < end
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    return batch


def answers(client, id):
    return [json.loads(each) for each in client.files.content(id).text.splitlines()]


@pytest.fixture(scope="module")
def served(serve_random):
    with serve_random(max_body_bytes=1 << 20, stored_file_bytes=4 << 20) as served:
        yield served


def test_a_file_is_answered_line_by_line(served):
    client = served.client
    content = lines(line("a"), line("b", n=2), b"", line("c", temperature=9), b"{no", line("d"))
    file = uploaded(client, content)
    assert (file.bytes, file.purpose, file.status) == (len(content), "batch", "processed")
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint=CHAT,
        completion_window="24h",
        metadata={"for": "tests"},
    )
    assert batch.status in ("validating", "in_progress")
    batch = ended(client, batch)
    assert (batch.status, batch.metadata) == ("completed", {"for": "tests"})
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (5, 3, 2)
    good = {each["custom_id"]: each for each in answers(client, batch.output_file_id)}
    assert good.keys() == {"a", "b", "d"}
    assert good["a"]["response"]["body"]["choices"][0]["message"]["role"] == "assistant"
    assert len(good["b"]["response"]["body"]["choices"]) == 2
    bad = answers(client, batch.error_file_id)
    assert sorted(str(each["custom_id"]) for each in bad) == ["None", "c"]
    problems = " ".join(each["error"]["message"] for each in bad)
    assert "temperature must be 0 to 2, got 9" in problems
    assert "the line is not JSON" in problems
    assert batch.id in [each.id for each in client.batches.list(limit=2)]
    names = {each.filename for each in client.files.list()}
    assert names >= {"rows.jsonl", f"{batch.id}_output.jsonl", f"{batch.id}_error.jsonl"}
    for id in (file.id, batch.output_file_id, batch.error_file_id):
        assert client.files.delete(id).deleted
    with pytest.raises(openai.NotFoundError, match="there is no file"):
        client.files.retrieve(file.id)


HOSTILE = [
    b"[]",
    b"3",
    b"null",
    b'"text"',
    b"\xff\xfe",
    b"[" * 30_000,
    b'{"custom_id": "' + b"x" * 100_000 + b'"}',
    b"[" + b"1," * 300_000 + b"1]",
    {"custom_id": 3, "url": CHAT, "body": {}},
    {"custom_id": "e", "url": "/v1/embeddings", "body": {}},
    {"custom_id": "f", "url": "/v1/completions", "body": {"prompt": "hi"}},
    line("g", stream=True),
    line("h", model="gpt-7"),
    line("i", n=10_000),
    line("j", messages=[]),
    line("k", max_tokens=10**12),
    line("l", structured_outputs={"regex": "(a|b)*" * 20_000}),
    {"custom_id": "m", "url": CHAT, "body": {"messages": "\ud800"}},
    {"custom_id": "n", "url": CHAT, "body": None, "more": 1},
]


def test_hostile_lines_have_errors_of_their_own(served):
    client = served.client
    file = uploaded(client, lines(*HOSTILE, line("good")))
    batch = ended(client, begun(client, file))
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed) == (len(HOSTILE) + 1, 1)
    bad = answers(client, batch.error_file_id)
    assert len(bad) == len(HOSTILE)
    assert {each["response"]["status_code"] for each in bad} <= {400, 404, 422}
    assert all(each["error"]["message"] for each in bad)
    client.files.delete(file.id)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (lines(line("a"), line("a")), "custom_id 'a' of row 1 must be unique, and row 0 has it"),
        (b"\n \n", "the file must have at least one row, and has none"),
        (b"\n".join([b"3"] * 50_001), "the file must have at most 50000 rows"),
    ],
)
def test_a_file_that_is_no_batch_fails_as_a_whole(served, content, problem):
    client = served.client
    file = uploaded(client, content)
    batch = ended(client, begun(client, file))
    assert (batch.status, batch.output_file_id) == ("failed", None)
    assert problem in batch.errors.data[0].message
    client.files.delete(file.id)


FORM = "multipart/form-data; boundary=x"


def form(*parts):
    return b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + b"--x--\r\n"


def part(name, content, more=b""):
    return b'Content-Disposition: form-data; name="' + name + b'"' + more + b"\r\n\r\n" + content


FILE = part(b"file", b"3", b'; filename="a"')


@pytest.mark.parametrize(
    ("kind", "content", "problem"),
    [
        ("application/json", b"{}", "must be multipart/form-data with a boundary"),
        ("multipart/form-data", b"", "must be multipart/form-data with a boundary"),
        (FORM, b"", "must begin and end with its boundary"),
        (FORM, b"--x\r\n" + FILE, "must begin and end with its boundary"),
        (FORM, b"a" + form(FILE), "must begin and end with its boundary"),
        (FORM, form(b"no headers"), "must have headers, an empty line and content"),
        (FORM, form(b"A: b" * 2000 + b"\r\n\r\nc"), "must have headers, an empty line"),
        (FORM, form(b"A: b\r\n\r\nc"), "a part of the form must have a name"),
        (FORM, form(*[FILE] * 17), "must have at most 16 parts"),
        (FORM, form(FILE), "purpose must be batch, got None"),
        (FORM, form(FILE, part(b"purpose", b"evil")), "purpose must be batch, got 'evil'"),
        (FORM, form(FILE, part(b"purpose", b"\xff")), "a field of a form must be UTF-8 text"),
        (FORM, form(part(b"purpose", b"batch")), "file is missing"),
        (FORM, form(part(b"file", b"3"), part(b"purpose", b"batch")), "file is missing"),
        (
            FORM,
            form(FILE, part(b"purpose", b"batch"), part(b"expires_after[seconds]", b"-1")),
            "expires_after.seconds must be 3600 to 2592000, got '-1'",
        ),
    ],
)
def test_a_broken_form_is_refused(served, kind, content, problem):
    answer = served.http.post("/v1/files", content=content, headers={"Content-Type": kind})
    assert answer.status_code == 400
    assert problem in answer.json()["error"]["message"]


def test_a_web_page_of_another_origin_uploads_nothing(served):
    content = form(FILE, part(b"purpose", b"batch"))
    bad = ("http://evil.example", "null", "http://[")
    for origin, status in (*((origin, 403) for origin in bad), (served.url, 200)):
        headers = {"Content-Type": FORM, "Origin": origin}
        answer = served.http.post("/v1/files", content=content, headers=headers)
        assert answer.status_code == status


def test_a_large_file_and_a_full_store_are_refused(serve_random):
    with serve_random(max_body_bytes=40_000, stored_file_bytes=40_000) as served:
        client = served.client
        with pytest.raises(openai.APIStatusError, match="the body has more than 40000 bytes"):
            uploaded(client, b"x" * 40_000)
        first = uploaded(client, b"x" * 12_000)
        with pytest.raises(openai.BadRequestError, match="the server has room for 8000: delete"):
            uploaded(client, b"x" * 12_000)  # a client has half of the store
        client.files.delete(first.id)
        long = (line(str(i), logprobs=True, max_tokens=64) for i in range(6))
        batch = ended(client, begun(client, uploaded(client, lines(*long))))
        assert batch.status == "failed"
        assert "the server has room for" in batch.errors.data[0].message
        written = client.files.content(batch.output_file_id).text
        assert written.count("\n") == batch.request_counts.completed


def test_a_client_sees_its_own_files_and_batches_alone(serve_random):
    with serve_random(api_keys=("a", "b")) as served:
        other = served.client.with_options(api_key="b")
        file = uploaded(served.client, lines(line("1")))
        batch = begun(served.client, file)
        assert other.files.list().data == other.batches.list().data == []
        for call in (
            lambda: other.files.retrieve(file.id),
            lambda: other.files.content(file.id),
            lambda: other.files.delete(file.id),
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: other.batches.create(
                input_file_id=file.id, endpoint=CHAT, completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                call()
        assert ended(served.client, batch).status == "completed"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"endpoint": CHAT}, "input_file_id is missing; it must be the id of a file"),
        ({"input_file_id": "file-0", "endpoint": "/v1/embeddings"}, "endpoint must be /v1/chat"),
        (
            {"input_file_id": "file-0", "endpoint": CHAT, "completion_window": "1h"},
            "completion_window must be 24h, got '1h'",
        ),
        (
            {"input_file_id": "file-0", "endpoint": CHAT, "metadata": {"a": "b" * 20_000}},
            "metadata must have at most 16384 bytes",
        ),
    ],
)
def test_a_wrong_batch_is_refused_before_any_work(served, body, problem):
    answer = served.http.post("/v1/batches", json=body)
    assert answer.status_code == 400
    assert problem in answer.json()["error"]["message"]


def test_a_server_without_files_serves_no_batches(serve_random):
    with serve_random(stored_file_bytes=0) as served:
        for method, path in (("GET", "files"), ("POST", "batches"), ("DELETE", "files/file-1")):
            answer = served.http.request(method, f"/v1/{path}")
            assert answer.status_code == 404
            assert "`--stored-file-bytes 0`" in answer.json()["error"]["message"]
        described = served.http.get("/openapi.json").json()
    assert not re.findall("/v1/files|/v1/batches|BatchBody", json.dumps(described))
    assert "/v1/models" in described["paths"]


def test_a_list_has_pages(served):
    ids = [uploaded(served.client, b"3", f"{i}").id for i in range(3)]
    page = served.http.get("/v1/files?limit=2").json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (ids[:0:-1], True)
    assert page["last_id"] == ids[1]
    after = served.http.get(f"/v1/files?limit=1&after={ids[1]}").json()
    assert after["data"][0]["id"] == ids[0]
    first = served.http.get("/v1/files?order=asc&purpose=batch").json()["data"]
    assert [each["id"] for each in first][-3:] == ids
    for query in ("limit=0", "limit=x", "limit=99999", "after=file-1"):
        assert served.http.get(f"/v1/files?{query}").status_code == 400
    for id in ids:
        served.client.files.delete(id)


def test_files_and_batches_outlive_a_server(serve_random, tmp_path):
    with serve_random(directory=tmp_path) as served:
        file = uploaded(served.client, lines(line("a")), "../rows.jsonl")
        batch = ended(served.client, begun(served.client, file, metadata={"for": "tests"}))
        before = answers(served.client, batch.output_file_id)
    with serve_random(directory=tmp_path) as served:
        assert served.client.batches.retrieve(batch.id) == batch
        assert served.client.files.retrieve(file.id) == file
        assert answers(served.client, batch.output_file_id) == before
    assert {path.parent for path in tmp_path.rglob("*")} == {tmp_path}
