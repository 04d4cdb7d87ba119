"""What is said in the demo: fifty questions over ten topics, and ten probes that ask for something said long before.

Each topic turn states one fact and asks about it. A probe only asks; its answer must contain the fact. Between them
stands the kind of prose that fills real conversations and that a summary may leave out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SYSTEM = "You are the assistant of a small software company. Answer from what was said in this conversation."


@dataclass(frozen=True, slots=True)
class Turn:
    """One user message; `expected` must be in the answer, where it is set."""

    number: int
    topic: str
    text: str
    question: str
    expected: str | None = None

    @property
    def is_probe(self) -> bool:
        return self.expected is not None


TOPICS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "billing service",
        (
            ("The billing service runs on host db-billing-03.", "Which host does the billing service run on?"),
            ("Invoices are numbered from INV-70031 upwards.", "From where are invoices numbered?"),
            ("The refund limit without approval is 240 EUR.", "What is the refund limit without approval?"),
            ("Dunning letters leave on the 9th of each month.", "When do dunning letters leave?"),
            ("Marta Oyelaran owns the billing runbook.", "Who owns the billing runbook?"),
        ),
    ),
    (
        "office move",
        (
            ("The office moves to Kestrel Yard 14 in Leeds.", "Where does the office move to?"),
            ("The movers Halden & Sons come on 2027-02-18.", "When do the movers come?"),
            ("The lease of the old building ends on 2027-03-31.", "When does the lease of the old building end?"),
            ("Desks were ordered under number PO-5518.", "Under which number were the desks ordered?"),
            ("The alarm company is Brightwater Security.", "Which alarm company do we have?"),
        ),
    ),
    (
        "mobile app",
        (
            ("The mobile app crashes with error E4417 on Android 15.", "Which error does the mobile app crash with?"),
            ("The crash comes from TileCache.evict in maps-sdk 9.2.", "Where does the crash come from?"),
            ("We decided to pin maps-sdk to 9.1.6 until it is fixed.", "To which version did we pin maps-sdk?"),
            ("The app store review took 53 hours.", "How long did the app store review take?"),
            ("Beta testers sign up at beta.fernwood.example.", "Where do beta testers sign up?"),
        ),
    ),
    (
        "hiring",
        (
            ("The data engineer position has reference DE-2291.", "Which reference has the data engineer position?"),
            ("Interviews for it are held by Tomasz Wieczorek.", "Who holds the interviews?"),
            ("The salary band was set to 61,000 to 72,000 pounds.", "What is the salary band?"),
            ("Candidate Ines Carvalho asked for a start in May 2027.", "Which candidate asked for a start in May?"),
            ("The take-home task is at /hiring/tasks/ledger.", "Where is the take-home task?"),
        ),
    ),
    (
        "search index",
        (
            ("The search index holds 3.4 million documents.", "How many documents does the search index hold?"),
            ("Reindexing takes 47 minutes on cluster osprey-2.", "How long does reindexing take?"),
            ("Synonyms live in config/synonyms/en.txt.", "Where do synonyms live?"),
            ("We chose BM25 over vectors because latency stayed at 38 ms.", "Why did we choose BM25?"),
            ("The analyzer for Danish is called danish_light.", "What is the Danish analyzer called?"),
        ),
    ),
    (
        "customer Northgate",
        (
            ("Customer Northgate pays 18,900 EUR a year.", "How much does Northgate pay?"),
            ("The contact at Northgate is Yusuf Demirel.", "Who is the contact at Northgate?"),
            ("Northgate needs single sign-on by 2027-04-12.", "By when does Northgate need single sign-on?"),
            ("Their open ticket is NG-883 about CSV exports.", "Which ticket of Northgate is open?"),
            ("We promised them a discount of 7 percent at renewal.", "Which discount did we promise at renewal?"),
        ),
    ),
    (
        "backups",
        (
            ("Nightly backups go to /srv/vault/archive-eu.", "Where do nightly backups go?"),
            ("Backup encryption uses key ring kr-ostrava.", "Which key ring does backup encryption use?"),
            ("The last restore drill failed with exit code 74.", "With which exit code did the restore drill fail?"),
            ("Retention of backups is 400 days.", "How long is the retention of backups?"),
            ("Priya Raman signs off each restore drill.", "Who signs off restore drills?"),
        ),
    ),
    (
        "pricing page",
        (
            ("The pricing page experiment is called lantern.", "What is the pricing page experiment called?"),
            ("Variant B of it converts at 4.6 percent.", "At which rate does variant B convert?"),
            ("The experiment stops after 12,000 visitors.", "After how many visitors does the experiment stop?"),
            ("Copy for it was written by Odile Brennan.", "Who wrote the copy?"),
            ("The page loads in 910 ms over 4G.", "How fast does the page load over 4G?"),
        ),
    ),
    (
        "security review",
        (
            ("The security review found CVE-2026-31337 in libharbor.", "What did the security review find?"),
            ("Auditors from Pellworm GmbH return on 2027-01-25.", "When do the auditors return?"),
            ("Session tokens must expire after 35 minutes.", "After how long must session tokens expire?"),
            ("The firewall rule to delete is fw-0619.", "Which firewall rule is to be deleted?"),
            ("Password hashing moves to argon2id with 64 MiB.", "Which password hashing do we move to?"),
        ),
    ),
    (
        "team retreat",
        (
            ("The team retreat is at Lake Saimaa, cabin 27.", "Where is the team retreat?"),
            ("The train leaves from platform 11 at 07:52.", "From which platform does the train leave?"),
            ("The retreat budget is 8,350 EUR.", "What is the retreat budget?"),
            ("Cooking is done by Anneli Korhonen.", "Who does the cooking at the retreat?"),
            ("The code for the sauna is 5190.", "What is the code for the sauna?"),
        ),
    ),
)

PROBES: dict[int, tuple[str, str]] = {
    11: ("Which host does the billing service run on?", "db-billing-03"),
    21: ("What is the refund limit without approval?", "240 EUR"),
    31: ("To which address in Leeds does the office move?", "Kestrel Yard 14"),
    41: ("To which version did we decide to pin maps-sdk?", "9.1.6"),
    46: ("What is the reference of the data engineer position?", "DE-2291"),
    50: ("Which error did the mobile app crash with on Android?", "E4417"),
    54: ("Who is the owner of the billing runbook?", "Marta Oyelaran"),
    57: ("Where do nightly backups go?", "/srv/vault/archive-eu"),
    59: ("How many documents does the search index hold?", "3.4 million"),
    60: ("From where are invoices numbered?", "INV-70031"),
}

PROSE = (
    "I went through it with the others this morning and nobody had anything against it.",
    "It took me a while to find that out, since the notes from last time were rather thin.",
    "I would like to write it down properly at some point, so that newcomers need not ask around.",
    "For the moment it works well enough, and I see little reason to touch it again soon.",
    "People keep bringing it up in passing, usually when somebody comes back from a holiday.",
    "There was some discussion about whether it could be done in a simpler way, without much result.",
    "I have a feeling that we talked about something similar a long while ago, in another context.",
    "It would be good to hear what you make of that, though really without any hurry.",
    "The earlier attempt went nowhere, mostly for lack of time and of somebody who felt responsible.",
    "I know that this may sound like a detail, but it tends to come up at the worst moment.",
    "We looked at how others go about it and came away with more questions than answers.",
    "Everything around it has grown over the years and not all of it was planned that way.",
    "I will come back to the rest later, once I had a chance to read through my own remarks.",
    "Somebody suggested a short meeting about it, and somebody else suggested to have fewer meetings.",
    "As far as I can tell it does what it should, even if it could be explained a little better.",
    "The rest of the week went by with small things, as it usually does around this time of the year.",
    "It helps to have it in one place, since half of it lives in mails and the other half in heads.",
    "I tried to put it as plainly as I could, and I hope that it makes sense to somebody outside.",
    "Some of the wording still feels a bit clumsy to me, yet the meaning should come across.",
    "We meant to look at it with fresh eyes after a good night of sleep and a decent breakfast.",
    "Nothing of this seems set in stone, of course, and better ideas would be welcome at any time.",
    "It was a long day, so please bear with me if I repeat myself here and there a little.",
    "I asked around whether anything had been forgotten, and so far nobody could think of anything.",
)
SENTENCES_PER_TURN = 13


def conversation(length: int = 60) -> list[Turn]:
    """The first `length` turns."""
    return list(_turns())[:length]


def _turns() -> Iterator[Turn]:
    said = ((topic, fact, question) for topic, turns in TOPICS for fact, question in turns)
    for number in range(1, len(TOPICS) * 5 + len(PROBES) + 1):
        if number in PROBES:
            question, expected = PROBES[number]
            yield Turn(number, "probe", f"{_prose(number)}\n\n{question}", question, expected)
        else:
            topic, fact, question = next(said)
            yield Turn(number, topic, f"{fact} {_prose(number)}\n\n{question}", question)


def _prose(number: int) -> str:
    """A different handful of sentences for each turn."""
    start = number * 5
    return " ".join(PROSE[(start + at) % len(PROSE)] for at in range(SENTENCES_PER_TURN))
