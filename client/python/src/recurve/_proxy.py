"""The servers for which gRPC's proxy is not used.

gRPC asks the proxy that `grpc_proxy`, `https_proxy` or `http_proxy` names for every
server, also for one on this machine, which a proxy elsewhere cannot reach; and it
does not read `NO_PROXY`. The rules are those of the C++ client (client/lib/no_proxy.h).
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def direct(host: str, port: int) -> bool:
    """Whether the server is to be reached without a proxy."""
    if is_this_machine(host):
        return True
    for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY"):
        if listed := os.environ.get(name):
            return matches(listed, host, port)
    return False


def is_this_machine(host: str) -> bool:
    """Does not look a name up."""
    address = _address(host)
    if address is not None:
        return address.is_loopback or address.is_unspecified
    return _in_domain(_name(host), "localhost")


def matches(listed: str, host: str, port: int) -> bool:
    """Whether `listed`, the value of a variable such as NO_PROXY, names the server."""
    return any(_matches_entry(entry, host, port) for entry in re.split(r"[, \t]+", listed))


def _matches_entry(entry: str, host: str, port: int) -> bool:
    if entry == "*":
        return True
    address = _address(host)
    if "/" in entry:
        try:
            network = ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
        return address is not None and address in network
    if _address(entry) is None and (with_port := re.fullmatch(r"(.*):([0-9]+)", entry)):
        if int(with_port[2]) != port:
            return False
        entry = with_port[1]
    if address is not None:
        return _address(entry) == address
    domain = _name(entry.removeprefix("*").removeprefix("."))
    return bool(domain) and _in_domain(_name(host), domain)


def _name(host: str) -> str:
    """Lower case without the final dot, neither of which changes a name."""
    return host.removesuffix(".").lower()


def _in_domain(host: str, domain: str) -> bool:
    return host == domain or host.endswith(f".{domain}")


def _address(host: str) -> _Address | None:
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        address: _Address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:  # resolvers take the short forms of IPv4, too ("127.1")
            address = ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped
