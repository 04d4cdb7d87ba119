"""What `concertina top` is made of: asking a running gateway, rates from its counters, and a page of text."""
