"""Learns how a provider's token counts relate to ours: a slope and an offset, from the differences between reports.

A prompt costs `slope` × our count + `offset`. The slope is learned from what changed between two reports of one
conversation and model. The offset is what each request costs whatever it holds (a chat template, hidden instructions, a
preamble for tools): it cancels out of a difference. Stored counts stay raw; only comparisons multiply. Pure. See
decision 38.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec.structs import replace

LOWEST_SLOPE: Final = 0.7
HIGHEST_SLOPE: Final = 1.6
"""Tokenizers of current models count text between these many times as many tokens as ours (decision 38)."""
PRIOR_TOKENS: Final = 500
"""The slope that a conversation starts with weighs as much as this many compared tokens, and less with each further
one."""
PLAUSIBLE_FACTOR: Final = 2
PLAUSIBLE_TOKENS: Final = 32
"""A reported change that is outside the slopes by more than this factor and this many tokens has another cause than
the text: results of a provider's own tool, or a prompt that the provider cut."""
MIN_REPORTED_SHARE: Final = 0.5
"""A report below this share of our count of the messages is a provider's mistake, or covers only part of the prompt."""
HIGHEST_ATTACHMENT_RATE: Final = 5.0
"""If an attachment costs more than this multiple of our estimate, its rate is not used for the next one: it was a
file of unknown size."""
MAX_STORED_REPORTS: Final = 8
MAX_STORED_ATTACHMENTS: Final = 64

MIN_SILENT_TRUNCATION_TOKENS: Final = 1_024
"""No server is started with a smaller window, so a lower ceiling proves nothing."""
FLAT_REPORT_SHARES: Final = (0.8, 1.02)
"""A report within these shares of an earlier one is flat. The lower bound is well below 1: a provider that cuts
leaves out whole messages."""
SILENT_TRUNCATION_GROWTH_TOKENS: Final = 256
SILENT_TRUNCATION_GROWTH_SHARE: Final = 0.1
"""How much the prompt must grow while reports stay flat, counted at the lowest slope: this many tokens and this
share of the report."""


class AttachmentCost(msgspec.Struct, frozen=True):
    """The cost of the images, audio and files of one message in the view."""

    seq: int
    estimated_tokens: int
    cost_tokens: float | None = None
    """What the provider's report grew by when the attachment came; None before the first report."""


class CountedPrompt(msgspec.Struct, frozen=True):
    """A prompt that was sent, by our count."""

    estimated_tokens: int
    """Raw count of everything."""
    instructions_tokens: int
    """Raw count of its leading system and developer messages and tool schemas."""
    instructions: str = ""
    """Their digest (`digest_instructions`)."""
    boundary_seq: int = 0
    """Log messages before it are not shown."""
    has_provider_tools: bool = False
    """The provider may run tools itself; their results count as part of the prompt."""


class UsageReport(msgspec.Struct, frozen=True):
    """What a provider reported for a prompt, and what the prompt held by our count."""

    instructions: str
    instructions_tokens: int
    text_tokens: int
    """Raw count of everything but attachments."""
    attachments: tuple[int, ...]
    """`AttachmentCost.seq` of the attachments in the prompt."""
    attachments_tokens: float
    """The cost of these attachments at the provider."""
    reported_tokens: int

    @property
    def schemas(self) -> str:
        """The part of the instructions' digest that is about tool schemas."""
        return self.instructions.partition(".")[0]


class Calibration(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """What one conversation has learned of one model. Immutable; `learn_from_report` gives the next one."""

    start_slope: float = 1.0
    changed_reported: float = 0.0
    changed_estimated: float = 0.0
    """Sums over all compared pairs of reports. A prompt that became smaller adds the size of its change: signed sums
    would cancel out."""
    reports: tuple[UsageReport, ...] = ()
    """The last report for each digest of instructions, newest first."""
    attachments: tuple[AttachmentCost, ...] = ()
    """The attachments in the view, oldest first."""
    attachment_rate: float = 1.0
    """The cost of the last attachments as a multiple of our estimate."""
    ceiling: UsageReport | None = None
    """The highest report since the view was last cut. It reveals a provider that cuts silently."""

    @cached_property
    def slope(self) -> float:
        """Provider tokens per raw token of text, within 0.7 to 1.6."""
        # The starting slope loses weight as compared tokens add up: 500² ÷ (500 + compared) (decision 38).
        prior = PRIOR_TOKENS**2 / (PRIOR_TOKENS + self.changed_estimated)
        slope = (prior * self.start_slope + self.changed_reported) / (prior + self.changed_estimated)
        return min(HIGHEST_SLOPE, max(LOWEST_SLOPE, slope))

    @property
    def last_instructions_tokens(self) -> int | None:
        """Returns the raw count of the instructions of the newest report; None before there is one."""
        return self.reports[0].instructions_tokens if self.reports else None

    def estimate_offset_tokens(self, instructions_tokens: int, instructions_digest: str) -> float:
        """Returns what a prompt costs in addition to slope × our count, in the provider's tokens.

        It is the remainder of the report whose instructions are nearest. It is never so negative that messages would
        cost less than at the lowest slope.
        """
        slope, anchor = self.slope, self._find_nearest_report(instructions_digest)
        attached = sum([one.estimated_tokens for one in self.attachments])
        messages = 0 if anchor is None else max(0, anchor.text_tokens - anchor.instructions_tokens)
        lowest = -slope * (instructions_tokens + attached) - (slope - LOWEST_SLOPE) * messages
        attachments_tokens = self._sum_attachment_costs(self.attachments) if attached else 0.0
        return max(self._compute_base_tokens(anchor) + attachments_tokens - slope * attached, lowest)

    def estimate_planned_instructions_tokens(self, instructions_tokens: int, instructions_digest: str) -> int:
        """Returns the raw count of instructions to plan with. With it, slope × the raw count of a prompt is the
        provider's expected count, so planners need not know of an offset.
        """
        if not self.reports and not self.attachments:
            return instructions_tokens
        return instructions_tokens + round(
            self.estimate_offset_tokens(instructions_tokens, instructions_digest) / self.slope
        )

    def add_attachments(self, new_attachments: Iterable[AttachmentCost], *, head_seq: int) -> Calibration:
        """Returns the calibration for a prompt with more attachments.

        Args:
            new_attachments: those of the new messages.
            head_seq: the last message of the log before the new ones; attachments after it are of another branch.
        """
        known = tuple(one for one in self.attachments if one.seq <= head_seq)
        attachments = (*known, *new_attachments)[-MAX_STORED_ATTACHMENTS:]
        return self if attachments == self.attachments else replace(self, attachments=attachments)

    def drop_attachments_before(self, boundary_seq: int) -> Calibration:
        """Returns the calibration for a view that shows the log from a message on."""
        attachments = tuple(one for one in self.attachments if one.seq >= boundary_seq)
        return self if attachments == self.attachments else replace(self, attachments=attachments)

    def learn_from_report(self, prompt: CountedPrompt, reported_tokens: int) -> Calibration:
        """Returns the calibration after an answered prompt.

        Args:
            prompt: the prompt by our count.
            reported_tokens: the provider's input tokens, with cached tokens counted once.
        """
        if reported_tokens <= 0:
            return self
        shown = self.attachments and self.drop_attachments_before(prompt.boundary_seq).attachments
        report = self._build_report(prompt, shown, reported_tokens)
        # The report is of a cut prompt: it must not teach a slope. The ceiling stays the reference.
        if self.find_silent_truncation_window(prompt, reported_tokens) is not None:
            assert self.ceiling is not None
            return replace(self, attachments=shown, reports=_prepend_report(self.reports, self.ceiling))
        ceiling = self.ceiling
        # The ceiling stays while reports stay flat.
        if ceiling is None or ceiling.schemas != report.schemas or not _has_flat_reported_tokens(ceiling, report):
            ceiling = report
        known = replace(self, attachments=shown, ceiling=None if prompt.has_provider_tools else ceiling)
        messages_tokens = report.text_tokens - report.instructions_tokens
        # Without messages there is nothing to compare; an impossible report is ignored.
        if messages_tokens <= 0 or reported_tokens < MIN_REPORTED_SHARE * messages_tokens:
            return known
        anchor = self._find_nearest_report(prompt.instructions)
        # A report with a new attachment prices the attachment. It says nothing of the slope.
        if any(one.cost_tokens is None for one in shown):
            known = known._assign_attachment_costs(report, self._compute_base_tokens(anchor))
            report = replace(report, attachments_tokens=self._sum_attachment_costs(known.attachments))
            return replace(known, reports=_prepend_report(self.reports, report))
        if anchor is not None and _are_reports_comparable(anchor, report):
            reported = reported_tokens - anchor.reported_tokens
            estimated = report.text_tokens - anchor.text_tokens
            if _is_plausible_text_change(reported, estimated):
                sign = 1 if estimated >= 0 else -1
                known = replace(
                    known,
                    changed_reported=self.changed_reported + sign * reported,
                    changed_estimated=self.changed_estimated + sign * estimated,
                )
            elif prompt.has_provider_tools and reported > 0:  # results of a search, which the next prompt is without
                return known
        return replace(known, reports=_prepend_report(self.reports, report))

    def find_silent_truncation_window(self, prompt: CountedPrompt, reported_tokens: int) -> int | None:
        """Returns the window of a provider that cuts prompts silently, None if nothing suggests that. Reports of such a
        provider stay flat while our count grows.
        """
        ceiling = self.ceiling
        # Results of a provider's tools change reports in ways that our count cannot see.
        if ceiling is None or prompt.has_provider_tools or ceiling.reported_tokens < MIN_SILENT_TRUNCATION_TOKENS:
            return None
        grown = LOWEST_SLOPE * (prompt.estimated_tokens - ceiling.text_tokens)
        if grown < max(SILENT_TRUNCATION_GROWTH_TOKENS, SILENT_TRUNCATION_GROWTH_SHARE * ceiling.reported_tokens):
            return None
        # A client may have left an attachment out as the text grew.
        if self.attachments and self.drop_attachments_before(prompt.boundary_seq).attachments:
            return None
        report = self._build_report(prompt, (), reported_tokens)
        is_cut = _are_reports_comparable(ceiling, report) and _has_flat_reported_tokens(ceiling, report)
        return ceiling.reported_tokens if is_cut else None

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-ready form that `from_dict` reads."""
        facts: dict[str, Any] = msgspec.to_builtins(self)
        return facts

    @classmethod
    def from_dict(cls, facts: object, *, start_slope: float = 1.0) -> Calibration:
        """Reads what `to_dict` returned. Anything else, including what earlier versions stored, becomes an empty
        calibration.

        Args:
            facts: the stored form.
            start_slope: slope of an empty calibration.
        """
        if isinstance(facts, Mapping) and "reports" in facts:
            try:
                return msgspec.convert(facts, cls)
            except msgspec.ValidationError:
                pass
        return cls(start_slope=start_slope)

    def _find_nearest_report(self, instructions: str) -> UsageReport | None:
        """Returns the last report with the same instructions; else the last one with the same schemas; else
        the newest.
        """
        schemas = instructions.partition(".")[0]
        nearest = None
        for report in self.reports:
            if report.instructions == instructions:
                return report
            if nearest is None and report.schemas == schemas:
                nearest = report
        return nearest or next(iter(self.reports), None)

    def _compute_base_tokens(self, anchor: UsageReport | None) -> float:
        """Returns what a prompt costs before its text and attachments, according to a report."""
        if anchor is None:
            return 0.0
        return anchor.reported_tokens - self.slope * anchor.text_tokens - anchor.attachments_tokens

    def _assign_attachment_costs(self, report: UsageReport, base_tokens: float) -> Calibration:
        """Returns the calibration in which new attachments share what a report leaves for them, in proportion to their
        estimates.
        """
        fresh = [one for one in self.attachments if one.cost_tokens is None]
        known = sum(one.cost_tokens or 0.0 for one in self.attachments)
        left = max(0.0, report.reported_tokens - base_tokens - self.slope * report.text_tokens - known)
        rate = left / sum(one.estimated_tokens for one in fresh)
        costs = (replace(one, cost_tokens=rate * one.estimated_tokens) for one in fresh)
        by_seq = {one.seq: one for one in costs}
        return replace(
            self,
            attachments=tuple(by_seq.get(one.seq, one) for one in self.attachments),
            attachment_rate=rate if rate <= HIGHEST_ATTACHMENT_RATE else self.attachment_rate,
        )

    def _build_report(
        self, prompt: CountedPrompt, attachments: Sequence[AttachmentCost], reported_tokens: int
    ) -> UsageReport:
        return UsageReport(
            instructions=prompt.instructions,
            instructions_tokens=prompt.instructions_tokens,
            text_tokens=prompt.estimated_tokens - sum([one.estimated_tokens for one in attachments]),
            attachments=tuple([one.seq for one in attachments]),
            attachments_tokens=self._sum_attachment_costs(attachments) if attachments else 0.0,
            reported_tokens=reported_tokens,
        )

    def _sum_attachment_costs(self, attachments: Iterable[AttachmentCost]) -> float:
        """Returns the cost of attachments at the provider; estimated by the rate where it is not known."""
        rate = self.attachment_rate
        return sum(rate * one.estimated_tokens if one.cost_tokens is None else one.cost_tokens for one in attachments)


def digest_instructions(messages: Iterable[bytes], schemas: Mapping[str, bytes]) -> str:
    """Returns a digest of the leading system and developer messages and the tool schemas of a request.

    It has two parts: schemas and text. Text costs as other text does, so reports whose instructions differ in text
    alone are comparable. Schemas are not: each provider renders them in its own way.
    """
    return ".".join(
        (
            _hash_parts(part for name in sorted(schemas) for part in (name.encode(), schemas[name])),
            _hash_parts(messages),
        )
    )


def _hash_parts(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _prepend_report(reports: tuple[UsageReport, ...], newest: UsageReport) -> tuple[UsageReport, ...]:
    others = (one for one in reports if one.instructions != newest.instructions)
    return (newest, *islice(others, MAX_STORED_REPORTS - 1))


def _are_reports_comparable(before: UsageReport, after: UsageReport) -> bool:
    """Says whether only text changed between two reports."""
    return before.schemas == after.schemas and before.attachments == after.attachments


def _is_plausible_text_change(reported: int, estimated: int) -> bool:
    """Says whether a change between reports may be a change of text."""
    if estimated < 0:
        reported, estimated = -reported, -estimated
    least = LOWEST_SLOPE / PLAUSIBLE_FACTOR * estimated - PLAUSIBLE_TOKENS
    return least <= reported <= HIGHEST_SLOPE * PLAUSIBLE_FACTOR * estimated + PLAUSIBLE_TOKENS


def _has_flat_reported_tokens(before: UsageReport, after: UsageReport) -> bool:
    """Says whether a report for a longer prompt is no higher, and hardly lower, than an earlier one."""
    lowest, highest = FLAT_REPORT_SHARES
    share = after.reported_tokens / before.reported_tokens
    return after.text_tokens >= before.text_tokens and lowest <= share <= highest
