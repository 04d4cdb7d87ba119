"""A long conversation through the gateway, to watch: `make demo`. Not part of the installed package."""
