"""Where a passed-through request may name its model, and what it looks like under another name."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any
from urllib.parse import unquote_to_bytes

import httpx
import pytest

from app.api.passthrough_model import (
    MAX_FORM_FIELDS,
    PassthroughRequest,
    read_body_fields,
    read_model_name,
    replace_model_name,
)
from app.errors import InvalidRequest
from tests.api.test_models_and_passthrough import two_providers
from tests.live import ScriptedUpstream, completion
from tests.support.cpu_time import least_cpu_seconds
from tests.support.gateway import world

FORM = "application/x-www-form-urlencoded"
AUDIO = bytes(range(256)) * 5


def passed(body: bytes = b"", content_type: str = "", path: str = "/x", query: str = "") -> PassthroughRequest:
    return PassthroughRequest(path, query, content_type, body)


def multipart(fields: list[tuple[str, Any]], boundary: str = "b", disposition: str = "form-data") -> PassthroughRequest:
    pieces = []
    for name, value in fields:
        data, filename = (value, "") if isinstance(value, str) else (value.decode("latin-1"), '; filename="a.wav"')
        pieces.append(f'--{boundary}\r\nContent-Disposition: {disposition}; name="{name}"{filename}\r\n\r\n{data}\r\n')
    body = "".join([*pieces, f"--{boundary}--\r\n"]).encode("latin-1")
    return passed(body, f"Multipart/Form-Data; Boundary={boundary}")


def model_in(request: PassthroughRequest) -> str | None:
    return read_model_name(request, read_body_fields(request))


WRITTEN_FORMS = [
    passed(b'{"model":"m","n":1.10}', "application/json"),
    passed(b'{"model":"m","n":1.10}', "Application/JSON ; charset=utf-8"),
    passed(b'{"model":"m"}', "application/vnd.api+json"),
    passed(b'{"model":"m"}'),
    passed(b'{"model":"m"}', "text/plain"),
    passed(b'{"model":"m"}', FORM),
    passed(b"a=1&model=m&b=%FF+%26", f"{FORM.upper()}; charset=utf-8"),
    multipart([("file", AUDIO), ("model", "m"), ("language", "de")]),
    multipart([("model", "m"), ("file", AUDIO)], boundary="'-x_y.z-'"),
    passed(query="x=%C3%A9&model=m"),
    passed(path="/engines/m/completions"),
    passed(path="/deployments/m/embeddings"),
    passed(b'{"model":"m"}', "application/json", "/engines/m/embeddings", "model=m"),
]


@pytest.mark.parametrize("request_", WRITTEN_FORMS)
def test_a_model_is_read_wherever_it_stands_and_written_there(request_: PassthroughRequest) -> None:
    assert model_in(request_) == "m"
    renamed = replace_model_name(request_, "up stream/é&\"'")
    assert model_in(renamed) == "up stream/é&\"'"
    before, after = dict(read_body_fields(request_)), dict(read_body_fields(renamed))
    before.pop("model", None), after.pop("model", None)
    assert before == after


def test_a_file_stays_as_it_was_where_a_model_is_written_beside_it() -> None:
    written = replace_model_name(multipart([("file", AUDIO), ("model", "m")]), "other")
    assert AUDIO in written.body
    assert b'name="file"; filename="a.wav"' in written.body
    assert written.body.count(b"--b\r\n") == 2
    assert written.body.endswith(b"\r\n--b--\r\n")


@pytest.mark.parametrize(
    "request_",
    [
        passed(),
        passed(b'["model"]', "application/json"),
        passed(b'{"model":7}', "application/json"),
        passed(b'{"model":["m"]}', "application/json"),
        passed(b'{"model":"m"', "application/json"),
        passed(b"model=m", "text/plain"),
        multipart([("file", b"model")]),
        multipart([("model", b"of a file")]),
        passed(b"--b\r\nno part", "multipart/form-data; boundary=b"),
        passed(multipart([("model", "m")]).body, "multipart/form-data"),
        passed(multipart([("model", "m")]).body, 'multipart/form-data; boundary="b\\"c"'),
        passed(multipart([("model", "m")]).body[:-8], "multipart/form-data; boundary=b"),
        passed(path="/files/engines/m"),
        passed(query="models=m"),
    ],
)
def test_no_model_is_read_where_none_stands(request_: PassthroughRequest) -> None:
    assert model_in(request_) is None


@pytest.mark.parametrize(
    "request_",
    [
        passed(b'{"model":"a"}', "application/json", query="model=b"),
        passed(b"model=a&model=b", FORM),
        passed(query="model=a&model=b"),
        passed(query="model=a", path="/engines/b/completions"),
        multipart([("model", "a"), ("model", "b")]),
        multipart([("model", "a"), ("model[]", "b")]),
    ],
)
def test_a_request_that_names_several_models_is_refused(request_: PassthroughRequest) -> None:
    with pytest.raises(InvalidRequest, match="several models: 'a', 'b'"):
        model_in(request_)


def test_a_form_of_too_many_fields_is_refused() -> None:
    for request in (
        multipart([("a", "b")] * (MAX_FORM_FIELDS + 1)),
        passed(b"&".join([b"a=b"] * (MAX_FORM_FIELDS + 1)), FORM),
        passed(query="&".join(["a=b"] * (MAX_FORM_FIELDS + 1))),
    ):
        with pytest.raises(InvalidRequest, match="at most 1000 fields"):
            model_in(request)
    assert model_in(multipart([("a", "b")] * (MAX_FORM_FIELDS - 1) + [("model", "m")])) == "m"


def test_a_form_that_is_written_anew_holds_nothing_that_was_not_read() -> None:
    """Names that other readers would take for `model`."""
    body = (
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
        b"--b\r\nContent-Disposition: form-data; name=\"x\"; name*=utf-8''model\r\n\r\n1\r\n"
        b'--b\r\nContent-Disposition: form-data; name="y\\z"\r\nX-Own: 1\r\n'
        b'Content-Type: a\nContent-Disposition: form-data; name="model"\r\n\r\n2\r\n'
        b'--b--\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n3\r\n--b--\r\n'
    )
    written = replace_model_name(passed(body, "multipart/form-data; boundary=c; boundary=b"), "m")
    assert written.content_type == 'multipart/form-data; boundary="b"'
    assert written.body == (
        b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
        b'--b\r\ncontent-disposition: form-data; name="x"\r\n\r\n1\r\n'
        b'--b\r\ncontent-disposition: form-data; name="y%5Cz"\r\n\r\n2\r\n--b--\r\n'
    )


@pytest.mark.parametrize("filling", [b"\r\n--bX" * 500_000, b"\r\n--b" + b" " * 3_000_000 + b"\r\n\r\n"])
def test_a_form_that_is_slow_to_read_is_not_read(filling: bytes) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm' + filling + b"\r\n--b--\r\n"
    began = time.process_time()
    with contextlib.suppress(InvalidRequest):
        assert model_in(passed(body, "multipart/form-data; boundary=b")) is None
    assert time.process_time() - began < 0.5


def test_a_form_is_decoded_only_where_it_names_a_model() -> None:
    escaped = b"%41" * 2_000_000

    def read_all() -> None:
        for form in (b"a=" + escaped, escaped, escaped + b"=a"):
            assert model_in(passed(form, FORM)) is None
        with pytest.raises(InvalidRequest, match="at most 4096 bytes"):
            model_in(passed(b"model=" + escaped, FORM))

    assert least_cpu_seconds(read_all) < least_cpu_seconds(lambda: unquote_to_bytes(escaped))


async def test_a_transcription_goes_to_the_provider_of_its_model() -> None:
    one, two = (ScriptedUpstream(default=lambda _: completion()) for _ in range(2))
    one.replies = [completion() for _ in range(9)]
    two.replies = [completion() for _ in range(9)]
    async with two_providers(one, two) as w:
        audio = {"file": ("a.wav", AUDIO, "audio/wav")}
        await w.client.post(f"{w.base_url}/audio/transcriptions", files=audio, data={"model": "alias"})
        await w.client.post(f"{w.base_url}/audio/transcriptions", files=audio, data={"model": "other"})
        for content_type in ("Application/JSON", "application/json;charset=UTF-8"):
            body = json.dumps({"model": "alias"})
            await w.client.post(f"{w.base_url}/embeddings", content=body, headers={"content-type": content_type})
        await w.client.post(f"{w.base_url}/rerank", data={"model": "alias"})
        await w.client.post(f"{w.base_url}/realtime?model=alias&x=1", content=b"v=0")
        await w.client.post(f"{w.base_url}/engines/alias/completions", json={"prompt": "x"})
    assert len(one.bodies) == 1
    assert b"other" in one.bodies[0]
    spoken, *rest = two.bodies
    assert (b"upstream-model" in spoken, AUDIO in spoken, b"alias" in spoken) == (True, True, False)
    assert rest[:3] == [b'{"model":"upstream-model"}'] * 2 + [b"model=upstream-model"]
    assert two.paths[-2:] == ["/v1/realtime", "/v1/engines/upstream-model/completions"]
    sent = httpx.Request("POST", "http://x", content=spoken, headers={"content-type": two.headers[0]["content-type"]})
    assert sent.headers["content-type"].startswith("multipart/form-data; boundary=")


async def test_a_form_that_cannot_be_read_goes_to_the_first_provider_as_it_came() -> None:
    upstream = ScriptedUpstream(completion())
    async with world(upstream) as w:
        kind = {"content-type": "multipart/form-data; boundary=b"}
        answer = await w.client.post(f"{w.base_url}/files", content=b"--b\r\nbroken", headers=kind)
    assert (answer.status_code, upstream.bodies) == (200, [b"--b\r\nbroken"])
    assert upstream.headers[0]["content-type"] == "multipart/form-data; boundary=b"
