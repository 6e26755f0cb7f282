"""Names of this host that lead to its loopback interface, which no other host reaches."""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Whether a host, as a user wrote it, means the loopback interface."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def loopback_warning(host: str) -> str | None:
    """Return what is wrong with a name that others are to use and that leads to the loopback interface here; None if
    nothing is, or if the user means that interface."""
    if is_loopback(host):
        return None
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return None
    if not found or not all(is_loopback(each.partition("%")[0]) for each in found):
        return None
    return (
        f"the name {host} is {min(found)} on this host, so no other host reaches what listens there. Take {host} off "
        "the line of that address in /etc/hosts, or give an address of this host instead of the name"
    )
