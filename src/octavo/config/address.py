"""Addresses: where this machine finds a server that listens on a configured host."""

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def near(host: str) -> str:
    """The host to ask: this machine's own, where the server listens on all there are."""
    return _EVERYWHERE.get(host, host)


def near_url(host: str, port: int) -> str:
    """The same as the beginning of a URL, in which IPv6 addresses have brackets."""
    found = near(host)
    return f"http://{f'[{found}]' if ':' in found else found}:{port}"
