"""Bugs of a prefix cache that goes on in a remote pool: who waits, and how long blocks are held. Corpus class 8. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_REMOTE = "engine_under_test/remote.py"
_MOVES = "engine_under_test/execution/moves.py"
_KV = "engine_under_test/kv/holding.py"
_CONNECTOR = "engine_under_test/distributed/connector.py"
_ASKS = '        self._allocate(f"a load of block {block}", Space.PINNED)\n'
_PUTS = """        move = BlockMove(self._device, self._staging(IN))
        if isinstance(self._device, StreamDevice):
            self._device.host_touches(writes=(move._staging,))
        op = DeviceOp(
            f"load of block {block}",
            frozenset((move._staging,)),
            frozenset((self._pages[block],)),
            partial(self._put, block, data),
        )
        move.fence = self._submit(Stream.TRANSFER, op, behind)
"""
_HUNTS = ("transfers-in-turn", "remote-storms")

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "reuse-before-the-store-has-read",
        "trt-host-cache-mix",
        "https://github.com/NVIDIA/TensorRT-LLM/issues/8813",
        _REMOTE,
        "        if any(block in self._moves for block in blocks):\n            self._leaving.append(blocks)\n        else:\n"
        "            self._kv.unpin(blocks)\n",
        "        self._kv.unpin(blocks)\n",
        "Blocks of a transfer are let go of while a copy to or from the host still reads or writes them.",
        _HUNTS,
    ),
    Mutant(
        "load-beside-the-fills",
        "trt-host-cache-mix",
        "https://github.com/NVIDIA/TensorRT-LLM/issues/8813",
        _MOVES,
        "return device.submit_to(stream, op, () if behind is None else (behind,))",
        "return device.submit_to(stream, op)",
        "What arrives is written without waiting for the fill of the same block that was launched before.",
        _HUNTS,
    ),
    Mutant(
        "load-visible-before-it-is-written",
        "mc-staging-chunk-offset",
        "https://github.com/kvcache-ai/Mooncake/pull/2815",
        _REMOTE,
        "            if not any(block in self._moves for block in load.blocks[: load.num_whole]):\n                self._publish(load)\n",
        "            self._publish(load)\n",
        "A load is found as soon as its bytes are on the host, not when they stand in the store.",
        _HUNTS,
    ),
    Mutant(
        "load-behind-a-lost-head",
        "sgl-hicache-internal-evict-orphan",
        "https://github.com/sgl-project/sglang/pull/27562",
        _REMOTE,
        "            kv.pin(heads)  # or the load would evict what it stands behind\n            load.heads = heads\n",
        "            load.heads = ()\n",
        "What stands before a load is not held, and may be evicted while it comes: the load's own blocks may be taken from it.",
        _HUNTS,
    ),
    Mutant(
        "claimed-block-keeps-its-entry",
        "nano-stale-hash-entry-on-realloc",
        "https://github.com/GeeeekExplorer/nano-vllm/pull/218",
        _KV,
        "                index.forget(block)\n                evicted.append(block)\n",
        "                evicted.append(block)\n",
        "A cached block that a load writes over can still be found under what it held.",
        _HUNTS,
    ),
    Mutant(
        "claimed-block-is-filled-later",
        "trt-host-cache-mix",
        "https://github.com/NVIDIA/TensorRT-LLM/issues/8813",
        _KV,
        "            self._pending_fills.pop(block, None)  # it is written whole, or comes back empty\n",
        "",
        "A fill that was due when a load took the block is made with the next plan, over what has arrived.",
        _HUNTS,
    ),
    Mutant(
        "loads-outlive-a-reset",
        "lmd-cache-insert-unlocked",
        "",
        _REMOTE,
        '        """The cache was emptied: no load that was asked for before may become visible."""\n        for load in',
        '        """The cache was emptied."""\n        for load in () and',
        "What was asked for before the cache was reset is entered behind it.",
        _HUNTS,
    ),
    Mutant(
        "a-load-keeps-the-queue-waiting",
        "vllm-deferred-count-max-seqs",
        "",
        "engine_under_test/scheduling/scheduler.py",
        "        waiting = [seq for seq in waiting if seq.load is None]\n",
        "        waiting = [seq for seq in waiting if seq.load is None and waiting[0].load is None]\n",
        "Nobody behind a request that waits for a load enters before it.",
        _HUNTS,
    ),
    Mutant(
        "transfer-holds-blocks-without-their-heads",
        "sgl-hicache-internal-evict-orphan",
        "https://github.com/sgl-project/sglang/pull/27562",
        _REMOTE,
        "        self._heads = heads  # the transfer may hold its blocks for longer than the request does\n",
        "",
        "The transfer of a load holds its blocks for longer than what stands before them, which is then evicted first.",
        ("memory-of-transfers", *_HUNTS),
    ),
    Mutant(
        "unwritten-block-counts-as-loaded",
        "vllm-nixl-push-post-fail",
        "https://github.com/vllm-project/vllm/pull/50754",
        _CONNECTOR,
        "        except RunnerError:\n            self.counters.unmoved_blocks += 1\n            return False\n        return True\n",
        "        except RunnerError:\n            self.counters.unmoved_blocks += 1\n        return True\n",
        "A block of a load for which the device had no buffer counts as arrived.",
        ("memory-of-transfers", *_HUNTS),
    ),
    Mutant(
        "buffer-asked-for-behind-the-copy",
        "ours",
        "",
        _MOVES,
        _ASKS + _PUTS,
        _PUTS + _ASKS,
        "A copy to the device is under way when its buffer is refused, and nobody waits for its end.",
        ("memory-of-transfers", *_HUNTS),
    ),
    Mutant(
        "transfer-holds-never-end",
        "ours",
        "",
        _REMOTE,
        "            self._let_go(self._leaving.popleft())\n",
        "            self._leaving.append(self._leaving.popleft())\n",
        "What waits for a copy to end is held for ever.",
        _HUNTS,
        over_corrects="reuse-before-the-store-has-read",
    ),
    Mutant(
        "loads-wait-for-every-move",
        "vllm-nixl-push-post-fail",
        "https://github.com/vllm-project/vllm/pull/50754",
        _REMOTE,
        "            if not any(block in self._moves for block in load.blocks[: load.num_whole]):\n                self._publish(load)\n",
        "            if not self._moves and len(load.blocks) == load.num_whole:\n                self._publish(load)\n",
        "A load that came in part is never told of, so that its request waits for ever.",
        _HUNTS,
        over_corrects="load-visible-before-it-is-written",
    ),
    Mutant(
        "read-for-an-earlier-owner",
        "trt-host-cache-mix",
        "https://github.com/NVIDIA/TensorRT-LLM/issues/8813",
        _REMOTE,
        "        for block in blocks:\n            self._reads.pop(block, None)  # whoever holds it next wants what it holds then\n",
        "",
        "What was read of a block for a store that was given up is sent for whoever stores the block next.",
        _HUNTS,
    ),
    Mutant(
        "a-hold-forgets-the-plan-in-flight",
        "sgl-pd-page-reuse",
        "https://github.com/sgl-project/sglang/issues/24527",
        _KV,
        "            pool.quarantine.pop(block, None)\n            pool.ref_counts[block] += 1\n            self._pins",
        "            if pool.quarantine.pop(block, None) is not None:\n                pool.last_use[block] = 0\n"
        "            pool.ref_counts[block] += 1\n            self._pins",
        "A block that waited for the end of a plan when a load took hold of it is free as soon as the load lets go.",
        _HUNTS,
    ),
    Mutant(
        "stores-hold-the-whole-pool",
        "lmc-pin-without-retrieve",
        "https://github.com/LMCache/LMCache/issues/1034",
        _REMOTE,
        "            if self._kv.num_pinned + last > self._kv.pool.num_blocks * _STORED_SHARE:\n",
        "            if self._kv.num_pinned + last > self._kv.pool.num_blocks:\n",
        "While the link stands still, whatever is computed is kept for it, until nobody finds a block.",
        _HUNTS,
    ),
    Mutant(
        "a-load-takes-the-last-blocks",
        "ours",
        "",
        _REMOTE,
        "        room = min(kv.num_free - len(self._view.running), ",
        "        room = min(kv.num_free, ",
        "A load takes the blocks that those who run need for their next tokens, and who runs is preempted for who waits.",
        _HUNTS,
    ),
    Mutant(
        "loads-wait-for-the-moves-of-all",
        "vllm-nixl-push-post-fail",
        "https://github.com/vllm-project/vllm/pull/50754",
        _REMOTE,
        "            if not any(block in self._moves for block in load.blocks[: load.num_whole]):\n                self._publish(load)\n",
        "            if not self._moves:\n                self._publish(load)\n",
        "A load is told of when no block of anybody moves: beside steady stores that may be never.",
        _HUNTS,
        over_corrects="load-visible-before-it-is-written",
    ),
)
