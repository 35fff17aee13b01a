"""The suite `made-models`: what loaders, tokenizers and chat templates make of models other than the published one.

Small models are made from the seed as files (`made_files.py`), each with what another lacks: types, defaults, older and newer
keys, several ends, splits of digits, begins of texts, templates. What the engine loads is compared with what `transformers`
reads from the same files: tensors bit for bit, fields, tokens, texts, chats, ends; and the logits of the reference on the one
with those of `transformers` on the other. Where the engine differs on purpose the sentence is its own: nobody spells a special
token (also not in halves), a GGUF file's end of turns ends an answer, a file that asks for a space in front gets it.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from differential.hf_oracle import state_of
from differential.made_files import MODELS, Made
from differential.made_texts import conversations, halves, texts
from differential.published import (
    CHATS,
    FIELDS,
    TENSORS,
    TEXTS,
    TOKENS,
    Published,
    Said,
    compare,
    ids_differ,
    read_folder,
    read_published,
    text_differs,
    weights_differ,
)
from differential.reference import reference_logits
from differential.strange_files import STRANGE, Strange
from differential.threads import one_thread
from differential.trials import Tally
from engine_under_test.errors import BadInput
from engine_under_test.model.load import load_weights
from engine_under_test.model.safetensors_file import save_llama
from engine_under_test.model.tokenizer import Tokenizer, load_tokenizer
from engine_under_test.model.tokenizer_files import save_tokenizer
from engine_under_test.model.weights import LlamaWeights
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Violation

SUITE_ID = "made-models"
SAVED, STRANGE_FILES = "as written and read again", "strange files, refused or computed as they mean"
OWN, LOGITS = "as the engine promises: chats, ends, texts", "as published: rows of logits"
_ROUNDS = {Profile.QUICK: 1, Profile.PR: 1, Profile.NIGHTLY: 12}
_NUM_TEXTS = {Profile.QUICK: 40, Profile.PR: 60, Profile.NIGHTLY: 300}
_SHARE = 1e-4  # of the spread of a row: float32 in another order
_FLOORS = {TENSORS: 12, FIELDS: 15, TOKENS: 300, TEXTS: 200, CHATS: 17, OWN: 50, LOGITS: 40, SAVED: 20}
Read = Callable[[Path], Published]


def check_made_models(
    context: SuiteContext, models: Sequence[Made] = MODELS, strange: Sequence[Strange] = STRANGE
) -> CheckResult:
    """The suite: every model, as often as the profile says, up to the first difference."""
    tally = Tally(SUITE_ID, context.seed)
    total = _ROUNDS[context.profile] * len(models)
    with one_thread():
        for number in range(total):
            made, seed = models[number % len(models)], (context.seed + number) % 2**31
            found = _judged(tally, made, seed, _NUM_TEXTS[context.profile])
            if found is not None:
                again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
                tally.failures = (Failure(found, f"{SUITE_ID}#{context.seed:#x}", again),)
                break
            context.progress(number + 1, total)
        for each in () if tally.failures else strange:
            found = _strange_apart(each, context.seed % 2**31)
            tally.evaluations["SE-1"] += 1
            tally.reached[STRANGE_FILES] += 1
            if found is not None:
                again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
                tally.failures = (Failure(found, f"{SUITE_ID}#{context.seed:#x}", again),)
                break
    compared = sum(tally.reached.values())
    return tally.result(f"{len(models)} kinds of files, each made {_ROUNDS[context.profile]}x; {compared:,} comparisons")


def _judged(tally: Tally, made: Made, seed: int, num_texts: int) -> Violation | None:
    """One model: everything that is compared, counted; the first difference, which names the model."""
    with TemporaryDirectory() as folder:
        path = made.write(Path(folder), seed)
        theirs = (read_folder if path.is_dir() else read_published)(path)
        try:
            weights, tokenizer = load_weights(path), load_tokenizer(path)
        except BadInput as error:
            return Violation(
                "SE-1", "a sound file is loaded", made.name, f"a refusal: {error}", "a model, as transformers reads"
            )
        found, compared = _compared(made, weights, tokenizer, theirs, seed, num_texts)
        for saved in _saved_apart(Path(folder), weights, tokenizer, seed) if found is None else ():
            compared[SAVED] += 1
            found = found or saved
    tally.examples += 1
    tally.ops += compared.total()
    tally.reached.update(compared)
    tally.evaluations["SE-1"] += compared[TENSORS] + compared[FIELDS] + compared[LOGITS]
    tally.evaluations["SC-12"] += compared[TOKENS] + compared[TEXTS] + compared[CHATS] + compared[OWN]
    if found is not None:
        return replace(found, subject=f"{made.name}: {found.subject}")
    floors = {name: floor for name, floor in _FLOORS.items() if made.has_chat or name not in (CHATS, OWN)}
    few = {name: floor for name, floor in floors.items() if compared[name] < floor}
    tally.missed.update((f"{made.name}: {name} at least {floor}, found {compared[name]}", None) for name, floor in few.items())
    return None


def _compared(
    made: Made, weights: LlamaWeights, tokenizer: Tokenizer, theirs: Published, seed: int, num_texts: int
) -> tuple[Violation | None, Counter[str]]:
    expected = replace(theirs, encode=_begun_with(made.begins, theirs)) if made.begins else theirs
    done = compare(weights, tokenizer, expected, Said(texts(seed, num_texts), conversations() if made.has_chat else ()))
    own = (_ends_apart(made, tokenizer), _back_apart(tokenizer, theirs, seed), _own_chats(made, tokenizer, theirs))
    later = [(OWN, found) for found in own] + [(LOGITS, _logits_apart(weights, theirs, seed))]
    for what, findings in later if done.violation is None else ():
        for found in findings:
            done.compared[what] += 1
            if found is not None:
                return found, done.compared
    return done.violation, done.compared


def _saved_apart(folder: Path, weights: LlamaWeights, tokenizer: Tokenizer, seed: int) -> Iterator[Violation | None]:
    """What is written as a folder is the model that was read: its fields, tensors, ends and tokens."""
    written = folder / "written"
    save_llama(weights, written)
    save_tokenizer(tokenizer, written)
    again, speller = load_weights(written, weights.embedding.dtype), load_tokenizer(written)
    kept, told = asdict(again.config), asdict(weights.config)
    for name in told:
        yield None if kept[name] == told[name] else weights_differ(f"{name}, written", repr(kept[name]), repr(told[name]))
    before, behind = state_of(weights), state_of(again)
    for name in sorted(before.keys() | behind.keys()):
        same = name in before and name in behind and torch.equal(before[name], behind[name])
        yield None if same else weights_differ(f"tensor {name}, written", "another one, or none", "as it was read")
    yield ids_differ("tokens that end an answer, written", speller.stop_token_ids, tokenizer.stop_token_ids)
    for name, text in texts(seed, 5):
        yield ids_differ(f"{name}, by what was written", speller.encode(text), tokenizer.encode(text))


def _strange_apart(strange: Strange, seed: int) -> Violation | None:
    """A file that means what this engine does not compute is refused in a sentence, or computed as it means."""
    with TemporaryDirectory() as folder:
        path = strange.write(Path(folder), seed)
        said = "a model file that means another model is refused"
        try:
            weights, _tokenizer = load_weights(path), load_tokenizer(path)
        except BadInput:
            return None
        except Exception as error:  # whatever it is: nobody is told what to do
            return Violation("SE-1", said, strange.name, f"{type(error).__name__}: {error}"[:200], "a refusal in a sentence")
        if not strange.may_load:
            return Violation("SE-1", said, strange.name, "loaded", "a refusal in a sentence")
        for found in _logits_apart(weights, read_folder(path), seed):
            if found is not None:
                return replace(found, subject=f"{strange.name}: {found.subject}")
    return None


def _begun_with(begin: str, theirs: Published) -> Callable[[str], Sequence[int]]:
    """`transformers` does not read that key of a GGUF file: it is given the text with what its author's tokenizer adds."""
    names = re.compile("(" + "|".join(map(re.escape, theirs.named.values())) + ")")

    def encode(text: str) -> Sequence[int]:
        pieces = [piece for piece in names.split(text) if piece]
        is_ready = [names.fullmatch(piece) is not None or piece.startswith(begin) for piece in pieces]
        return theirs.encode("".join(piece if ready else begin + piece for piece, ready in zip(pieces, is_ready, strict=True)))

    return encode


def _ends_apart(made: Made, tokenizer: Tokenizer) -> Iterator[Violation | None]:
    """Ends as they stand in the files, all of them and no other."""
    expected = [tokenizer.encode(name, with_special=False)[0] for name in made.ends]
    found = list(tokenizer.stop_token_ids)
    name = "an answer ends where its model's files say"
    wrong = Violation("SC-12", name, "tokens that end an answer", f"{found} as loaded", f"{expected} in the file")
    yield None if found == expected else wrong


def _back_apart(tokenizer: Tokenizer, theirs: Published, seed: int) -> Iterator[Violation | None]:
    """Any tokens in any order are the same text, also where characters are broken between them."""
    chance = random.Random(seed)
    for _ in range(60):
        tokens = [chance.randrange(theirs.vocab_size) for _ in range(chance.randint(2, 24))]
        yield text_differs(f"the text of tokens {tokens}", tokenizer.decode(tokens), theirs.decode(tokens))


def _own_chats(made: Made, tokenizer: Tokenizer, theirs: Published) -> Iterator[Violation | None]:
    """Whoever spells a special token, or the half of one that another message ends, says a text."""
    for messages in halves() if made.has_chat else ():
        name = "chat of " + " and ".join(repr(message["content"]) for message in messages)
        plain = [{**message, "content": "ab"} for message in messages]
        for is_asking in (True, False):
            tokens = tokenizer.chat(messages, is_asking)
            special = [[token for token in ids if token in theirs.special] for ids in (tokens, theirs.chat(plain, is_asking))]
            yield ids_differ(f"{name}, special ones alone", *special)
            yield text_differs(f"{name}, back from its tokens", theirs.decode(tokens), theirs.render(messages, is_asking))


def _logits_apart(weights: LlamaWeights, theirs: Published, seed: int) -> Iterator[Violation | None]:
    chance = random.Random(seed)
    tokens = [chance.randrange(theirs.vocab_size) for _ in range(48)]
    ours, others = reference_logits(weights, tokens, torch.float32), theirs.logits(tokens)
    for place, (one, other) in enumerate(zip(ours, others, strict=True)):
        error = float((one - other).abs().max() / other.std())
        facts = (f"the largest error of a logit is {error:.3g} of the spread of its row, {_SHARE:g} is allowed",)
        here = f"logits behind token {place} of {len(tokens)}"
        at = int((one - other).abs().argmax())
        same = error <= _SHARE
        yield None if same else weights_differ(here, f"{float(one[at]):.6g} of token {at}", f"{float(other[at]):.6g}", facts)
