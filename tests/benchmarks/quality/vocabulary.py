"""Names, places, things and numbers, made anew for each seed so that no two talks share an answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final


def split_words(words: str) -> tuple[str, ...]:
    """Returns what `|` separates."""
    return tuple(words.split("|"))


ONSETS: Final = split_words("b|br|c|ch|d|dr|f|fl|g|gr|h|j|k|l|m|n|p|pr|qu|r|s|sh|st|t|th|tr|v|w|z")
VOWELS: Final = split_words("a|e|i|o|u|ai|ea|ia|io|oa|ou")
CODAS: Final = split_words("n|r|l|s|ck|m|nd|rt|th|x|sk")
NAME_ENDINGS: Final = split_words("a|an|el|en|ia|in|is|o|on|or|yn|et|ika|ard|ette")
PLACE_ENDINGS: Final = split_words(
    "ford|ham|ton|mouth|bury|field|stead|wick|haven|dale|moor|bridge|minster|combe|burgh"
)
PLACE_FORMS: Final = split_words("{}|{}|{}|Port {}|Upper {}|{} Bay|Saint {}|Lake {}|{} Falls")
SURNAME_ENDINGS: Final = split_words("sen|ski|man|wood|ley|er|ez|ic|ova|ström|berg|well")
BRAND_ENDINGS: Final = split_words("ix|ora|io|tec|ly|ant|eron|isto|ana|omat")
SHADES: Final = split_words(
    "amber|crimson|teal|ivory|copper|olive|violet|maroon|silver|turquoise|charcoal|mustard|scarlet|indigo"
)
MATTERS: Final = split_words("wooden|woollen|brass|leather|glass|canvas|velvet|tin|bamboo|marble|enamel|wicker")
OBJECTS: Final = split_words(
    "kettle|canoe|lantern|globe|typewriter|accordion|rocking chair|chess set|bread tin|telescope|birdhouse|"
    "sewing box|umbrella stand|picture frame|mandolin|tea tray|wind chime|fruit bowl|coat rack|music box|barometer"
)
FLAVOURS: Final = split_words(
    "walnut|ginger|fennel|quince|rhubarb|pistachio|chestnut|saffron|cardamom|tamarind|juniper|fig|buckwheat"
)
DISHES: Final = split_words("stew|pie|dumplings|curry|risotto|tart|soup|pancakes|pudding|noodles|loaf|strudel|crumble")
BREEDS: Final = split_words(
    "beagle|greyhound|border collie|dachshund|spaniel|whippet|corgi|terrier|poodle|husky|pointer|setter"
)
MONTHS: Final = split_words("January|February|March|April|May|June|July|August|September|October|November|December")
WEEKDAYS: Final = split_words("Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday")
TITLE_HEADS: Final = split_words(
    "The Last|A Quiet|The Hollow|Beyond the|Letters to the|The Borrowed|Seven|Under the|The Patient|Songs of the"
)
TITLE_NOUNS: Final = split_words(
    "Orchard|Lighthouse|Cartographer|Winter|Harbour|Apiary|Ferryman|Garden|Meridian|Clockmaker|Estuary|Compass"
)
TRADES: Final = split_words(
    "optician|stonemason|beekeeper|locksmith|florist|tax adviser|piano tuner|midwife|surveyor|upholsterer|cobbler|"
    "chiropractor|roofer|bookbinder|translator|glazier"
)
TONGUES: Final = split_words("Welsh|Basque|Finnish|Tagalog|Swahili|Estonian|Catalan|Icelandic|Maltese|Georgian|Frisian")
UNTIED: Final = frozenset({"weekday", "breed", "trade", "tongue", "shade"})
"""Kinds of which there are too few to be drawn once only."""


class Vocabulary:
    """Draws words of a kind; except for the few kinds in `UNTIED` it gives none twice.

    Args:
        draw: decides everything.
    """

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._given: set[str] = set()
        self._makers: Mapping[str, Callable[[], str]] = {
            "first": self._make_first_name,
            "name": lambda: f"{self._make_first_name()} {self._make_word(1)}{draw.choice(SURNAME_ENDINGS)}",
            "place": self._make_place,
            "street": lambda: f"{self._make_word(1)} {draw.choice(('Street', 'Lane', 'Avenue', 'Row'))}",
            "brand": lambda: f"{self._make_word(1)}{draw.choice(BRAND_ENDINGS)}",
            "thing": lambda: f"{draw.choice(SHADES)} {draw.choice(MATTERS)} {draw.choice(OBJECTS)}",
            "dish": lambda: f"{draw.choice(FLAVOURS)} and {draw.choice(FLAVOURS)} {draw.choice(DISHES)}",
            "title": lambda: f"{draw.choice(TITLE_HEADS)} {self._make_word(1)} {draw.choice(TITLE_NOUNS)}",
            "number": lambda: str(draw.randint(13, 989)),
            "amount": lambda: f"${draw.randint(12, 9_899)}",
            "code": lambda: f"{''.join(draw.choices('BCDFGHKMPRTWX', k=2))}-{draw.randint(1_000, 99_999)}",
            "date": lambda: f"{draw.choice(MONTHS)} {draw.randint(1, 28)}",
            "time": lambda: f"{draw.randint(1, 11)}:{draw.choice(('05', '10', '20', '25', '35', '40', '50', '55'))}",
            "weekday": lambda: draw.choice(WEEKDAYS),
            "breed": lambda: draw.choice(BREEDS),
            "trade": lambda: draw.choice(TRADES),
            "tongue": lambda: draw.choice(TONGUES),
            "shade": lambda: draw.choice(SHADES),
        }

    def make(self, kind: str) -> str:
        """Returns a word or phrase of a kind, which was not given before."""
        maker = self._makers[kind]
        word = maker()
        while kind not in UNTIED and word in self._given:
            word = maker()
        self._given.add(word)
        return word

    def _make_word(self, syllables: int) -> str:
        draw = self._draw
        parts = [draw.choice(ONSETS) + draw.choice(VOWELS)[:1] for _ in range(syllables - 1)]
        parts.append(draw.choice(ONSETS) + draw.choice(VOWELS))
        return ("".join(parts) + draw.choice(CODAS)).capitalize()

    def _make_first_name(self) -> str:
        draw = self._draw
        middle = draw.choice(ONSETS) + draw.choice(VOWELS)[:1]
        return (middle + draw.choice(CODAS)[:1] + draw.choice(NAME_ENDINGS)).capitalize()

    def _make_place(self) -> str:
        stem = self._make_word(1)
        return self._draw.choice(PLACE_FORMS).format(stem + self._draw.choice(PLACE_ENDINGS))
