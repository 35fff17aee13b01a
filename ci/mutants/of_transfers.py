"""Bugs of KV transfers between an engine and a remote pool: corpus class 8. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_CONNECTOR = "engine_under_test/distributed/connector.py"
_SESSION = "engine_under_test/distributed/store_session.py"
_SERVER = "engine_under_test/distributed/kv_store.py"
_TCP = "engine_under_test/distributed/tcp.py"
_REMOTE = "engine_under_test/remote.py"
_HUNTS = ("transfers",)
_REAL = ("connectors",)  # what no link in memory shows

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "transfer-pins-follow-the-request",
        "sgl-pd-page-reuse",
        "https://github.com/sgl-project/sglang/issues/24527",
        _CONNECTOR,
        """        if transfer.machine is Machine.STORE_SOURCE:
            self._unpin(transfer)
""",
        "        self._unpin(transfer)\n",
        "The blocks of an aborted load are given away while the store may still write them.",
        _HUNTS,
    ),
    Mutant(
        "transfer-content-unchecked",
        "mc-staging-chunk-offset",
        "https://github.com/kvcache-ai/Mooncake/pull/2815",
        _CONNECTOR,
        "        if m.digest_of(message.data) != message.digest:\n",
        "        if not message.digest:\n",
        "A block is taken for what its key says though its content is another: the transfer is complete.",
        _HUNTS,
    ),
    Mutant(
        "transfer-gap-counted-as-whole",
        "sgl-pd-aborted-prefill-garbage",
        "https://github.com/sgl-project/sglang/issues/30233",
        "engine_under_test/distributed/transfers.py",
        "        return next(index for index in range(len(self.blocks) + 1) if index not in self.arrived)\n",
        "        return len(self.arrived)\n",
        "A partial transfer is handed over by the number of blocks that came, whichever they are.",
        _HUNTS,
    ),
    Mutant(
        "transfer-lost-without-answer",
        "vllm-nixl-push-post-fail",
        "https://github.com/vllm-project/vllm/pull/50754",
        _CONNECTOR,
        '                self._answer(transfer, "the connection was lost")\n',
        "",
        "A transfer that can not go on tells nobody: its request waits for ever.",
        _HUNTS,
    ),
    Mutant(
        "transfer-expired-and-done",
        "vllm-nixl-double-done",
        "https://github.com/vllm-project/vllm/pull/24268",
        _CONNECTOR,
        """        self._answers.append(LoadAnswer(transfer.owner, transfer.number, count, reason))
        transfer.owner = None
""",
        "        self._answers.append(LoadAnswer(transfer.owner, transfer.number, count, reason))\n",
        "An expiry and the end of the connection both report the same load as done.",
        _HUNTS,
    ),
    Mutant(
        "store-offers-without-a-pin",
        "vllm-nixl-p-timeout",
        "https://github.com/vllm-project/vllm/issues/21570",
        _SESSION,
        "        self._shelf.pool.pin(transfer.pinned)\n",
        "        self._shelf.pool.pin(())\n",
        "What was offered is evicted while the other side reads it.",
        _HUNTS,
    ),
    Mutant(
        "store-keeps-pins-of-lost-readers",
        "lmc-pin-without-retrieve",
        "https://github.com/LMCache/LMCache/issues/1034",
        _SESSION,
        """        for transfer in self.transfers.values():
            self._release(transfer)
        self.transfers.clear()
""",
        "        self.transfers.clear()\n",
        "A reader that is gone leaves its pins behind, and the pool fills with what can not be evicted.",
        _HUNTS,
    ),
    Mutant(
        "store-forgets-lost-connections",
        "lmc-pin-without-retrieve",
        "https://github.com/LMCache/LMCache/issues/1034",
        _SERVER,
        "        self._store.connections.pop(self, None)\n        self.session.close()\n\n    def check_time",
        "        self._store.connections.pop(self, None)\n\n    def check_time",
        "A connection that the other end closes is forgotten with what it pinned.",
        _REAL,
    ),
    Mutant(
        "half-a-frame-outlives-its-connection",
        "ours",
        "",
        _TCP,
        "        self._reader = FrameReader(self.config.message_bytes)\n        self._writer = FrameWriter()\n\n    def _write",
        "        self._writer = FrameWriter()\n\n    def _write",
        "What had come of a frame when its connection was lost is taken for the begin of the next connection's first.",
        _REAL,
    ),
    Mutant(
        "stores-end-with-their-connection",
        "vllm-nixl-push-post-fail",
        "https://github.com/vllm-project/vllm/pull/50754",
        _CONNECTOR,
        "                self._tell(transfer, transfer.opened)\n",
        "                transfer.state = State.ASKED\n",
        "A store that a connection left behind is not said again over the next one: it waits for an answer to nothing.",
        _REAL,
    ),
    Mutant(
        "transfer-unpinned-twice",
        "lmc-double-unpin",
        "https://github.com/LMCache/LMCache/pull/5095",
        _CONNECTOR,
        "            self._pages.unpin(transfer.blocks)\n            transfer.blocks = ()\n",
        "            self._pages.unpin(transfer.blocks)\n",
        "A store that is given up lets go of its blocks, and again when its end is told.",
        _HUNTS,
    ),
    Mutant(
        "transfer-credit-without-a-window",
        "ours",
        "",
        _CONNECTOR,
        "        due = min(total, transfer.moved + window)\n",
        "        due = total\n",
        "A load grants credit for all of its blocks at once, however few may be under way.",
        _HUNTS,
    ),
    Mutant(
        "store-commits-across-a-gap",
        "sgl-pd-aborted-prefill-garbage",
        "https://github.com/sgl-project/sglang/issues/30233",
        _SESSION,
        "            if block is None or m.digest_of(block.data) != block.digest:\n                break\n",
        "            if block is None or m.digest_of(block.data) != block.digest:\n                continue\n",
        "Behind a block that did not arrive whole the next ones are stored under the keys of those before.",
        _HUNTS,
    ),
    Mutant(
        "one-lost-connection-ends-all",
        "ours",
        "",
        _SERVER,
        "        self._store.connections.pop(self, None)\n        self.session.close()\n\n    def check_time",
        "        self._store.connections.pop(self, None)\n        self.session.close()\n"
        "        for other in list(self._store.connections):\n            other.abort()\n\n    def check_time",
        "An engine whose connection is lost takes those of all the others with it.",
        _REAL,
    ),
    Mutant(
        "abort-misses-the-load",
        "ours",
        "",
        _REMOTE,
        "            load = self._loads[seq.load]\n            self.connector.abort(load.transfer)\n            self._give_up(load)\n\n    def store_published",
        "            load = self._loads[seq.load]\n            self._give_up(load)\n\n    def store_published",
        "A request that ends while it waits for a load leaves the load behind: it goes on for nobody.",
        _REAL,
    ),
    Mutant(
        "transfers-outlive-the-restart",
        "ours",
        "",
        _REMOTE,
        "        self._wholes.clear()\n        self.connector.restart()\n",
        "        self._wholes.clear()\n",
        "The engine's memory starts anew and its transfers do not: they go on into blocks that nobody holds for them.",
        _REAL,
    ),
    Mutant(
        "what-is-sent-renews-no-lease",
        "vllm-nixl-p-timeout",
        "https://github.com/vllm-project/vllm/issues/21570",
        _SESSION,
        "            self._renew(transfer)\n            self._moving.append(transfer)\n",
        "            self._moving.append(transfer)\n",
        "The lease of a load counts from what its reader said last, however much the store has sent since.",
        _HUNTS,
    ),
    Mutant(
        "answers-outlive-the-restart",
        "ours",
        "",
        _CONNECTOR,
        "        self._hits.clear()\n        self._answers.clear()\n",
        "",
        "What loads of the memory before a restart came to is told behind it, to whoever bears the name then.",
        _HUNTS,
    ),
    Mutant(
        "each-connection-renews-a-store",
        "vllm-nixl-lease-behind-renewed-head",
        "https://github.com/vllm-project/vllm/issues/58222",
        _CONNECTOR,
        "                transfer.granted = transfer.moved = transfer.next_index = 0\n",
        "                transfer.granted = transfer.moved = transfer.next_index = 0\n"
        "                transfer.deadline = self._clock.now() + self.config.store_deadline_s\n",
        "Over a link that is lost again and again the sources of a store stay pinned for ever.",
        _HUNTS,
    ),
    Mutant(
        "pool-forgets-what-is-read",
        "lmc-lru-not-moved",
        "https://github.com/LMCache/LMCache/issues/460",
        "engine_under_test/distributed/store_pool.py",
        "            self._pins[key] = self._pins.get(key, 0) + 1\n        self._touch(keys)\n",
        "            self._pins[key] = self._pins.get(key, 0) + 1\n",
        "The pool evicts in the order of storing, its hottest prefixes first.",
        _HUNTS,
    ),
)
