"""Bugs of adapters and their slots: corpus class 7. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_BOOK = "engine_under_test/adapter_book.py"
_SLOTS = "engine_under_test/execution/adapter_slots.py"
_WALKS, _MODELS = ("adapter-slots",), ("adapters",)
_MEMO = ("vllm-lora-mapping-memo", "https://github.com/vllm-project/vllm/issues/47724")
_REUSE = ("sgl-lora-name-reuse", "https://github.com/sgl-project/sglang/issues/8263")
_CONTAMINATION = ("sgl-lora-buffer-contamination", "https://github.com/sgl-project/sglang/pull/8103")

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "slot-found-by-name",
        *_REUSE,
        _BOOK,
        "            slot = place.get(adapter)\n",
        "            slot = place.setdefault(adapter, next((at for each, at in place.items() if each.name == adapter.name), 0)) or None\n",
        "A new version finds the slot in which the old one of its name lies, and is not loaded.",
        _WALKS,
    ),
    Mutant(
        "slots-of-rows-remembered",
        *_MEMO,
        _BOOK,
        "        slots = tuple([0 if adapter is None else place[adapter] for adapter in rows])\n",
        '        slots = tuple([0 if adapter is None else place[adapter] for adapter in rows])\n        slots = globals().setdefault("_MEMO", {}).setdefault((id(self), *rows), slots)\n',
        "Rows with the same adapters as once before read the slots of that time, whatever was loaded into them since.",
        _WALKS,
    ),
    Mutant(
        "slots-are-never-pinned",
        *_MEMO,
        _BOOK,
        "            self._pins.setdefault(slot, set()).add(plan_id)\n",
        "            self._pins.get(slot, set()).add(plan_id)\n",
        "A slot is loaded anew while a plan that reads it is in flight.",
        _WALKS,
    ),
    Mutant(
        "slots-pinned-until-the-commit",
        *_MEMO,
        "engine_under_test/engine.py",
        "self._book.adapters.settle(self._kv.unsettled, ",
        "self._book.adapters.settle(self._kv.plans_in_flight, ",
        "A slot is loaded anew when the last plan that reads it is committed or lost, though the device may still be at it.",
        _WALKS,
    ),
    Mutant(
        "rollback-keeps-what-it-would-have-loaded",
        *_REUSE,
        _BOOK,
        "        for slot, held, used in reversed(self._changed):\n",
        "        for slot, held, used in reversed(self._changed[:0]):\n",
        "An adapter counts as loaded though its plan was undone before it was launched.",
        _WALKS,
    ),
    Mutant(
        "lost-loads-count-as-loaded",
        *_REUSE,
        _BOOK,
        "            if self._slots[load.slot] == load.adapter:\n                self._slots[load.slot] = None\n",
        "            if self._slots[load.slot] == load.adapter:\n                self._slots[load.slot] = load.adapter\n",
        "An adapter counts as loaded though its plan was lost, perhaps before the load had run.",
        _WALKS,
    ),
    Mutant(
        "restart-keeps-the-slots",
        *_REUSE,
        _BOOK,
        "        self._slots = [None] * len(self._slots)\n        self._pins = {}\n",
        "        self._pins = {}\n",
        "After a restart rows read slots of a memory that has begun anew.",
        _WALKS,
    ),
    Mutant(
        "old-version-keeps-the-door",
        "vllm-lora-reload-same-name",
        "https://github.com/vllm-project/vllm/issues/42125",
        _BOOK,
        "            del self._listed[older]\n",
        "            continue\n",
        "A new version is loaded under a name, and requests may go on to name the old one.",
        _WALKS,
    ),
    Mutant(
        "adapters-counted-by-choice",
        "sgl-lora-unload-deadlock-n",
        "https://github.com/sgl-project/sglang/issues/36894",
        "engine_under_test/book.py",
        "            self.adapters.began(request.adapter)\n",
        "            for _choice in range(request.sampling.n):\n                self.adapters.began(request.adapter)\n",
        "The uses of an adapter are counted by choice and given back by request: one that was unloaded is never dropped.",
        _WALKS,
    ),
    Mutant(
        "unloaded-adapters-stay",
        "vllm-lora-unload-not-propagated",
        "https://github.com/vllm-project/vllm/issues/54839",
        _BOOK,
        "            del self._live[adapter]\n            self._forget_dropped(adapter)\n",
        "            self._forget_dropped(adapter)\n",
        "An adapter that was unloaded in use is kept when its last request has ended.",
        _WALKS,
    ),
    Mutant(
        "cold-adapters-starve",
        "sglang 15129",
        "https://github.com/sgl-project/sglang/pull/15129",
        "engine_under_test/scheduling/admission.py",
        "    return not seq.is_aged and seq.overtaken + sum(each.ordinal > seq.ordinal for each in admitted) < most\n",
        "    return most > 0\n",
        "Requests of adapters that have a slot enter before one that waits for a slot as long as there are such requests.",
        _WALKS,
    ),
    Mutant(
        "missing-modules-keep-the-old-weights",
        *_CONTAMINATION,
        _SLOTS,
        "        self._changed[slot] = {(number, module) for number, modules in enumerate(lora.layers) for module in modules}\n",
        "        self._changed[slot] |= {(number, module) for number, modules in enumerate(lora.layers) for module in modules}\n",
        "In the slot of another adapter, modules that the new one does not change keep the weights of the old one.",
        _MODELS,
    ),
    Mutant(
        "scale-forgotten-on-down",
        *_CONTAMINATION,
        _SLOTS,
        "self._b[number][module][slot, :, :rank]) * self._scales[slot]\n",
        'self._b[number][module][slot, :, :rank]) * (1.0 if module == "down" else self._scales[slot])\n',
        "What an adapter adds to the last matrix of a layer is not scaled.",
        _MODELS,
    ),
    Mutant(
        "slots-of-another-row",
        *_MEMO,
        "engine_under_test/execution/transformer.py",
        "map(repeat, reservation.adapter_slots, plan.num_tokens)",
        "map(repeat, reservation.adapter_slots[::-1], plan.num_tokens)",
        "Tokens read the slots of rows in another order than their own.",
        _MODELS,
    ),
    Mutant(
        "whole-tile-adapted",
        *_CONTAMINATION,
        _SLOTS,
        "                    y = torch.where(mask[:, None], y + added, y)\n",
        "                    y = y + added\n",
        "In the batch-invariant mode the rows beside one with an adapter get it too.",
        _MODELS,
    ),
)
