"""A store whose texts are under a key."""
