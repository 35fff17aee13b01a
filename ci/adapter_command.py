"""`assay model adapter`: a random LoRA adapter as a folder, for trying things out.

Owns: the words of the command, and that nothing half-written is left. Never: the format (`engine_under_test/model/lora.py`).
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ci.ending import heed, interrupts_heeded
from engine_under_test.errors import BadInput

if TYPE_CHECKING:
    from engine_under_test.model.lora import LoraWeights


@click.command(name="adapter", short_help="Write a random LoRA adapter, for trying things out.")
@click.argument("folder")
@click.option("--model", "name", default="smollm2", show_default=True, metavar="NAME", help="For smollm2, tiny, or a path.")
@click.option("--rank", type=int, default=8, show_default=True, metavar="R")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N")
@click.option("--strength", type=float, default=0.5, show_default=True, metavar="X", help="1 drowns what the model learnt.")
def adapter(folder: str, name: str, rank: int, seed: int, strength: float) -> None:
    """Write a LoRA adapter with random weights into FOLDER, as PEFT would: for `assay generate --adapter FOLDER`."""
    from ci.environment import require_extra

    require_extra("model", "an adapter")
    if not 1 <= rank <= 256:
        raise BadInput(f"--rank must be from 1 to 256, found {rank}; correct it")
    if not 0 <= seed < 2**63:
        raise BadInput(f"--seed must be from 0 to 2**63 - 1, found {seed}; correct it")
    if not 0 <= strength <= 100:
        raise BadInput(f"--strength must be from 0 to 100, found {strength}; correct it")
    if not folder.strip():
        raise BadInput("an adapter needs a folder of its own, found no name; say for example assay model adapter my-adapter")
    where = Path(folder)
    if where.exists():
        raise BadInput(f"an adapter needs a folder of its own, but {where} exists; name another")
    from ci.generate import open_model
    from engine_under_test.model.lora import random_lora

    with interrupts_heeded():
        config = open_model(name).weights.config
        _put(random_lora(config, seed, rank=rank, strength=strength), where)
    click.echo(f"{where}: rank {rank} on q, k, v, o, gate, up, down of {config.num_layers} layers, seed {seed}")


def _put(lora: LoraWeights, where: Path) -> None:
    """Whole, or not at all: neither the folder nor those above it that were made for it."""
    from engine_under_test.model.lora import save_lora

    new = [folder for folder in where.parents if not folder.exists()]  # from the innermost outwards
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{where.name}-", dir=where.parent))
        try:
            save_lora(lora, made / "adapter")
            heed()
            (made / "adapter").rename(where)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise BadInput(f"{where} must be writable, but is not: {error.strerror or error}; name another folder") from error
    finally:
        if not where.exists():
            for folder in new:
                with suppress(OSError):  # it was not made, or another has put something into it
                    folder.rmdir()
