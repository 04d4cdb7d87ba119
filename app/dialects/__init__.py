"""One package for each protocol that clients and providers speak. Pure: no network, no clock."""
