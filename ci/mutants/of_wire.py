"""Bugs of the protocol of KV transfers that both ends believe: leases, order on the wire, what is counted. Class 8. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_CONNECTOR = "engine_under_test/distributed/connector.py"
_SESSION = "engine_under_test/distributed/store_session.py"
_HUNTS = ("transfers",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "store-goes-on-in-the-middle",
        "mc-staging-chunk-offset",
        "https://github.com/kvcache-ai/Mooncake/pull/2815",
        _CONNECTOR,
        "                transfer.granted = transfer.moved = transfer.next_index = 0\n",
        "                transfer.granted = transfer.moved = 0\n",
        "Behind a lost connection a store goes on where it was, before a pool that has nothing of it.",
        _HUNTS,
    ),
    Mutant(
        "complete-stores-forgotten",
        "sgl-pd-dup-room",
        "https://github.com/sgl-project/sglang/issues/40125",
        _SESSION,
        "        self._shelf.remember(self._identifier(opened.transfer), opened.keys, count)\n",
        "",
        "A store whose acknowledgement was lost is done all over again when it is said again.",
        _HUNTS,
    ),
    Mutant(
        "lease-of-the-pool-without-end",
        "vllm-nixl-p-timeout",
        "https://github.com/vllm-project/vllm/issues/21570",
        _SESSION,
        "for transfer in [each for each in self.transfers.values() if each.lease_ends <= now]:",
        "for transfer in [e for e in self.transfers.values() if e.lease_ends <= now and e.state is State.ABORTING]:",
        "A client that stands still pins its content in the pool for ever.",
        _HUNTS,
    ),
    Mutant(
        "lease-renewed-by-an-echo",
        "vllm-nixl-p-timeout",
        "https://github.com/vllm-project/vllm/issues/21570",
        _SESSION,
        "        if message.total_bytes > transfer.granted:\n            transfer.granted = message.total_bytes\n            self._renew(transfer)\n",
        "        transfer.granted = max(transfer.granted, message.total_bytes)\n        self._renew(transfer)\n",
        "What was said before and comes again renews the lease of a transfer that does not move.",
        _HUNTS,
    ),
    Mutant(
        "load-outlives-its-lease",
        "vllm-nixl-p-timeout",
        "https://github.com/vllm-project/vllm/issues/21570",
        _CONNECTOR,
        "            elif transfer.deadline <= now or transfer.lease_ends <= now:\n",
        "            elif transfer.deadline <= now:\n",
        "The engine waits for a load of which the pool has let go already.",
        _HUNTS,
    ),
    Mutant(
        "sent-into-a-congested-connection",
        "ours",
        "",
        _CONNECTOR,
        "        while self._sending and left and not self._transport.is_congested:\n",
        "        while self._sending and left:\n",
        "Stores go on towards a peer that takes nothing, and fill the host's memory.",
        _HUNTS,
    ),
    Mutant(
        "stored-as-sent-not-as-acknowledged",
        "ours",
        "",
        _CONNECTOR,
        "        self.counters.stored_blocks += min(message.num_blocks, len(transfer.blocks))\n",
        "        self.counters.stored_blocks += len(transfer.blocks)\n",
        "Blocks that the pool did not keep are counted as stored.",
        _HUNTS,
    ),
)
