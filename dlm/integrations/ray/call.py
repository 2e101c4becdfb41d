"""A request on its way from the ingress to a replica."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An HTTP request whose key has been checked and whose body has arrived: no header counts."""

    prefix: str  # what its prompt begins with, as `prefix_of` names it
    tried: int = 0  # replicas that have failed it
    method: str
    client: str = ""  # whose it is, as `Guard.client` names it
    path: str  # as the application without a prefix has it
    body: bytes
