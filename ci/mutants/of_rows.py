"""Bugs of rows that are kept from step to step, of batches padded to a bucket, and of media at their placeholders. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_ROWS = "engine_under_test/execution/rows.py"
_GRAPHS = "engine_under_test/execution/graphs.py"
_KEPT = ("kept-rows",)
_BUCKETS = ("float-buckets",)

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
    Mutant(
        "bucket-too-small",
        "ours",
        "",
        _GRAPHS,
        "        return next((size for size in self.sizes if size >= num_rows), None)",
        "        return next((size for size in reversed(self.sizes) if size <= num_rows), None)",
        "A batch is put into the largest bucket below its number of rows.",
        _BUCKETS,
    ),
    Mutant(
        "padding-keeps-slots-and-positions",
        "sglang 24401",
        "https://github.com/sgl-project/sglang/pull/24401",
        _GRAPHS,
        "            static[n:] = 0\n",
        "",
        "Behind fewer rows than before, padding keeps the tokens, positions and slots of who stood there, and writes.",
        _BUCKETS,
    ),
    Mutant(
        "padding-computed-as-rows",
        "rvllm-padding-live-slot",
        "https://github.com/m0at/rvllm/pull/32",
        _GRAPHS,
        "        self.is_row[n:] = False\n",
        "",
        "Padding rows are computed as rows, and write numbers to slot 0.",
        _BUCKETS,
    ),
    Mutant(
        "logits-of-a-bucket-not-copied-out",
        "ours",
        "",
        _GRAPHS,
        "        return logits.index_select(0, batch.sampled)  # a copy",
        "        return logits if len(batch.sampled) == len(logits) else logits.index_select(0, batch.sampled)",
        "A step's logits are those of the next one that replays the same bucket, for whoever looks at them later.",
        _BUCKETS,
    ),
    Mutant(
        "recording-reads-inputs-of-its-own",
        "vllm 44868",
        "https://github.com/vllm-project/vllm/pull/44868",
        _GRAPHS,
        "            self.recordings[key] = self._record(self._body, inputs)",
        "            own = StaticInputs(*(each.clone() for each in inputs))\n"
        "            self.recordings[key] = self._record(self._body, own)",
        "A recording goes on with the tensors that it was recorded on.",
        _BUCKETS,
    ),
)
