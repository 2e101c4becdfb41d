"""Patterns of IP addresses, networks and interfaces, as `ipaddress` of the standard library reads
them. A network has no bit set after its prefix."""

HEX = r"[0-9A-Fa-f]"
_BYTE = r"(?:\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])"
IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = rf"{HEX}{{1,4}}"
_PAIR = rf"(?:{_GROUP}:)"
_LAST = rf"(?:{_PAIR}{_GROUP}|{IPV4})"
IPV6 = "|".join(  # RFC 3986
    [
        rf"{_PAIR}{{6}}{_LAST}",
        rf"::{_PAIR}{{5}}{_LAST}",
        *(rf"(?:{_PAIR}{{0,{n}}}{_GROUP})?::{_PAIR}{{{4 - n}}}{_LAST}" for n in range(5)),
        rf"(?:{_PAIR}{{0,5}}{_GROUP})?::{_GROUP}",
        rf"(?:{_PAIR}{{0,6}}{_GROUP})?::",
    ]
)
IPV4_INTERFACE = rf"{IPV4}(?:/(?:[12]?\d|3[0-2]))?"
IPV6_INTERFACE = rf"(?:{IPV6})(?:/(?:[1-9]?\d|1[01]\d|12[0-8]))?"


def _either(options: list[str]) -> str:
    return f"(?:{'|'.join(options)})"


def _ipv4_network(prefix: int) -> str:
    full, bits = divmod(prefix, 8)
    parts = [_BYTE] * full
    if full < 4:
        parts.append(_either([str(byte) for byte in range(0, 256, 1 << 8 - bits)]))
    parts += ["0"] * (4 - len(parts))
    return r"\.".join(parts) + f"/{prefix}"


def _group_of(bits: int) -> str:
    """A group of which only the first `bits` of 16 may be set, with or without leading zeros."""
    zeros, bits_left = divmod(16 - bits, 4)
    digits = "".join(f"{d:x}{d:X}" if d > 9 else str(d) for d in range(0, 16, 1 << bits_left))
    options = ["0{1,4}"]
    for length in range(zeros + 1, 5):
        options.append(rf"{HEX}{{{length - zeros - 1}}}[{digits}]0{{{zeros}}}")
    return _either(options)


def _ipv6_network(prefix: int) -> str:
    """Groups of zeros at the end are left out; before them there are as many as the prefix has."""
    full, bits = divmod(prefix, 16)
    if full == 8:
        return rf"(?:{IPV6})/128"
    last = _group_of(bits)
    if full == 7:
        return rf"{_PAIR}{{7}}{last}/{prefix}"
    shorter = [rf"{_PAIR}{{0,{full - 1}}}{_GROUP}"] if full else []
    return _either(["", *shorter, rf"{_PAIR}{{{full}}}{last}"]) + f"::/{prefix}"


IPV4_NETWORK = "|".join([IPV4, *map(_ipv4_network, range(33))])
IPV6_NETWORK = "|".join([IPV6, *map(_ipv6_network, range(0, 129, 4))])  # whole hex digits
