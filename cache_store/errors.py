"""Errors that reach the reader: each message is one sentence that says what to do next."""


class KVScopeError(Exception):
    """Something the reader can act on; pages and commands print the message as it is."""


class StoreError(KVScopeError):
    """A capture, derived file or library that cannot be read or written."""
