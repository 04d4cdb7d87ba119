"""Makes dialogues: two named speakers who chat over many sessions with dates, with facts strewn in.

Each message begins with the session's date and the speaker's name: `[8 May, 2023] Ann: …`. The first speaker has the
user's role, the second the assistant's. Besides small talk there are

- facts, told in one turn (`single`), as a reply to the other's question, which has the words of the later question
  (`turn after`), or before the other one asks back in these words (`turn before`);
- events, of which the day is asked (`temporal`);
- what needs several turns: `list`, `chain` and `pair`;
- turns that mention a fact's subject without its answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.benchmarks.quality.chatter import Chatter
from tests.benchmarks.quality.multi_hop_facts import Hops, make_chains, make_lists
from tests.benchmarks.quality.relations import Fact, make_facts
from tests.benchmarks.quality.talks import Evidence, Talk, TalkQuestion, find_passage
from tests.benchmarks.quality.texts import normalised, occurs
from tests.benchmarks.quality.vocabulary import MONTHS, Vocabulary

FIRST_YEAR, LAST_YEAR = 2019, 2023
LONGEST_PAUSE_DAYS: Final = 24
MONTH_DAYS: Final = 28
EVENTS: Final = (
    ("ran my first ten kilometres", "run the first ten kilometres"),
    ("adopted a second cat", "adopt a second cat"),
    ("had my driving test", "have the driving test"),
    ("planted three apple trees", "plant three apple trees"),
    ("went to a pottery class", "go to a pottery class"),
    ("handed in my thesis", "hand in the thesis"),
    ("sold my old caravan", "sell the old caravan"),
    ("sang on a stage", "sing on a stage"),
    ("had my tonsils out", "have the tonsils out"),
    ("repainted the whole fence", "repaint the whole fence"),
    ("spoke in front of the town council", "speak in front of the town council"),
    ("went ice skating with my nephew", "go ice skating with the nephew"),
    ("took the night ferry", "take the night ferry"),
    ("got my first pair of glasses", "get the first pair of glasses"),
    ("won the raffle", "win the raffle"),
    ("moved my desk into the loft", "move the desk into the loft"),
    ("gave blood", "give blood"),
    ("broke my grandmother's vase", "break the grandmother's vase"),
    ("watched the lunar eclipse", "watch the lunar eclipse"),
    ("met my pen friend face to face", "meet the pen friend face to face"),
    ("learned to knit socks", "learn to knit socks"),
    ("dyed my hair", "dye the hair"),
    ("opened the stall at the craft fair", "open the stall at the craft fair"),
    ("saw a whale", "see a whale"),
)
TOLD_TODAY: Final = (
    "You will laugh, but today I {past}!",
    "I {past} today, can you believe it?",
    "Today was the day: I {past}.",
    "Guess what, I {past} this morning.",
    "So I {past} today and I am still shaking.",
)
ASKED_WHEN: Final = ("When did {who} {base}?", "On what date did {who} {base}?", "On which day did {who} {base}?")
GUESSES: Final = (
    "Wait, is that about what I asked you? {prompt}",
    "Hold on, I need some context. {prompt}",
    "I lost the thread for a second. {prompt} Is that it?",
)
BARE_OPENERS: Final = ("Oh, I nearly forgot.", "Guess what.", "It is settled, finally.", "News from me!", "Well.")
SHAPES: Final = ("single", "single", "turn after", "turn after", "turn before")
"""Of the ways to tell a fact, in which proportion they occur."""


@dataclass(frozen=True, slots=True)
class Mix:
    """How long a dialogue is, and how many questions of each kind it has, for each speaker."""

    turns: tuple[int, int] = (340, 560)
    sessions: tuple[int, int] = (12, 19)
    facts: int = 22
    events: int = 5
    lists: int = 2
    chains: int = 2
    pairs: int = 2


DIALOGUE: Final = Mix()


@dataclass(slots=True)
class Step:
    """One step of an answer: its sentence and words; `turn` is where it went."""

    sentence: str
    words: str
    is_unique: bool = True
    is_dated: bool = False
    turn: int = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """Turns that follow each other, each of a speaker (0 or 1), and the steps that they tell."""

    turns: Sequence[tuple[int, str]]
    steps: Sequence[tuple[int, Step]] = ()


@dataclass(slots=True)
class _Draft:
    """What a dialogue is made of."""

    pieces: list[Piece] = field(default_factory=list)
    questions: list[tuple[str, str, list[Step]]] = field(default_factory=list)
    """Text, kind and steps."""


def build_dialogue(seed: int, mix: Mix = DIALOGUE) -> Talk:
    """Returns the dialogue of a seed."""
    draw = random.Random(seed)
    words, chatter = Vocabulary(draw), Chatter(draw)
    speakers = [words.make("first") for _ in range(2)]
    draft = _Draft()
    events = draw.sample(EVENTS, 2 * mix.events)
    for speaker, who in enumerate(speakers):
        singles = _add_facts(draft, draw, chatter, make_facts(draw, words, mix.facts, who), speaker)
        _add_pairs(draft, draw, singles, mix.pairs)
        for event in events[speaker * mix.events : (speaker + 1) * mix.events]:
            _add_event(draft, draw, chatter, event, speaker, who)
        for kind, hops in (
            *(("list", one) for one in make_lists(draw, words, mix.lists, who)),
            *(("chain", one) for one in make_chains(draw, words, mix.chains, who)),
        ):
            _add_hops(draft, draw, chatter, kind, hops, speaker)
    texts, dates = _place(draft, draw, chatter, mix, speakers)
    questions = [
        TalkQuestion(text, kind, evidence)
        for text, kind, steps in draft.questions
        if (evidence := _collect_evidence(steps, texts, dates))
    ]
    draw.shuffle(questions)
    count = len(texts) // 2
    return Talk(f"dialogue-{seed}", texts[::2][:count], questions, texts[1::2][:count])


def _add_facts(
    draft: _Draft, draw: random.Random, chatter: Chatter, facts: Sequence[Fact], speaker: int
) -> list[tuple[str, Step]]:
    """Adds facts with their questions and mentions; returns question and step of each that is told in one turn."""
    singles: list[tuple[str, Step]] = []
    for fact in facts:
        shape = draw.choice(SHAPES)
        prompt = draw.choice(fact.relation.prompts)
        sentence = fact.tell(draw) if shape == "single" else fact.reply(draw)
        step = Step(sentence, fact.answer, fact.is_unique)
        if shape == "single":
            piece = Piece([(speaker, _wrap(draw, chatter, sentence))], [(0, step)])
        elif shape == "turn after":
            turns = [(1 - speaker, _wrap(draw, chatter, prompt, ends=True)), (speaker, _wrap(draw, chatter, sentence))]
            piece = Piece(turns, [(1, step)])
        else:
            asked_back = draw.choice(GUESSES).format(prompt=prompt)
            piece = Piece(
                [(speaker, f"{draw.choice(BARE_OPENERS)} {sentence}"), (1 - speaker, asked_back)], [(0, step)]
            )
        draft.pieces.append(piece)
        question = fact.ask(draw)
        draft.questions.append((question, shape, [step]))
        if shape == "single":
            singles.append((question, step))
        for other in draw.sample((speaker, speaker, 1 - speaker), draw.randint(0, 2)):
            draft.pieces.append(Piece([(other, _wrap(draw, chatter, draw.choice(fact.relation.mentions)))]))
    return singles


def _add_pairs(draft: _Draft, draw: random.Random, singles: Sequence[tuple[str, Step]], count: int) -> None:
    """Adds questions that ask for two facts at once."""
    chosen = draw.sample(singles, min(len(singles), 2 * count) // 2 * 2)
    for (first, one), (second, other) in zip(chosen[::2], chosen[1::2], strict=True):
        text = f"{first.rstrip('?')}, and {second[0].lower()}{second[1:]}"
        draft.questions.append((text, "pair", [one, other]))


def _add_event(
    draft: _Draft, draw: random.Random, chatter: Chatter, event: tuple[str, str], speaker: int, who: str
) -> None:
    past, base = event
    sentence = draw.choice(TOLD_TODAY).format(past=past)
    step = Step(sentence, past, is_dated=True)
    draft.pieces.append(Piece([(speaker, _wrap(draw, chatter, sentence))], [(0, step)]))
    draft.questions.append((draw.choice(ASKED_WHEN).format(who=who, base=base), "temporal", [step]))


def _add_hops(draft: _Draft, draw: random.Random, chatter: Chatter, kind: str, hops: Hops, speaker: int) -> None:
    steps = [Step(sentence, words) for sentence, words in hops.told]
    draft.pieces += [Piece([(speaker, _wrap(draw, chatter, step.sentence))], [(0, step)]) for step in steps]
    draft.pieces += [Piece([(speaker, _wrap(draw, chatter, sentence))]) for sentence in hops.beside]
    draft.questions.append((hops.question, kind, steps))


def _wrap(draw: random.Random, chatter: Chatter, sentence: str, *, ends: bool = False) -> str:
    """Returns a sentence, mostly with small talk around it; `ends` puts it last."""
    before = chatter.make_line() if draw.random() < 0.45 else ""
    after = chatter.make_line() if draw.random() < 0.35 and not ends else ""
    return " ".join(part for part in (before, sentence, after) if part)


def _place(
    draft: _Draft, draw: random.Random, chatter: Chatter, mix: Mix, speakers: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Returns all turns with their prefixes, and the date of each. Speakers alternate; small talk fills the gaps."""
    pieces: list[Piece | None] = list(draft.pieces)
    pieces += [None] * max(0, draw.randint(*mix.turns) - sum(len(piece.turns) for piece in draft.pieces))
    draw.shuffle(pieces)
    starts = set(draw.sample(range(1, len(pieces)), draw.randint(*mix.sessions) - 1))
    step_date = _make_calendar(draw)
    date = step_date()
    texts: list[str] = []
    dates: list[str] = []

    def say(speaker: int, text: str) -> None:
        if len(texts) % 2 != speaker:
            say(1 - speaker, chatter.make_turn())
        texts.append(f"[{date}] {speakers[speaker]}: {text}")
        dates.append(date)

    for at, piece in enumerate(pieces):
        if at in starts:
            date = step_date()
        if piece is None:
            say(len(texts) % 2, chatter.make_turn())
            continue
        for turn, (speaker, text) in enumerate(piece.turns):
            say(speaker, text)
            for place, step in piece.steps:
                if place == turn:
                    step.turn = len(texts) - 1
    if len(texts) % 2:
        say(1, chatter.make_turn())
    return texts, dates


def _make_calendar(draw: random.Random) -> Callable[[], str]:
    """Returns a function that gives one date after the other, as `8 May, 2023`."""
    day = (draw.randint(FIRST_YEAR, LAST_YEAR) * len(MONTHS) + draw.randrange(len(MONTHS))) * MONTH_DAYS

    def give_next() -> str:
        nonlocal day
        day += draw.randint(2, LONGEST_PAUSE_DAYS)
        month, of_month = divmod(day, MONTH_DAYS)
        year, of_year = divmod(month, len(MONTHS))
        return f"{of_month + 1} {MONTHS[of_year]}, {year}"

    return give_next


def _collect_evidence(steps: Sequence[Step], texts: Sequence[str], dates: Sequence[str]) -> list[Evidence]:
    """Returns what the steps need in a prompt; nothing if an answer stands elsewhere in the dialogue, too."""
    evidence = []
    for step in steps:
        elsewhere = (normalised(text) for at, text in enumerate(texts) if at != step.turn)
        if step.is_unique and any(occurs(normalised(step.words), text) for text in elsewhere):
            return []
        date = dates[step.turn] if step.is_dated else ""
        evidence.append(Evidence(step.words, find_passage(step.words, step.sentence), step.is_unique, date))
    return evidence
