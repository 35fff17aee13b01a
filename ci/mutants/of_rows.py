"""Bugs of rows that are kept from step to step, of batches padded to a bucket, and of media at their placeholders. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_ROWS = "engine_under_test/execution/rows.py"
_KEPT = ("kept-rows",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "option-joined-late-ignored",
        "vllm 27910",
        "https://github.com/vllm-project/vllm/pull/27910",
        _ROWS,
        "        for name in values.keys() - self._columns.keys():",
        '        for name in values.keys() - self._columns.keys() if not self._place_of else {"output"} - self._columns.keys():',
        "A row that joins a batch brings no option that nobody there has.",
        _KEPT,
    ),
    Mutant(
        "seed-stays-when-rows-are-swapped",
        "ours",
        "",
        _ROWS,
        "        for column in (*self._columns.values(), self._ids):\n            column[one], column[other]",
        '        for column in (*(each for name, each in self._columns.items() if name != "seed"), self._ids):\n'
        "            column[one], column[other]",
        "Two rows change places and each draws with the seed of the other.",
        _KEPT,
    ),
    Mutant(
        "tables-stay-when-rows-move",
        "ours",
        "",
        _ROWS,
        "        for array in (self.tables, self.lengths, self._num_blocks):\n            array[[one, other]]",
        "        for array in (self.lengths, self._num_blocks):\n            array[[one, other]]",
        "A row that takes the place of one that ended reads that one's blocks.",
        _KEPT,
    ),
    Mutant(
        "option-of-who-had-the-place",
        "ours",
        "",
        _ROWS,
        "            column[place] = values[name] if name in values else OPTIONS[name]",
        "            column[place] = values[name] if name in values else column[place] or OPTIONS[name]",
        "A row that takes a free place, and does not ask for an option, has that of who stood there before.",
        _KEPT,
    ),
    Mutant(
        "length-left-when-a-row-ends",
        "sglang 24401",
        "https://github.com/sgl-project/sglang/pull/24401",
        _ROWS,
        "        self.lengths[place] = 0\n",
        "",
        "The place of a row that ended keeps its length, for whoever reads more places than there are rows.",
        _KEPT,
    ),
    Mutant(
        "blocks-of-a-plan-given-up-stay",
        "ours",
        "",
        _ROWS,
        "        if self.lengths[row] != start:",
        "        if self.lengths[row] < start:",
        "The rows of a plan that was given up keep its blocks, though the next plan has others.",
        _KEPT,
    ),
    Mutant(
        "table-keeps-the-block-that-was-copied",
        "ours",
        "",
        _ROWS,
        "            self.tables[row, blocks.index(block)] = block",
        "            pass",
        "A row goes on reading the block that it shared, not the copy that it writes.",
        _KEPT,
    ),
)
