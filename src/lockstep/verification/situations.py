"""The contexts in which a class is asked: axes that vary together, so that none is judged with all others held fixed.

Shapes: B batch, T_q and T_k query and key length, D = d_model, H = num_heads, K = head_dim.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations, product
from typing import Any

from lockstep.verification.conventions import NUMBERS, Conventions, MaskForm

LONG, LONGEST = 128, 577
ACROSS = ("none", "key and value")
"""What may be one tensor where the lengths differ."""


@dataclass(frozen=True)
class Situation:
    """One question to a class. The defaults are the plainest: self-attention in eval, in float64, without a mask.

    Args:
        lengths: T_q and T_k.
        batch: B.
        same: which of query, key and value are one tensor.
        storage: how inputs and masks lie in memory, see :data:`STORAGE`.
        values: of the inputs, see :data:`VALUES`.
        forms: the forms of the masks that are given.
        hidden: which keys the masks hide: see :data:`HIDDEN`.
        is_causal: the class's own causal switch is on.
        mode: see :data:`MODES`; nothing is dropped.
        gradients: of what, see :data:`GRADIENTS`; or "none" (``no_grad``) and "inference".
        upstream: the gradient that the output is given, see :data:`UPSTREAM`.
        precision: "full" (float64 where the class can), "float32", "bfloat16", "float16", or "autocast" (float32 under
            bfloat16 autocast).
        size: at which the class was constructed, by its name; empty where it is its own.
        integers: masks of numbers are integers.
        options: further arguments, on which the output must not depend.
        omitted: optional inputs that are not given, though the class has them.
    """

    lengths: tuple[int, int] = (7, 7)
    batch: int = 2
    same: str = "all"
    storage: str = "contiguous"
    values: str = "ordinary"
    forms: tuple[MaskForm, ...] = ()
    hidden: str = "some keys"
    is_causal: bool = False
    mode: str = "eval"
    gradients: str = "everything"
    upstream: str = "random"
    precision: str = "full"
    size: str = ""
    integers: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    omitted: tuple[str, ...] = ()

    @property
    def refusable(self) -> bool:
        """To refuse it is no wrong answer: several masks, long sequences, inputs that lie otherwise, an option."""
        several, long = len(self.forms) + self.is_causal > 1, max(self.lengths) >= LONG
        lies_otherwise = self.storage != PLAIN.storage
        return several or long or lies_otherwise or self.integers or bool(self.options) or self.precision in NARROW

    @property
    def learns(self) -> bool:
        """A backward pass belongs to it."""
        return self.gradients not in ("none", "inference")

    def __str__(self) -> str:
        """What is not plain about it, the masks first."""
        T_q, T_k = self.lengths
        words = [*map(str, self.forms), *(["causal"] if self.is_causal else [])]
        words += [f"hidden: {self.hidden}"] if self.hidden != PLAIN.hidden else []
        words += ["integers"] if self.integers else []
        words += [f"{name}={value}" for name, value in self.options]
        words += [f"without {name}" for name in self.omitted]
        if self.lengths != PLAIN.lengths:
            words.append(f"T = {T_q}" if T_q == T_k else f"T_q = {T_q}, T_k = {T_k}")
        words += [f"B = {self.batch}"] if self.batch != PLAIN.batch else []
        words += [SAME[self.same]] if self.same != PLAIN.same else []
        words += [STORAGE[self.storage]] if self.storage != PLAIN.storage else []
        words += [VALUES[self.values]] if self.values != PLAIN.values else []
        words += [MODES[self.mode]] if self.mode != PLAIN.mode else []
        words += [GRADIENTS[self.gradients]] if self.gradients != PLAIN.gradients else []
        words += [UPSTREAM[self.upstream]] if self.upstream != PLAIN.upstream else []
        words += [self.precision] if self.precision != PLAIN.precision else []
        words += [self.size] if self.size else []
        return ", ".join(words) or "plain self-attention"

    def simpler(self) -> Iterator["Situation"]:
        """The same with one thing plain again."""
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                plain: Any = {field.name: field.default}
                yield replace(self, **plain)


SAME = {
    "all": "query, key and value one tensor",
    "none": "three inputs",
    "key and value": "key and value one tensor",
    "query and key": "query and key one tensor",
    "query and value": "query and value one tensor",
}
VALUES = {
    "ordinary": "ordinary values",
    "large": "large scores",
    "huge": "scores beyond 500",
    "immense": "inputs of ten thousand",
    "zero rows": "rows of zeros",
    "equal keys": "equal keys",
    "positive": "positive inputs",
    "whole": "whole numbers",
    "offset": "inputs far from zero",
}
SATURATED = ("large", "huge", "immense", "offset")
"""Values with large scores."""
MODES = {"eval": "eval", "training": "training", "mixed": "training with its parts in eval"}
GRADIENTS = {
    "everything": "gradients of everything",
    "weights": "gradients of the weights alone",
    "inputs": "gradients of the inputs alone",
    "the key": "gradients of the key and the weights",
    "the query": "gradients of the query and the weights",
    "none": "no_grad",
    "inference": "inference_mode",
}
STORAGE = {
    "contiguous": "contiguous inputs",
    "transposed": "transposed inputs and masks",
    "channels first": "inputs with channels first",
    "every second channel": "every second channel of wider inputs",
    "one sample": "one sample expanded to all",
    "one position": "one query position, and one row of the mask, expanded to all",
    "sliced": "inputs that are parts of one tensor",
    "overlapping": "a query that is the first part of the key",
    "key transposed": "a transposed key",
}
UPSTREAM = {
    "random": "a random gradient from above",
    "sum": "a gradient from above that is one number for all",
    "transposed": "a gradient from above that is not contiguous",
    "large": "a thousandfold gradient from above",
}
NARROW = ("autocast", "bfloat16", "float16")
HIDDEN = ("some keys", "the first key", "leading keys", "trailing keys", "all but one key", "no key",
          "one sample blind", "finite biases")  # fmt: skip
"""Families of masks: "one sample blind" leaves the queries of one sample nothing to see, "finite biases" hides nothing
and is added to the scores."""
PLAIN = Situation()


def possible(situation: Situation, conventions: Conventions) -> bool:
    """Whether the question has an answer: its parts fit each other."""
    s, (T_q, T_k) = situation, situation.lengths
    causal = s.is_causal or conventions.causal
    if (T_q != T_k and s.same not in ACROSS) or (T_q > T_k and (causal or s.storage == "overlapping")):
        return False
    apart = s.storage in ("overlapping", "key transposed")
    if (apart and s.same not in ACROSS) or not _omittable(s, conventions):
        return False
    accepted = conventions.self_masks if s.omitted else conventions.masks
    if not set(s.forms) <= set(accepted) or (not s.forms and s.hidden != PLAIN.hidden):
        return False
    if s.integers and not any(form.meaning in NUMBERS for form in s.forms):
        return False
    if s.hidden == "finite biases" and (len(s.forms) > 1 or s.forms[0].meaning != "additive" or causal):
        return False
    if s.hidden == "one sample blind" and (s.batch == 1 or s.learns or not any("b" in f.shape for f in s.forms)):
        return False
    if s.storage == "one sample" and s.batch == 1:
        return False
    if s.upstream != PLAIN.upstream and (not s.learns or s.hidden == "one sample blind"):
        return False
    if s.upstream == "large" and s.precision == "float16":  # whose largest number is 65504
        return False
    if max(T_q, T_k) >= LONG and (s.values != PLAIN.values or s.batch > 2 or s.precision in NARROW):
        return False
    # Saturated, the rounding of short numbers decides which key wins.
    if s.values in SATURATED and s.precision in NARROW:
        return False
    if s.values == "immense" and (s.learns or s.forms or causal):  # scores beyond the -1e9 that hides in many classes
        return False
    return s.precision == "full" or s.values not in ("immense", "offset")


def _omittable(s: Situation, conventions: Conventions) -> bool:
    """Whether what is not given is what is given: all inputs one tensor, or without a value the key."""
    left_out = {conventions.inputs[name] for name in s.omitted}
    return not left_out or s.same == "all" or (left_out == {"value"} and s.same == "key and value")


def axes(
    conventions: Conventions, *, unequal: bool, biases: bool, options: Mapping[str, Any], optional: Sequence[str],
    sizes: Sequence[str], num_heads: int,
) -> dict[str, list[Any]]:  # fmt: skip
    """What a class so called can be asked: the values of each field of :class:`Situation`, the plainest first.

    Args:
        conventions: with the masks it accepts.
        unequal: it works with T_q other than T_k, where it has inputs for it.
        biases: finite values in its additive masks are added to the scores.
        options: arguments that ask for attention weights as well.
        optional: inputs that need not be given.
        sizes: the names of those at which it was constructed.
        num_heads: H of its own size: a batch of as many samples can be taken for heads.
    """
    roles = conventions.roles
    same = ["all"]
    if "key" in roles:
        same += ["key and value", *(("none", "query and key", "query and value") if "value" in roles else ())]
    lengths = [(7, 7), (2, 2), (3, 3), (6, 6), (1, 1), (LONG, LONG)]
    if "key" in roles and unequal:
        lengths += [(7, 11), (1, 5), (2, 4), (11, 7), (3, 1)]
    known = dict.fromkeys((*conventions.masks, *conventions.self_masks))
    masks: list[tuple[MaskForm, ...]] = [(), *((form,) for form in known)]
    masks += _together(conventions)
    return {
        "forms": masks,
        "lengths": lengths,
        "hidden": [h for h in HIDDEN if known and (biases or h != "finite biases")] or [PLAIN.hidden],
        "same": same,
        "gradients": [g for g in GRADIENTS if g != "the query" or "key" in roles],
        "upstream": list(UPSTREAM),
        "batch": list(dict.fromkeys([2, 1, 3, 16, num_heads])),
        "storage": [s for s in STORAGE if "key" in roles or s not in ("overlapping", "key transposed")],
        "values": list(VALUES),
        "precision": ["full", "float32", *NARROW],
        "is_causal": [False, *([True] if conventions.causal_argument else [])],
        "integers": [False, True] if any(form.meaning in NUMBERS for form in known) else [False],
        "mode": list(MODES),
        "options": [(), *(((name, value),) for name, value in options.items())],
        "omitted": list(dict.fromkeys([(), tuple(optional), *((name,) for name in optional)])),
        "size": list(sizes),
    }


def _together(conventions: Conventions) -> list[tuple[MaskForm, ...]]:
    """Every mask argument at once, in each of its meanings."""
    first: dict[str, dict[str, MaskForm]] = {}
    for form in conventions.masks:
        first.setdefault(form.argument, {}).setdefault(form.meaning, form)
    return list(product(*(by_meaning.values() for by_meaning in first.values()))) if len(first) > 1 else []


def plain_situations(values: Mapping[str, list[Any]], conventions: Conventions) -> list[Situation]:
    """One thing at a time: what most faults show in, asked first."""
    one = [replace(PLAIN, **{name: value}) for name, of in values.items() for value in of if value != of[0]]
    one += [replace(PLAIN, forms=forms, same=s, lengths=(5, 11)) for forms in values["forms"][1:] for s in ACROSS]
    one += [replace(PLAIN, forms=forms, batch=values["batch"][-1]) for forms in values["forms"][1:]]
    one += [replace(PLAIN, is_causal=True, same="none", lengths=(5, 11))] if True in values["is_causal"] else []
    one += [
        replace(PLAIN, same=same, lengths=of) for of in values["lengths"] for same in values["same"] if of[0] != of[1]
    ]
    known = [
        s for s in one if s.same in values["same"] and (s.lengths[0] == s.lengths[1] or (7, 11) in values["lengths"])
    ]
    return [PLAIN, *dict.fromkeys(s for s in known if possible(s, conventions))]


_BOUND = ("forms", "same", "lengths", "gradients", "batch")
"""Fields on whose values it depends which others fit: they are drawn first."""


def covering(values: Mapping[str, list[Any]], conventions: Conventions, seed: int = 0) -> list[Situation]:
    """Situations in which every two values of two fields meet, where they can: a pairwise covering array, seeded.

    Greedy: each situation starts from a pair that has not met yet, and takes for the other fields, in drawn orders,
    what makes most new pairs meet.
    """
    draw = random.Random(seed)
    names = [name for name, of in values.items() if len(of) > 1]
    open_pairs = {
        frozenset(pair)
        for one, other in combinations(names, 2)
        for pair in product(
            ((one, i) for i in range(len(values[one]))), ((other, j) for j in range(len(values[other])))
        )
    }
    found: list[Situation] = []
    while open_pairs:
        start = min(open_pairs, key=lambda pair: sorted(pair))
        tried = [_completed(dict(start), names, values, conventions, open_pairs, draw) for _ in range(6)]
        best = max(filter(None, tried), key=lambda chosen: len(open_pairs & _pairs(chosen)), default=None)
        open_pairs.discard(start)  # met now, or impossible
        if best is not None:
            open_pairs -= _pairs(best)
            found.append(_situation(best, values))
    return [*sorted(found, key=lambda s: max(s.lengths) >= LONG), replace(PLAIN, lengths=(LONGEST, LONGEST), batch=1)]


def _completed(
    chosen: dict[str, int],
    names: Sequence[str],
    values: Mapping[str, list[Any]],
    conventions: Conventions,
    open_pairs: set[frozenset[tuple[str, int]]],
    draw: random.Random,
) -> dict[str, int] | None:
    """Values for the fields still open; None where none are found that fit each other."""
    for _ in range(100):
        bound = {name: draw.randrange(len(values[name])) for name in names if name in _BOUND} | chosen
        if possible(_situation(bound, values), conventions):
            break
    else:
        return None
    rest = [name for name in names if name not in bound]
    draw.shuffle(rest)
    for name in rest:
        order = list(range(len(values[name])))
        draw.shuffle(order)
        fitting = [i for i in order if possible(_situation(bound | {name: i}, values), conventions)]
        bound[name] = max(
            fitting, key=lambda i: sum(frozenset(((name, i), other)) in open_pairs for other in bound.items())
        )
    return bound


def _situation(chosen: Mapping[str, int], values: Mapping[str, list[Any]]) -> Situation:
    return Situation(**{name: of[chosen.get(name, 0)] for name, of in values.items()})


def _pairs(chosen: Mapping[str, int]) -> set[frozenset[tuple[str, int]]]:
    return {frozenset(pair) for pair in combinations(chosen.items(), 2)}
