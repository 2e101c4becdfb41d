"""Which replica gets a request: one that has met the beginning of its prompt, unless it is busy.

Ray Serve sends this module to whoever routes.
"""

from hashlib import blake2b

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from dlm.integrations.ray.call import Call


class PrefixRouter(RequestRouter):
    """Every prefix has its own order of replicas (rendezvous hashing): all who route agree on it,
    and where a replica comes or goes, the order of the others stays.

    The first one with a free slot gets the request; if there is none, the one behind which the
    fewest wait. How many a replica has is what it said last, or what was sent to it since.
    """

    queue_len_response_deadline_s = 2.0  # Ray's 0.1 s passes over replicas that are merely busy
    max_queue_len_response_deadline_s = 2.0

    def initialize_state(self, **settings: int) -> None:
        """Of the requests that a replica has, so many as `slots` says run at once."""
        self._slots = settings["slots"]

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """All of them, one after the other, as Ray asks whether they take it."""
        call = None
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # in front of the next round
            call = next((arg for arg in pending_request.args if isinstance(arg, Call)), None)
        prefix, tried = ("", 0) if call is None else (call.prefix, call.tried)
        ranked = sorted(
            candidate_replicas,
            key=lambda one: (self._waiting(one), preference(prefix, one.replica_id.unique_id)),
        )
        first = tried % len(ranked)  # not the one that has failed it
        return [[replica] for replica in ranked[first:] + ranked[:first]]

    def _waiting(self, replica: RunningReplica) -> int:
        """Requests that would be waiting there, this one counted. One that has not been heard of
        counts as idle: Ray asks it before anything is sent."""
        has = self.replica_queue_len_cache.get(replica.replica_id) or 0
        return max(0, has + 1 - self._slots)


def preference(prefix: str, replica: str) -> bytes:
    """The least comes first."""
    return blake2b(f"{prefix} {replica}".encode(), digest_size=8).digest()
