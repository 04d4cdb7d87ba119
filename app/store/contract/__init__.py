"""The contracts of the store: what each backend must do. One method is one step of a turn, so that a backend can run it
in one round trip.

Every method takes the tenant, or a root that is derived from the tenant (`conversation.identity`). Every key begins
with the root, so on a distributed PostgreSQL each statement stays on one shard. Backends translate driver errors to
`StoreUnavailable`.
"""
