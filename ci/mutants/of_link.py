"""Bugs of the engine's end of its link to a remote pool, and of the names that content has there: corpus classes 2 and 8. Data
only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_CONTENT = "engine_under_test/distributed/content.py"
_CONNECTOR = "engine_under_test/distributed/connector.py"
_TCP = "engine_under_test/distributed/tcp.py"
_TWINS = ("transfers-in-turn",)
_BROKEN = ("hostile-peers",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "remote-key-without-an-offset",
        "vllm-custom-mm-key-ambiguous",
        "https://github.com/vllm-project/vllm/pull/36708",
        _CONTENT,
        "_NUMBER.pack(len(name)) + name + _NUMBER.pack(offset) + _NUMBER.pack(length)",
        "_NUMBER.pack(len(name)) + name + _NUMBER.pack(length)",
        "The name of a block beyond the engine does not say where in it an image lies: equal placeholders find each other's KV.",
        _TWINS,
    ),
    Mutant(
        "remote-key-without-media",
        "lmcache 4183",
        "https://github.com/LMCache/LMCache/pull/4183",
        _CONTENT,
        "    for digest, offset, length in media:\n",
        "    for digest, offset, length in media[:0]:\n",
        "The name of a block beyond the engine is made of its tokens alone: one image's KV is served to who sent another.",
        _TWINS,
    ),
    Mutant(
        "remote-key-without-what-stands-before",
        "ours",
        "",
        _CONTENT,
        '    for piece in (layout, namespace, parent, b"".join(map(_NUMBER.pack, tokens))):\n',
        '    for piece in (layout, namespace, b"".join(map(_NUMBER.pack, tokens))):\n',
        "The name of a block beyond the engine says nothing of the blocks before it: a tail is loaded behind another head.",
        _TWINS,
    ),
    Mutant(
        "remote-key-without-a-namespace",
        "llm-d-kv-cache 47",
        "https://github.com/llm-d/llm-d-kv-cache/issues/47",
        _CONTENT,
        '    for piece in (layout, namespace, parent, b"".join(map(_NUMBER.pack, tokens))):\n',
        '    for piece in (layout, parent, b"".join(map(_NUMBER.pack, tokens))):\n',
        "Beyond the engine tenants, salts and adapters share what they must not.",
        _TWINS,
    ),
    Mutant(
        "a-store-may-never-welcome",
        "py-amqp 398",
        "https://github.com/celery/py-amqp/pull/398",
        _CONNECTOR,
        "        if self._connection is not None and self.session is not State.OPEN and self._handshake_ends <= now:\n"
        '            raise ProtocolError(f"the store did not welcome within {self.config.handshake_s} s")\n',
        "",
        "A store that takes the connection and never welcomes is waited for, for ever: no store, no load until the next restart.",
        _BROKEN,
    ),
    Mutant(
        "connecting-may-take-for-ever",
        "mooncake 2425",
        "https://github.com/kvcache-ai/Mooncake/pull/2425",
        _TCP,
        "            if self._clock.now() >= self._connect_ends:\n"
        '                self.close(f"no connection within {self.config.connect_s} s")\n',
        "",
        "A try to connect that nobody answers is never given up, and so never made again.",
        _BROKEN,
    ),
    Mutant(
        "what-came-outlives-its-connection",
        "ours",
        "",
        _TCP,
        "        self._in.clear()\n",
        "",
        "Messages that had come before a connection was lost are told as those of the next one.",
        _BROKEN,
    ),
    Mutant(
        "congestion-outlives-its-connection",
        "ours",
        "",
        _TCP,
        "        self._out.clear()\n        self._out_bytes = 0\n",
        "        self._out.clear()\n",
        "Bytes that were unsent when a connection was lost count as waiting for ever: nothing is ever stored again.",
        _BROKEN,
    ),
    Mutant(
        "loads-take-what-comes",
        "ours",
        "",
        _CONNECTOR,
        "        if transfer.moved > transfer.granted:\n",
        "        if transfer.moved > self.config.block_bytes * len(transfer.blocks):\n",
        "A store may send all of a load at once, whatever credit it has: memory is taken at its will.",
        _BROKEN,
    ),
    Mutant(
        "credit-for-what-was-not-asked",
        "ours",
        "",
        _CONNECTOR,
        "            self._earning.append(transfer)\n",
        "            self._grant(transfer)\n",
        "Credit is given while what came is still looked at: whoever sends too much is given credit for it and never found.",
        _BROKEN,
    ),
    Mutant(
        "offers-believed",
        "ours",
        "",
        _CONNECTOR,
        "        if message.num_blocks > len(transfer.opened.keys):\n",
        "        if message.num_blocks > self.config.window_bytes:\n",
        "A store may offer more blocks than it was asked for.",
        _BROKEN,
    ),
    Mutant(
        "ends-believed",
        "ours",
        "",
        _CONNECTOR,
        "        if message.num_blocks != transfer.num_offered:\n",
        "        if message.num_blocks > transfer.num_offered:\n",
        "A store may end a load with fewer blocks than it offered, and nobody hears that it is broken.",
        _BROKEN,
    ),
)
