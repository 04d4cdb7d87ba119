"""`concertina doctor`: tries out the configured store and each provider, and says what it found in plain sentences."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlsplit

import orjson

from app.api.chat_request_parser import parse_chat_request
from app.assembly.providers_and_routes import (
    build_context_windows,
    build_deployment_routes,
    build_learned_limits,
    build_providers,
)
from app.commands import add_config_option, make_printable
from app.commands.check_config import warn_of_unpriced_models
from app.commands.configured_store import open_configured_store
from app.commands.progress import pluralize
from app.dialects.answer_decoding import AnswerDecoder
from app.dialects.provider_dialects import PROVIDER_DIALECTS
from app.dialects.sse import SseDecoder
from app.errors import GatewayError, UpstreamUnavailable
from app.pipeline.call.upstream_request_body import build_upstream_body
from app.pipeline.turn.chat_request import Caller
from app.settings import Settings, load_settings
from app.settings.checks import list_empty_key_warnings
from app.settings.configuration_errors import find_nearest_name
from app.settings.providers_and_models import EVERY_MODEL, Provider, Timeouts
from app.settings.value_types import strip_credentials
from app.upstream.protocols.openai_provider import parse_model_list
from app.upstream.provider_contract import (
    CALL_PATHS,
    ClientKeyRule,
    ModelDeployment,
    ProviderProtocol,
    UpstreamProvider,
    UpstreamReply,
    UpstreamRequest,
)
from app.upstream.routing.router import BufferedReply
from app.upstream.routing.routes import Routes
from migrations import run as migrations

LIST_SECONDS: Final = 10.0
"""How long a provider may take for its model list."""
ASK_SECONDS: Final = 60.0
"""How long a model may take for one word: a server that loads the model first needs most of it."""
MAX_CLOCK_SECONDS: Final = 60.0
"""A clock that is wrong by more makes keys expire at the wrong time, and some providers refuse its requests."""
MAX_REASON_CHARS: Final = 200
MAX_NAMED_MODELS: Final = 20
MIN_SECRET_CHARS: Final = 4
"""Parts of a secret of this length are hidden in a provider's words: providers quote the ends of a refused key."""
STATUS_OK: Final = 200
STATUS_NOT_FOUND: Final = 404
KEY_REFUSED: Final = (401, 403)
QUESTION: Final = "Answer with the single word OK."
SKIPPED_QUESTION: Final = "The question of --ask was skipped: no key."

Level = Literal["ok", "warning", "fault"]


@dataclass
class Report:
    """What was found out about one thing. Each finding is a level and a sentence."""

    title: str
    findings: list[tuple[Level, str]] = field(default_factory=list)
    example_model: str | None = None
    """A model that exists, by the name that a client asks for."""
    needs_client_key: bool = False
    """Whether a request for the example must bring a key."""

    def add(self, level: Level, sentence: str) -> None:
        self.findings.append((level, make_printable(sentence)))


def run(arguments: argparse.Namespace) -> int:
    overrides: list[str] = []
    settings = load_settings(arguments.config, on_override=overrides.append)
    return asyncio.run(_examine(settings, overrides, asks=arguments.ask))


async def _examine(settings: Settings, overrides: Sequence[str], *, asks: bool) -> int:
    """Prints one report after the other; returns the exit status: 1 if there is a fault."""
    started_at = time.monotonic()
    print("Settings")
    reports = [_print_findings(_describe_settings(settings, overrides))]
    print(f"Database {settings.database.location}")
    reports.append(_print_findings(await _examine_store(settings)))
    for report in await _examine_providers(settings, asks=asks):
        print(report.title)
        reports.append(_print_findings(report))
    levels = [level for report in reports for level, _ in report.findings]
    faults, warnings = levels.count("fault"), levels.count("warning")
    print(
        f"{pluralize(faults, 'fault')}, {pluralize(warnings, 'warning')}, "
        f"after {time.monotonic() - started_at:.1f} seconds."
    )
    if faults:
        return 1
    example = next((report for report in reports if report.example_model is not None), None)
    if example is not None:
        print(f"Start the gateway with: concertina serve{settings.config_option}")
        print(f"Try: {_build_first_request(example, settings)}")
    return 0


def _build_first_request(example: Report, settings: Settings) -> str:
    """Returns a shell command that sends a first request to the gateway."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.server.host, settings.server.host)  # noqa: S104
    address = f"http://{f'[{host}]' if ':' in host else host}:{settings.server.port}/v1/chat/completions"
    needs_key = settings.auth.mode == "keys" or example.needs_client_key
    body = {"model": example.example_model, "messages": [{"role": "user", "content": "Hello"}]}
    key_header = " -H 'Authorization: Bearer KEY'" if needs_key else ""
    return make_printable(
        f"curl {address} -H 'Content-Type: application/json'{key_header} -d {shlex.quote(json.dumps(body))}"
    )


def _print_findings(report: Report) -> Report:
    for level, sentence in report.findings:
        print(f"  {level:<8} {sentence}")
    return report


def _describe_settings(settings: Settings, overrides: Sequence[str]) -> Report:
    report = Report("Settings")
    names = [name for name in settings.served_models if name != EVERY_MODEL]
    report.add(
        "ok",
        f"They can be used: {pluralize(len(settings.providers), 'provider')}, "
        f"{pluralize(len(names), 'model')} by name, mode '{settings.auth.mode}', policy '{settings.policy}'.",
    )
    for sentence in overrides:
        report.add("ok", f"{sentence}.")
    for sentence in list_empty_key_warnings(settings):
        report.add("warning", sentence)
    if not settings.compaction.capsule_key:
        report.add(
            "warning",
            "compaction.capsule_key is not set: the key of the compactions that clients keep is in the database alone.",
        )
    for sentence in warn_of_unpriced_models(settings) if settings.auth.mode == "keys" else ():
        report.add("warning", sentence)
    return report


async def _examine_store(settings: Settings) -> Report:
    """Makes or upgrades the tables as `serve` does, then opens the store and makes a round trip."""
    report = Report("Database")
    started_at = time.monotonic()
    try:
        # In a thread: for PostgreSQL it runs an event loop of its own.
        await asyncio.to_thread(
            migrations.prepare_database,
            settings.database.url.get_secret_value(),
            auto_migrate=settings.database.auto_migrate,
        )
        async with open_configured_store(settings) as store:
            info = await store.check()
            has_keys = bool(await store.list_api_keys())
            limits = build_learned_limits(settings)
            limits.restore(await store.read_model_facts())
    except (migrations.SchemaIsNewer, migrations.SchemaIsOlder, GatewayError) as error:
        report.add("fault", f"It cannot be used: {add_config_option(str(error), settings.config_option)}")
        return report
    seconds = time.monotonic() - started_at
    report.add("ok", f"It opens ({info.backend}), and its schema is {info.schema_version}, after {seconds:.2f} s.")
    if info.backend == "memory":
        report.add("warning", "It forgets everything when the process ends.")
    for key, limit in limits.list_limits().items():
        origin = "which the provider named" if limit.is_stated else "estimated from what it refused"
        report.add(
            "warning",
            f"{key!r} has refused prompts as too long for a window of {limit.tokens:,} tokens, {origin}. "
            f"Set context_window for it, or clear the limit: DELETE /v1/admin/learned-limits/{key}",
        )
    if settings.auth.mode == "keys" and not has_keys:
        hint = f"concertina keys create --name NAME{settings.config_option}"
        report.add("warning", f"There is no key yet, so nobody is served: {hint}")
    return report


async def _examine_providers(settings: Settings, *, asks: bool) -> list[Report]:
    """Calls all providers at the same time."""
    if settings.uses_simulated_model:
        report = Report("No provider")
        report.example_model = "sim-8k"
        report.add(
            "ok", "The built-in simulated model answers: answers are made up. `concertina init` adds a provider."
        )
        return [report]
    timeouts = Timeouts(connect_seconds=5, first_byte_seconds=ASK_SECONDS, between_bytes_seconds=20, total_seconds=90)
    sections = {name: section.model_copy(update={"timeouts": timeouts}) for name, section in settings.providers.items()}
    providers = build_providers(settings.model_copy(update={"providers": sections}))
    try:
        examinations = [
            _ProviderExamination(provider, settings.providers[name], settings, asks=asks)
            for name, provider in providers.items()
        ]
        return list(await asyncio.gather(*(examination.run() for examination in examinations)))
    finally:
        for provider in providers.values():
            await provider.aclose()


class _FetchedModelList:
    """Stands for a provider whose model list has been fetched, so that windows are found without another call.
    Implements `upstream.provider_contract.UpstreamProvider`.
    """

    def __init__(self, provider: UpstreamProvider, entries: list[dict[str, Any]]) -> None:
        self.name = provider.name
        self.protocol: ProviderProtocol = provider.protocol
        self.client_key_rule: ClientKeyRule = provider.client_key_rule
        self._entries = entries

    async def send(self, request: UpstreamRequest) -> UpstreamReply:
        raise UpstreamUnavailable("Only the model list is here.")

    async def list_models(self, authorization: str | None) -> list[dict[str, Any]]:
        return self._entries

    async def aclose(self) -> None:
        return None


class _ProviderExamination:
    """Calls one provider, and describes what it answers."""

    def __init__(self, provider: UpstreamProvider, section: Provider, settings: Settings, *, asks: bool) -> None:
        self._provider = provider
        self._section = section
        self._settings = settings
        self._report = Report(f"Provider {provider.name}, {strip_credentials(section.base_url)}")
        # In mode `open` a provider without a key of its own gets the clients' keys, which the doctor does not have.
        self._needs_client_key = settings.auth.mode == "open" and section.client_key_rule != "never"
        self._asks = asks
        self._report.needs_client_key = self._needs_client_key and not section.has_private_address

    async def run(self) -> Report:
        entries = await self._fetch_model_list()
        if entries is None:
            return self._report
        listed_provider = _FetchedModelList(self._provider, entries.entries)
        deployments = list(self._list_deployments(listed_provider))
        windows = build_context_windows(self._settings, build_learned_limits(self._settings))
        try:
            for name, deployment in deployments[:MAX_NAMED_MODELS]:
                window = await windows.find_window(deployment)
                self._describe_model(name, deployment, entries, window.tokens, window.source)
            candidates = [name for name, deployment in deployments if deployment.upstream_model in entries.names]
            if self._serves_every_model:
                listed = [ModelDeployment(listed_provider, entry) for entry in entries.names]
                sources = [(await windows.find_window(one)).source for one in listed]
                self._describe_other_models(len(listed), sources.count("default"))
                # Models of known windows first: a list also has models that do not chat.
                ordered = sorted(zip(entries.names, sources, strict=True), key=lambda entry: entry[1] == "default")
                candidates += [name for name, _ in ordered]
            self._report.example_model = next(iter(candidates), None)
        finally:
            await windows.aclose()
        if self._asks:
            await self._ask_cheapest_model([deployment for _, deployment in deployments], entries.names)
        return self._report

    async def _fetch_model_list(self) -> _ModelList | None:
        """Returns the provider's model list; None if nothing more can be found out. One call also shows whether the
        provider can be reached, whether it accepts the key, and whether both clocks agree.
        """
        started_at = time.monotonic()
        reply = await self._call(UpstreamRequest("/models", method="GET"), LIST_SECONDS)
        if reply is None:
            return None
        self._report.add("ok", f"It is reachable, and answered after {(time.monotonic() - started_at) * 1000:.0f} ms.")
        self._compare_clocks(reply.headers.get("date"))
        if reply.status in KEY_REFUSED:
            self._describe_refusal(reply)
            return None
        setting = f"providers.{self._provider.name}.base_url"
        if reply.status == STATUS_NOT_FOUND:
            suggestion = await self._suggest_address()
            if suggestion is not None:
                self._report.add("fault", f"It has nothing at this address (404). Change {setting}: {suggestion}")
                return None
            self._report.add("warning", f"It has no model list (404). Is {setting} right?")
            return _ModelList([], is_complete=False)
        if reply.status != STATUS_OK:
            self._report.add("fault", f"Its model list is answered with {reply.status}: {self._quote(reply.body)}")
            return None
        try:
            entries = parse_model_list(self._provider.name, reply.body)
        except UpstreamUnavailable as error:
            suggestion = await self._suggest_address()
            self._report.add(
                "fault",
                f"{error.message} Is {setting} right?"
                if suggestion is None
                else f"{error.message} Change {setting}: {suggestion}",
            )
            return None
        if self._section.has_own_key:
            self._report.add("ok", "It does not refuse the key.")
        model_list = _ModelList(entries, is_complete=b'"has_more":true' not in reply.body.replace(b" ", b""))
        self._report.add("ok", f"It lists {pluralize(len(entries), 'model')}.")
        return model_list

    async def _suggest_address(self) -> str | None:
        """Returns a question with the address that ends with `/v1`, if there is a model list; else None."""
        address = strip_credentials(self._section.base_url).rstrip("/")
        if address.endswith("/v1"):
            return None
        try:
            reply = await self._send(UpstreamRequest("/v1/models", method="GET"), LIST_SECONDS)
        except (TimeoutError, GatewayError):
            return None
        return f"did you mean {address}/v1?" if reply.status in (STATUS_OK, *KEY_REFUSED) else None

    async def _send(self, request: UpstreamRequest, seconds: float) -> BufferedReply:
        async with asyncio.timeout(seconds):
            reply = await self._provider.send(request)
            try:
                return BufferedReply(reply.status, reply.headers, await reply.read())
            finally:
                await reply.aclose()

    async def _call(self, request: UpstreamRequest, seconds: float) -> BufferedReply | None:
        """Sends one call. Failures are described; the result is then None."""
        try:
            return await self._send(request, seconds)
        except TimeoutError:
            self._report.add("fault", f"It did not answer within {seconds:g} seconds.")
        except GatewayError as error:
            self._report.add("fault", f"It cannot be called: {self._hide_secrets(error.message)}")
        return None

    def _describe_refusal(self, reply: BufferedReply) -> None:
        reason = f"{reply.status}: {self._quote(reply.body)}"
        if self._needs_client_key:
            self._report.add(
                "ok", f"It wants a key, and gets the client's, since it has none of its own ({reply.status})."
            )
            if self._asks:
                self._report.add("warning", SKIPPED_QUESTION)
        elif self._section.has_own_key:
            self._report.add("fault", f"It refuses the key ({reason}). Check providers.{self._provider.name}.api_key.")
        else:
            self._report.add("fault", f"It wants a key ({reason}). Set providers.{self._provider.name}.api_key.")

    def _compare_clocks(self, date: str | None) -> None:
        try:
            theirs = parsedate_to_datetime(date or "")
        except ValueError:
            return
        seconds = (datetime.now(UTC) - theirs.replace(tzinfo=theirs.tzinfo or UTC)).total_seconds()
        if abs(seconds) > MAX_CLOCK_SECONDS:
            direction = "ahead of" if seconds > 0 else "behind"
            self._report.add(
                "warning", f"This machine's clock is {abs(seconds):.0f} seconds {direction} the provider's."
            )

    @property
    def _serves_every_model(self) -> bool:
        every_model = self._settings.served_models.get(EVERY_MODEL)
        providers = {one.provider for one in every_model.expand_deployments()} if every_model else set()
        return self._provider.name in providers

    def _list_deployments(self, provider: UpstreamProvider) -> Iterator[tuple[str, ModelDeployment]]:
        """Yields the models that are configured by name and served here."""
        every_provider = dict.fromkeys(self._settings.providers, provider)
        routes = Routes(build_deployment_routes(self._settings), every_provider)
        for name, model in self._settings.served_models.items():
            if name == EVERY_MODEL:
                continue
            # Behind a model's own deployments stand those of its fallbacks.
            for section, deployment in zip(model.expand_deployments(), routes.resolve(name).deployments, strict=False):
                if section.provider == self._provider.name:
                    yield name, deployment

    def _describe_model(
        self, name: str, deployment: ModelDeployment, listed: _ModelList, window: int, source: str
    ) -> None:
        model = deployment.upstream_model
        shown = f"Model {name!r}" if name == model else f"Model {name!r} ({model!r} there)"
        known = {
            "config": "as configured",
            "upstream": "by the provider's list",
            "registry": "as is known of this model",
        }
        if source == "default":
            self._report.add(
                "warning",
                f"{shown}: its window is not known, so {window:,} tokens are assumed. Set context_window for it.",
            )
        else:
            self._report.add("ok", f"{shown}: its window is {window:,} tokens, {known.get(source, source)}.")
        if listed.is_complete and listed.names and model not in listed.names:
            nearest = find_nearest_name(model, listed.names)
            suggestion = f"; did you mean {nearest!r}?" if nearest else "."
            self._report.add("warning", f"{shown} is not in the provider's list{suggestion}")

    def _describe_other_models(self, listed: int, unknown: int) -> None:
        if not listed:
            return
        known = f"the windows of {listed - unknown} of {pluralize(listed, 'listed model')} are known"
        rest = f"; the others count as {self._settings.window_default:,} tokens" if unknown else ""
        self._report.add("ok", f"Every model name is passed on to it; {known}{rest}.")

    async def _ask_cheapest_model(self, configured: Sequence[ModelDeployment], listed: Sequence[str]) -> None:
        """Lets a model stream one word: the cheapest of the configured ones, else of the listed ones."""
        candidates = configured or [ModelDeployment(self._provider, name) for name in listed]
        if not candidates:
            self._report.add("warning", "No model is configured by name or listed, so none was asked.")
            return
        cheapest = min(candidates, key=_compute_price)
        deployment = ModelDeployment(self._provider, cheapest.upstream_model, quirks=cheapest.quirks)
        started_at = time.monotonic()
        reply = await self._call(_build_question(deployment), ASK_SECONDS)
        if reply is None:
            return
        model = deployment.upstream_model
        if reply.status in KEY_REFUSED and self._needs_client_key:
            self._report.add("warning", SKIPPED_QUESTION)
            return
        if reply.status != STATUS_OK:
            self._report.add("fault", f"Model {model!r} refused a question ({reply.status}: {self._quote(reply.body)})")
            return
        answer = _read_answer(reply.body, self._provider.protocol)
        if not (answer.has_content or answer.is_complete):
            self._report.add("fault", f"Model {model!r} did not stream an answer: {self._quote(reply.body)}")
            return
        self._report.add("ok", f"Model {model!r} streamed an answer after {time.monotonic() - started_at:.1f} s.")
        if (usage := answer.usage) is None:
            self._report.add(
                "warning", "Its stream reports no usage, so estimates of tokens cannot be corrected, nor costs counted."
            )
        else:
            self._report.add("ok", f"It reports usage: {usage.get('prompt_tokens')} prompt tokens for the question.")

    def _quote(self, body: bytes) -> str:
        """Returns the message of an error body, short and without secrets."""
        try:
            error = orjson.loads(body)
            error = error[0] if isinstance(error, list) and error else error
            error = error.get("error", error) if isinstance(error, dict) else error
            text = error.get("message") if isinstance(error, dict) else error
        except orjson.JSONDecodeError:
            text = body.decode(errors="replace")
        text = " ".join(self._hide_secrets(str(text or "no reason")).split())
        return text if len(text) <= MAX_REASON_CHARS else f"{text[:MAX_REASON_CHARS]}…"

    def _hide_secrets(self, text: str) -> str:
        """Replaces each word that has a secret in it, or the beginning or end of one, or stars in place of one."""
        section, url = self._section, urlsplit(self._section.base_url)
        secrets = [section.api_key, section.proxy, *section.headers.values()]
        values = [secret.get_secret_value() for secret in secrets if secret]
        values += [text for text in (url.username, url.password, *dict(parse_qsl(url.query)).values()) if text]
        parts = {part for value in values for part in (value[:MIN_SECRET_CHARS], value[-MIN_SECRET_CHARS:])} | {"***"}
        return re.sub(r"\S+", lambda word: "…" if any(part in word[0] for part in parts) else word[0], text)


@dataclass(frozen=True, slots=True)
class _ModelList:
    """A provider's model list. `is_complete`: it has no further pages."""

    entries: list[dict[str, Any]]
    is_complete: bool

    @property
    def names(self) -> list[str]:
        found = [entry.get("id") or entry.get("name") for entry in self.entries]
        return [name.removeprefix("models/") for name in found if isinstance(name, str)]


def _compute_price(deployment: ModelDeployment) -> float:
    """Returns a number by which models are compared; models without a known price come last."""
    price = deployment.price
    return float("inf") if price.input is None or price.output is None else price.input + price.output


def _build_question(deployment: ModelDeployment) -> UpstreamRequest:
    body = {"model": deployment.upstream_model, "messages": [{"role": "user", "content": QUESTION}], "stream": True}
    request = parse_chat_request(orjson.dumps(body), {}, Caller("doctor"), "doctor")
    encoded = build_upstream_body(request, None, deployment).body
    return UpstreamRequest(CALL_PATHS[deployment.provider.protocol], encoded)


def _read_answer(body: bytes, protocol: str) -> AnswerDecoder:
    """Reads a streamed answer, as far as it can be read."""
    events, answer = SseDecoder(), PROVIDER_DIALECTS[protocol].make_decoder()
    with suppress(UpstreamUnavailable):
        for event in (*events.feed(body), *events.flush()):
            if event.data and event.data.strip() and not answer.has_ended:
                answer.decode(event.data.strip(), event.name)
    return answer
