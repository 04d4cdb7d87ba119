"""Put a view to the upstream, and get over an answer that says it is too long."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from app.context.calibration import Calibration
from app.conversation.messages import Conversation
from app.errors import GatewayError, UpstreamRefused
from app.pipeline.background_tasks import Tasks
from app.pipeline.call.first_event import Begun, begun, is_answer, no_answer
from app.pipeline.call.restored_fields import Restoring
from app.pipeline.call.upstream_request import upstream_body
from app.pipeline.persist.stored_completion import NUL
from app.pipeline.resolve.model_context import Slopes
from app.pipeline.respond.context_status import passed_on
from app.pipeline.respond.stream_relay import BAD_GATEWAY
from app.pipeline.view.view_builder import Turn, View, Views, too_long
from app.pipeline.view.view_state import calibration_of
from app.store.contract import Store
from app.upstream.protocols.overflow import Overflow, recognise
from app.upstream.provider import Deployment
from app.upstream.routing.router import OK, ReadReply, Router
from app.upstream.routing.windows import Windows

log = logging.getLogger(__name__)

RECOVERIES: Final = 2
"""After an overflow: once without any model call, once more with compaction."""
UNSTATED_LIMIT_SHARE: Final = 0.75
"""Where an overflow does not state its limit, the next view is this share of the one that was refused."""
DOUBTFUL_SHARE: Final = 0.5
"""An answer that may mean an overflow is taken for one if the prompt is above this share of the window."""
OUTPUT_MARGIN_TOKENS: Final = 64
REDIRECTS: Final = frozenset({300, 301, 302, 303, 307, 308})


class Asked(msgspec.Struct, frozen=True):
    """An upstream that has begun to answer with success: with a stream, or whole."""

    reply: Begun | ReadReply
    deployment: Deployment
    shown: View
    """What the deployment got: a smaller view than was planned, where its window is smaller."""


class Compacts(Protocol):
    """Makes room by summarizing (the exchange)."""

    async def compact(self, turn: Turn, view: View, *, on_start: Callable[[], None] | None = None) -> View: ...


class Ask:
    """Sends a view to the first deployment that answers, and learns from what it answers."""

    def __init__(
        self,
        *,
        router: Router,
        windows: Windows,
        views: Views,
        store: Store,
        tasks: Tasks,
        slopes: Slopes,
    ) -> None:
        self._router = router
        self._windows = windows
        self._views = views
        self._store = store
        self._tasks = tasks
        self._slopes = slopes
        self._restoring = Restoring(store=store)

    async def put(self, turn: Turn, view: View, compacts: Compacts) -> tuple[Asked, View]:
        """Ask; on an overflow answer learn its limit, plan again and ask again, at most twice.

        Raises:
            UpstreamRefused: the upstream's own error, as it came.
            UpstreamUnavailable: no deployment answered.
        """
        for attempt in range(RECOVERIES + 1):
            shown: dict[str, View] = {}
            opened = await self._router.open(
                turn.target,
                self._body_for(turn, view, shown),
                client_key=turn.client_key,
                headers=turn.request.forwarded,
            )
            reply, said = await begun(opened.reply, stream=turn.request.stream, source=opened.deployment.key)
            if said is None:
                return Asked(reply, opened.deployment, shown[opened.deployment.key]), view
            overflow = _overflow(reply.status, said, view)
            if overflow is None or attempt == RECOVERIES:
                shown_view = shown[opened.deployment.key]
                return await _accept(reply, said, opened.deployment, shown_view, stream=turn.request.stream), view
            await reply.aclose()
            view = await self._recovered(turn, view, overflow, opened.deployment, compacts, attempt)
        raise AssertionError("unreachable")

    async def again(
        self, deployment: Deployment, turn: Turn, sent: View, added: Sequence[bytes], added_tokens: int
    ) -> Asked:
        """Ask the deployment that has begun an answer to go on with it.

        Args:
            turn: whose request may differ in anything but its messages.
            sent: the view that was sent.
            added: JSON text of each message after it.
            added_tokens: their raw count.

        Raises:
            UpstreamRefused: the upstream's own error, as it came.
            UpstreamUnavailable: it did not answer.
        """
        filled = await self._filled(deployment, turn, sent)
        messages = [*(turn.request.raws if filled is None else filled), *added]
        body = upstream_body(turn.request, messages, deployment, sent.output_limit(added_tokens))

        async def body_for(_: Deployment) -> bytes:
            return body

        opened = await self._router.open(
            dataclasses.replace(turn.target, deployments=(deployment,)),
            body_for,
            client_key=turn.client_key,
            headers=turn.request.forwarded,
        )
        reply, said = await begun(opened.reply, stream=turn.request.stream, source=deployment.key)
        if said is None:
            return Asked(reply, deployment, sent)
        return await _accept(reply, said, deployment, sent, stream=turn.request.stream)

    async def _shown_to(self, deployment: Deployment, turn: Turn, view: View) -> View:
        """The view as a deployment gets it: a smaller one, made without a model, where its window is smaller."""
        if deployment is turn.target.deployments[0]:
            return view
        window = await self._windows.of(deployment, turn.client_key)
        if window.tokens >= view.budget.window:
            return view
        turn = replace(turn, window=window, calibration=self.calibration_for(deployment, turn))
        smaller = await self._views.make(turn, self._views.budget(turn), summarize="never")
        return replace(smaller, compaction=view.compaction, recovered=view.recovered)

    def calibration_for(self, deployment: Deployment, turn: Turn) -> Calibration:
        """What the turn's conversation has learned of a deployment, with the attachments that the turn shows."""
        if deployment.key == turn.model_key:
            return turn.calibration
        conversation = turn.place.conversation
        start_slope = self._slopes.start(deployment.key, conversation.tenant)
        known = calibration_of(conversation.state, deployment.key, start_slope)
        costs = {one.seq: one for one in known.attachments}
        attachments = (costs.get(one.seq, replace(one, cost_tokens=None)) for one in turn.calibration.attachments)
        return replace(known, attachments=tuple(attachments))

    def learn_slope(self, model_key: str, conversation: Conversation, calibration: Calibration) -> None:
        """Take note of how a model counts; new conversations start with it, here and on other replicas."""
        facts = self._slopes.learn(model_key, conversation.tenant, conversation.id, calibration)
        if facts is not None:
            self._learn(model_key, facts)

    def learn_window(self, model_key: str, tokens: int) -> None:
        """Take note of a window that a provider has shown."""
        if self._windows.learned(model_key, tokens):
            self._learn(model_key, {"window": tokens})

    def _body_for(self, turn: Turn, view: View, shown_by: dict[str, View]) -> Callable[[Deployment], Awaitable[bytes]]:
        async def body_for(deployment: Deployment) -> bytes:
            is_planned_for = deployment is turn.target.deployments[0]
            shown = view if is_planned_for else await self._shown_to(deployment, turn, view)
            shown_by[deployment.key] = shown
            messages = shown.messages
            if deployment.quirks.restore_fields:
                messages = await self._filled(deployment, turn, shown)
            return upstream_body(turn.request, messages, deployment, shown.output_limit())

        return body_for

    async def _filled(self, deployment: Deployment, turn: Turn, shown: View) -> Sequence[bytes] | None:
        """The messages of a view with what this deployment wants back of them."""
        return await self._restoring.fill(deployment.quirks, turn.place, shown.messages, turn.request.raws)

    async def _recovered(
        self,
        turn: Turn,
        view: View,
        overflow: Overflow,
        deployment: Deployment,
        compacts: Compacts,
        attempt: int,
    ) -> View:
        """A smaller view, or a lower limit for its answer, after an upstream said that this one is too long."""
        refused, limit = view.prompt_tokens, overflow.limit_tokens
        if limit is not None and limit < view.budget.window:
            self._windows.learned(deployment.key, limit)
            self._learn(deployment.key, {"window": limit})
        if overflow.only_output and (lowered := self._with_lower_output(turn, view, overflow)) is not None:
            return lowered
        window = min(limit or view.budget.window, view.budget.window)
        ratio = view.budget.ratio
        if overflow.prompt_tokens is not None and not overflow.at_least and view.plan.prompt_tokens:
            ratio = max(ratio, overflow.prompt_tokens / view.plan.prompt_tokens)
        elif limit is None or refused < limit:
            window = max(1, int(min(window, refused) * UNSTATED_LIMIT_SHARE))
        budget = self._views.budget(turn, window=window, ratio=ratio)
        smaller = await self._views.make(turn, budget, summarize="never" if attempt == 0 else "auto")
        if not smaller.plan.fits:
            raise too_long(smaller)
        if smaller.plan.to_summarize and attempt > 0 and turn.place.keeps:
            smaller = await compacts.compact(turn, smaller)
        log.info("recovering from an overflow: window %d, view of %d tokens", window, smaller.plan.prompt_tokens)
        return replace(smaller, recovered=True, compaction=smaller.compaction if attempt else view.compaction)

    def _with_lower_output(self, turn: Turn, view: View, overflow: Overflow) -> View | None:
        """The same messages with a lower limit for the answer; None where that would leave less room than is kept free
        for an answer, or did not help before."""
        limit, prompt = overflow.limit_tokens, overflow.prompt_tokens
        assert limit is not None
        assert prompt is not None
        if overflow.at_least and view.provider_output_limit is not None:
            return None
        ratio = max(view.budget.ratio, prompt / max(1, view.plan.prompt_tokens))
        budget = self._views.budget(turn, window=min(limit, view.budget.window), ratio=ratio)
        if overflow.at_least:
            room = limit - max(prompt, view.prompt_tokens) - budget.reserve
        else:
            room = limit - prompt - OUTPUT_MARGIN_TOKENS
        if room < max(1, budget.output):
            return None
        return replace(view, budget=budget, provider_output_limit=room, recovered=True)

    def _learn(self, model_key: str, facts: dict[str, object]) -> None:
        if NUL not in model_key:  # which no database can keep
            self._tasks.spawn(self._keep(model_key, facts))

    async def _keep(self, model_key: str, facts: dict[str, object]) -> None:
        try:
            await self._store.learn(model=model_key, facts=facts)
        except GatewayError as error:
            log.warning("what was learned of %s could not be stored: %s", model_key, error.message)


def _overflow(status: int, body: bytes, view: View) -> Overflow | None:
    found = recognise(status, body)
    if found is None or found.certain:
        return found
    return found if view.budget.calibrated(view.plan.prompt_tokens) > DOUBTFUL_SHARE * view.budget.window else None


async def _accept(reply: Begun | ReadReply, said: bytes, deployment: Deployment, shown: View, *, stream: bool) -> Asked:
    """Take an answer that says something else than a completion, if its client is to see that all the same.

    Raises:
        UpstreamRefused: it is the upstream's own error.
        UpstreamUnavailable: it is of no use.
    """
    if reply.status == OK and is_answer(reply, stream=stream):
        return Asked(reply, deployment, shown)
    await reply.aclose()
    raise _refusal(reply, said, deployment)


def _refusal(reply: Begun | ReadReply, body: bytes, deployment: Deployment) -> GatewayError:
    """What the client gets for an answer that is of no use."""
    status = reply.status
    if 400 <= status < 600:
        content_type = reply.headers.get("content-type", "application/json")
        return UpstreamRefused(status, body, {"content-type": content_type, **passed_on(reply.headers)})
    if 200 <= status < 300 and body.lstrip()[:1] == b"{" and b'"error"' in body:
        return UpstreamRefused(BAD_GATEWAY, body, {"content-type": "application/json"})
    if status in REDIRECTS:
        return no_answer(deployment, f"answered with status {status}. Redirects are not followed")
    if status != OK:
        return no_answer(deployment, f"answered with status {status}, which no chat completion has")
    return no_answer(deployment, "did not answer in the form that was asked for")
