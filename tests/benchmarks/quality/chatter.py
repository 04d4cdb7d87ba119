"""Everyday talk that tells no facts: it has no digits and no names, so that no answer occurs in it."""

from __future__ import annotations

import random
from typing import Final

WORDS: Final[dict[str, tuple[str, ...]]] = {
    "meal": ("pasta", "porridge", "a big salad", "leftover soup", "toast with jam", "an omelette", "fried rice"),
    "sky": ("grey and windy", "warm for once", "soaking wet", "freezing", "lovely and clear", "foggy", "muggy"),
    "chore": ("the laundry", "the dishes", "the ironing", "the garden", "those forms", "the shopping", "the vacuuming"),
    "mood": ("tired", "cheerful", "restless", "a bit lost", "proud", "worn out", "calm", "silly", "grateful"),
    "fun": ("a long walk", "that quiz show", "a jigsaw", "some baking", "an old film", "a podcast", "the crossword"),
    "who": ("a neighbour", "an old friend", "my cousin", "somebody from work", "the lady next door", "my aunt"),
    "when": ("this morning", "last night", "the other day", "at the weekend", "after lunch", "on the way home"),
    "room": ("kitchen", "hall", "attic", "garage", "bathroom", "balcony", "cellar", "spare room"),
    "thing": ("the kettle", "the printer", "my phone", "the heating", "the bike", "the toaster", "that old chair"),
    "topic": ("politics", "the football", "the traffic", "food prices", "school holidays", "the new buses", "sleep"),
    "animal": ("a fox", "two pigeons", "a hedgehog", "somebody's cat", "a heron", "a very loud magpie"),
    "feel": ("made me laugh", "took ages", "was worth it", "got on my nerves", "cheered me up", "surprised me"),
    "plan": ("read a little", "sort old photos", "call it a day", "try a new recipe", "go to bed early", "sit outside"),
    "place": ("the park", "the library", "the market", "the bakery", "the pool", "that café by the river"),
}
LINES: Final = (
    "It was {sky} {when}, so I stayed in and did {chore}.",
    "I spent far too long on {chore} {when}.",
    "We had {meal} and talked about {topic} for an hour.",
    "I ran into {who} at {place}, which {feel}.",
    "There was {animal} outside the window {when}.",
    "I keep meaning to tidy the {room}, but then {fun} wins.",
    "Do you ever feel {mood} for no reason at all?",
    "I think {fun} is what I need right now.",
    "Something is wrong with {thing} again, it makes that noise.",
    "I promised myself to {plan} tonight.",
    "What do you usually do when the day was {sky}?",
    "People at {place} were arguing about {topic}.",
    "I felt {mood} {when}, then {fun} helped.",
    "The {room} still smells of paint.",
    "My plan is to {plan} and not think about {topic}.",
    "Somebody left the window in the {room} open all night.",
    "I could live on {meal}, to be honest.",
    "Can you believe how {sky} it has been?",
    "{who} rang {when} and would not stop talking.",
    "I have nothing against {topic}, I just cannot follow it any more.",
    "After {chore} I was too {mood} for anything else.",
    "We walked past {place} and it was completely empty.",
    "I tried to repair {thing} and made it worse.",
    "Sometimes {meal} and {fun} is all it takes.",
    "I dreamed about {animal} {when}, no idea why.",
    "It is funny how {topic} comes up every single time.",
    "Everybody at home is {mood} and I blame the weather.",
    "I had a whole list for today and did only {chore}.",
    "You would have liked {place} {when}, hardly anybody there.",
    "The queue at {place} {feel}.",
    "I am thinking of moving things around in the {room}.",
    "Well, {thing} works again, so that is something.",
    "I should really {plan} more often.",
    "Nothing beats {meal} when it is {sky}.",
    "There is a smell in the {room} that nobody can explain.",
    "I laughed so much {when} that my sides hurt.",
    "{who} says hello, by the way.",
    "I slept badly and {chore} did not do itself.",
    "We could do with a day that is not {sky}.",
    "I read something about {topic} and forgot it straight away.",
    "I was {mood} until I saw {animal} in the middle of the road.",
    "It turned into one of those days where {chore} takes over.",
    "If I see one more article about {topic}, I will scream.",
    "{fun} {when} was a good idea after all.",
    "I sat by the window with {meal} and watched the rain.",
    "Honestly, {place} is not what it used to be.",
    "My back hurts from {chore}, I must be getting old.",
    "I left {thing} on all day, can you imagine?",
    "Let me just say that {topic} and family dinners do not mix.",
    "I wish I could {plan} without feeling guilty.",
    "A bit of {meal}, a bit of {fun}, and the evening was gone.",
    "They were digging up the road near {place} again.",
    "The light in the {room} flickers whenever it is {sky}.",
    "I waved at {who} {when} and it turned out to be a stranger.",
    "You know how {chore} always looks smaller than it is.",
    "It {feel}, I must admit.",
    "So far the week has been {mood} and {sky}, if that makes sense.",
    "I nearly fell asleep over {fun}.",
    "Every time I go to {place} I come back with things I do not need.",
    "Remind me never to discuss {topic} with {who} again.",
)
REPLIES: Final = (
    "Oh, I know that feeling.",
    "Ha, that sounds like you!",
    "Really? Tell me more.",
    "That must have been something.",
    "I can picture it.",
    "Fair enough.",
    "Good for you!",
    "Sounds lovely, I am a little jealous.",
    "Oh no, what a pity.",
    "Same here, to be honest.",
    "I would have done just the same.",
    "How nice of you to say that.",
    "You always have the best stories.",
    "Well, one thing at a time.",
    "That is good to hear.",
    "I never thought of it that way.",
    "Take it easy, will you?",
    "Wow, and then?",
    "Let us hope for the best.",
    "You deserve a break.",
)
OPENERS: Final = ("", "", "", "", "Anyway, ", "So, ", "Hm, ", "Oh well. ", "You know what? ", "By the way, ", "Ah, ")


class Chatter:
    """Makes small talk; the same draws give the same talk."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._left: list[str] = []

    def make_line(self) -> str:
        """Returns one sentence. A template comes again only after all others."""
        if not self._left:
            self._left = self._draw.sample(LINES, len(LINES))
        line = self._left.pop().format(**{name: self._draw.choice(words) for name, words in WORDS.items()})
        return line[0].upper() + line[1:]

    def make_turn(self) -> str:
        """Returns what one says in a chat: a reaction, one or two sentences, or both."""
        draw = self._draw
        reaction = [draw.choice(REPLIES)] if draw.random() < 0.5 else []
        opener = draw.choice(OPENERS)
        lines = [self.make_line() for _ in range(draw.choice((0, 1, 1, 2) if reaction else (1, 1, 2)))]
        if lines and opener and not reaction:
            lines[0] = opener + (lines[0] if opener.endswith((". ", "? ")) else _lower_first(lines[0]))
        return " ".join([*reaction, *lines])

    def make_paragraph(self, chars: int) -> str:
        """Returns sentences of about so many characters; the last one ends where it ends."""
        lines: list[str] = []
        while sum(map(len, lines)) + len(lines) < chars:
            lines.append(self.make_line())
        return " ".join(lines)


def _lower_first(line: str) -> str:
    return line if line.startswith(("I ", "I'")) else line[0].lower() + line[1:]
