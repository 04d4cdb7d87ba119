"""A log as items of the Conversations API: read, listed, added, pinned."""
