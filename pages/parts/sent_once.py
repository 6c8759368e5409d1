"""Numbers that a component fetches by their address: they travel once, however often a page runs.

What a page hands to a component is written, hashed and sent anew at every run, which for a megabyte
takes longer than everything else; a file is fetched when its address is a new one.
"""

from __future__ import annotations

import hashlib

from streamlit import runtime

_BINARY = "application/octet-stream"


def address(data: bytes, key: str) -> str | None:
    """Where the browser finds the data, as long as pages with `key` show it; None where no server
    runs, as in a test of a page."""
    if not runtime.exists():
        return None
    name = hashlib.sha256(data).hexdigest()  # Streamlit itself reads only parts of a long file
    return runtime.get_instance().media_file_mgr.add(data, _BINARY, f"kvscope-{key}", name)
