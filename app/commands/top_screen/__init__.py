"""The parts of `concertina top`: the client that fetches the overview, rates from its totals, and the page of text."""
