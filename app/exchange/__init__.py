"""The story of one chat completion: recall, plan, compact, ask, relay, remember. The only room that visits every other."""
