"""Third stage: which parameter plays which role, in which layout, in which formula.

Every hypothesis is judged by the output it predicts, to float64 rounding, and in an order that keeps them few: one
key, where only the value path matters; then several keys, where the scores do; then the biases.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, product

import torch
from torch import Tensor, nn

from lockstep.verification.construction import Sizes
from lockstep.verification.conventions import Conventions, MaskForm
from lockstep.verification.counterexample import counterexample
from lockstep.verification.formula import FAULTS, Fault, Norm, plain_norm
from lockstep.verification.hypotheses import Hypothesis, has_scores_fault, reproduces, stored_alike, tied
from lockstep.verification.other_sizes import other_sizes
from lockstep.verification.user_code import UserCodeError, user_code
from lockstep.verification.weight_search import Cell, Groups, bijective, cells, redraw, whole_norms

Inputs = tuple[Tensor, Tensor, Tensor]
"""Query (B, T_q, D), key and value (B, T_k, D)."""
Answer = tuple[MaskForm | None, Inputs, Tensor]
"""How "no mask" was said, the inputs, and the output."""


class Unexplained(Exception):
    """No hypothesis reproduces the output; says at which stage.

    Args:
        certain: the class is another function, not only an unknown one.
    """

    def __init__(self, stage: str, *, certain: bool = False) -> None:
        super().__init__(stage)
        self.certain = certain


class MappingSearch:
    """The search, for one module that is called in one way.

    Args:
        module: in eval mode; its parameters are redrawn.
        sizes: its sizes.
        conventions: how it is called, masks still unknown.
        neutrals: the ways to pass no mask that it accepted.
    """

    def __init__(
        self, module: nn.Module, sizes: Sizes, conventions: Conventions, neutrals: Sequence[MaskForm | None]
    ) -> None:
        self.module, self.sizes, self.conventions, self.neutrals = module, sizes, conventions, neutrals
        self.dtype = next((p.dtype for p in module.parameters()), torch.float64)
        self.generator = torch.Generator().manual_seed(0)
        self.groups = Groups.of(module, sizes)
        self.prints = False
        self.already_read: dict[tuple[str, Cell], Tensor] = {}
        self.doubt = "the scores: with several keys no known formula reproduces the output"
        self.unequal_lengths_failed: UserCodeError | None = None

    def inputs(self, B: int, T_q: int, T_k: int) -> Inputs:
        """Query, key and value, as different as the class lets them be."""
        x = [torch.randn(B, T, self.sizes.d_model, generator=self.generator, dtype=self.dtype) for T in (T_q, T_k, T_k)]
        roles = self.conventions.roles
        query = x[0]
        key = x[1] if "key" in roles else query
        return query, key, x[2] if "value" in roles else key

    def run(self, inputs: Inputs, neutral: MaskForm | None, gradients: bool = False) -> Tensor:
        with user_code("calling it") as printed, torch.set_grad_enabled(gradients):
            out = replace(self.conventions, neutral=neutral).call(self.module, self.sizes.num_heads, *inputs)
        self.prints = self.prints or bool(printed.getvalue())
        if not isinstance(out, Tensor):
            raise UserCodeError(f"calling it gave {type(out).__name__} instead of a tensor")
        return out

    def _read(self, name: str, cell: Cell) -> Tensor:
        """A canonical tensor, read once for each drawing."""
        if (name, cell) not in self.already_read:
            tensors = {name: parameter.detach().double() for name, parameter in self.module.named_parameters()}
            self.already_read[name, cell] = cell.read(name, tensors, self.sizes)
        return self.already_read[name, cell]

    def _redraw(self, biases: bool) -> None:
        redraw(self.module, self.sizes, self.generator, biases)
        self.already_read.clear()

    def _agrees(self, hypothesis: Hypothesis, inputs: Inputs, out: Tensor) -> bool:
        # With one key, any weights stand for the query's and the key's.
        stand_in = {f"{role}.weight": hypothesis.cells["value.weight"] for role in ("query", "key")}
        weights = {name: self._read(name, cell) for name, cell in (stand_in | hypothesis.cells).items()}
        query, key, value = (x.double() for x in inputs)
        return reproduces(hypothesis.formula, weights, (query, key, value), out, hypothesis.norm)

    def search(self) -> Hypothesis:
        """Find the mapping; sets the conventions' neutral mask and causality.

        Raises:
            Unexplained: no hypothesis reproduces the output.
        """
        self._redraw(biases=False)
        # After the reference's readings the faulty ones: shared by all heads, or fed a slice of the input.
        kinds = (("hkd", False), ("kd", False), ("hkd", True), ("kd", True))
        places = [cell for letters, sliced in kinds for cell in cells(self.groups, letters, sliced=sliced)]
        self.places = [cell for cell in places if not self.groups.is_vector(cell.parameter)]
        found = self._scores(list(self._value_path()))
        self._redraw(biases=True)
        return self._biases(found)

    def refuted(self, error: Unexplained) -> tuple[str, str] | None:
        """The code and the sentence of what it is instead, or of what it does that no multi-head attention does."""

        def ask(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return self.run((query, key, value), self.neutrals[0])

        with suppress(UserCodeError):
            with torch.no_grad():
                for parameter in (p for p in self.module.parameters() if p.dim() == 1):
                    parameter.zero_()
            inputs = self.inputs(2, 7, 7)
            sized = other_sizes(dict(self.module.named_parameters()), self.sizes, inputs, ask(*inputs))
            if sized is not None:
                return sized
        self._redraw(biases=False)
        refuted = counterexample(ask, self.sizes.d_model, self.conventions.roles, self.dtype)
        if refuted is None:
            return None
        code, does = refuted
        return code, f"unknown difference, first seen in {error}; no multi-head attention does this: {does}"

    # One key: out = W_o W_v value.

    def _value_path(self) -> Iterator[Hypothesis]:
        inputs = self.inputs(4, 1, 1)
        out = self.run(inputs, self.neutrals[0])
        if out.shape != inputs[0].shape:
            raise Unexplained(f"its shape: one query and one key give {tuple(out.shape)}, not {tuple(inputs[0].shape)}")
        starts = [Hypothesis({"value.weight": value, "output.weight": output})
                  for value in self.places for output in self.places
                  if value.parameter != output.parameter and output.count == 1 and not output.sliced]  # fmt: skip
        if not out.isfinite().all():
            self.doubt = "its plainest use: it returns NaN or infinite values, with a single key already"
            return self._beyond_one_key(starts, ("causal_off_by_one", "causal_inverted"))
        found = [start for start in starts if self._agrees(start, inputs, out)]
        found = found or list(self._heads_reordered(starts))
        found = found or list(self._value_faults(starts, inputs, out))
        found = found or list(self._multiplied(starts))
        if not found:
            self.doubt = "the value path: with a single key the output is no product of two of its matrices"
            weights = ("softmax_over_heads", "softmax_over_batch", "no_softmax")
            return self._beyond_one_key(starts, weights)
        return iter(found)

    def _heads_reordered(self, starts: list[Hypothesis]) -> Iterator[Hypothesis]:
        """The output projection takes heads in another order: W_o^-1 (W_o W_v) gives the rows it meets."""
        H, D = self.sizes.num_heads, self.sizes.d_model
        inputs = self.inputs(D + 4, 1, 1)
        out = self.run(inputs, self.neutrals[0])
        solved = torch.linalg.lstsq(inputs[2][:, 0], out[:, 0]).solution.T.double()  # (D, D)
        for start in starts:
            if not all("h" in cell.axes for cell in start.cells.values()):
                continue
            weights = start.weights(self.module, self.sizes)
            met = torch.linalg.solve(weights["output.weight"].flatten(1), solved)
            rows, own = met.reshape(H, -1), weights["value.weight"].flatten(1)
            nearest = tuple(torch.cdist(rows, own).argmin(1).tolist())
            reordered = replace(start.cells["output.weight"], heads=nearest)
            hypothesis = replace(start, cells=start.cells | {"output.weight": reordered})
            if sorted(nearest) == list(range(H)) and self._agrees(hypothesis, inputs, out):
                yield hypothesis

    def _multiplied(self, starts: list[Hypothesis]) -> Iterator[Hypothesis]:
        """The output is a multiple of the right one."""
        inputs = self.inputs(4, 1, 1)
        out = self.run(inputs, self.neutrals[0]).double()
        for start in starts:
            weights = start.weights(self.module, self.sizes)
            single = torch.einsum(
                "btm,hkm,dhk->btd", inputs[2].double(), weights["value.weight"], weights["output.weight"]
            )
            factor = float((out * single).sum() / single.square().sum())
            fault = Fault("factor", f"its output is multiplied by {factor:.4g}", (("factor", factor),), "value path")
            if self._agrees(start.faulty(fault), inputs, out):
                yield start.faulty(fault)

    def _value_faults(self, starts: list[Hypothesis], inputs: Inputs, out: Tensor) -> Iterator[Hypothesis]:
        layers: list[Norm] = [*whole_norms(self.module, self.sizes.d_model), plain_norm]
        alone = [Hypothesis({"value.weight": value}) for value in self.places]
        for fault in FAULTS:
            if fault.stage != "value path":
                continue
            around = dict(fault.changes).get("around", "")
            for norm in layers if "norm" in around else [plain_norm]:
                for start in alone if fault.code == "no_output_projection" else starts:
                    hypothesis = replace(start.faulty(fault), norm=norm)
                    if self._agrees(hypothesis, inputs, out):
                        yield hypothesis

    def _beyond_one_key(self, starts: list[Hypothesis], codes: tuple[str, ...]) -> Iterator[Hypothesis]:
        """Faults under which one key says nothing about the value path: every start goes on to the scores."""
        for fault in FAULTS:
            for start in starts:
                orders = {tuple(axis for axis in cell.axes if axis in "hk") for cell in start.cells.values()}
                if fault.code in codes and len(orders) == 1 and "h" in next(iter(orders)):
                    yield start.faulty(fault)

    # Several keys: the scores.

    def _outputs(self) -> list[Answer]:
        """What the class answers to each of its ways to say "no mask", like answers once."""
        lengths = [(7, 11), (7, 7)] if len(self.conventions.roles) > 1 else [(7, 7)]
        answers: list[Answer] = []
        failure: UserCodeError | None = None
        for T_q, T_k in lengths:
            inputs = self.inputs(2, T_q, T_k)
            for neutral in self.neutrals:
                try:
                    out = self.run(inputs, neutral)
                except UserCodeError as error:
                    failure = failure or error
                    continue
                if out.shape == inputs[0].shape and not any(torch.equal(out, answer) for _, _, answer in answers):
                    answers.append((neutral, inputs, out))
            if answers:
                if T_q == T_k and len(lengths) > 1:
                    self.unequal_lengths_failed = failure or UserCodeError(
                        "with T_q = 7 and T_k = 11 the shape is wrong"
                    )
                return answers
        assert failure is not None
        raise failure

    def _scores(self, starts: list[Hypothesis]) -> Hypothesis:
        answers = self._outputs()
        exact = [
            start.scored(*pair)
            for start in starts
            for pair in self._pairs(start)
            if bijective((*pair, *start.cells.values()))
        ]
        # Two faults of one stage are not looked for, and faults presume that the roles are stored alike.
        faults = [fault for fault in FAULTS if fault.stage == "scores" and fault.code != "causal_ignored"]
        early = [h for h in exact if has_scores_fault(h)]
        late = [h for h in exact if not has_scores_fault(h)]
        found = (
            self._first(answers, [h for h in early if stored_alike(h)] + late)
            or self._first(answers, [h for h in late if stored_alike(h)], faults)
            or self._first(answers, [h.faulty(tied(h.cells)) for h in self._tied(starts)])
            or self._two_faults(answers, [h for h in late if stored_alike(h)], faults)
        )
        if found is None:
            raise Unexplained(self.doubt)
        return found

    def _two_faults(
        self, answers: list[Answer], hypotheses: list[Hypothesis], faults: Sequence[Fault]
    ) -> Hypothesis | None:
        """Two faults of one stage that change different things."""
        for one, other in combinations(faults, 2):
            if {name for name, _ in one.changes} & {name for name, _ in other.changes}:
                continue
            found = self._first(answers, [hypothesis.faulty(one) for hypothesis in hypotheses], [other])
            if found is not None:
                return found
        return None

    def _pairs(self, start: Hypothesis) -> Iterator[tuple[Cell, Cell]]:
        """Places for query and key beside the output projection's."""
        taken = start.cells["output.weight"].parameter if "output.weight" in start.cells else ""
        places = [place for place in self.places if place.parameter != taken]
        return product(places, places)

    def _tied(self, starts: list[Hypothesis]) -> list[Hypothesis]:
        """Mappings that are no bijection."""
        scored = [start.scored(*pair) for start in starts if not has_scores_fault(start) for pair in self._pairs(start)]
        return [hypothesis for hypothesis in scored if stored_alike(hypothesis)]

    def _first(
        self,
        answers: list[Answer],
        hypotheses: list[Hypothesis],
        faults: Sequence[Fault | None] = (None,),
    ) -> Hypothesis | None:
        """The first hypothesis, under one of the faults, that reproduces an answer; causal or not."""
        for neutral, inputs, out in answers:
            for fault in faults:
                for hypothesis in hypotheses:
                    found = hypothesis.formula.causal
                    for causal in ("none", "lower_right") if found == "none" else (found,):
                        if fault is not None and causal == "none" and "causal" in fault.needs:
                            continue
                        tried = replace(hypothesis, formula=replace(hypothesis.formula, causal=causal))
                        tried = tried if fault is None else tried.faulty(fault)
                        if self._agrees(tried, inputs, out):
                            is_causal = tried.formula.causal != "none"
                            self.conventions = replace(self.conventions, neutral=neutral, causal=is_causal)
                            return tried
        return None

    # Biases.

    def _biases(self, found: Hypothesis) -> Hypothesis:
        vectors = [name for name in self.groups.shapes if self.groups.is_vector(name)]
        if not vectors:
            return found
        inside = [cell for cell in cells(self.groups, "hk") if cell.parameter in vectors]
        inside += [cell for cell in cells(self.groups, "k") if cell.parameter in vectors]
        at_output = [cell for cell in cells(self.groups, "d", (1,)) if cell.parameter in vectors]
        neutral = self.conventions.neutral
        one, several = self.inputs(4, 1, 1), self._outputs_again()
        out = self.run(one, neutral)

        def extended(start: Hypothesis, role: str, places: list[Cell]) -> Iterator[Hypothesis]:
            yield start
            for cell in places:
                if cell.parameter not in {c.parameter for c in start.cells.values() if cell.count == 1}:
                    yield replace(start, cells=start.cells | {f"{role}.bias": cell})

        for with_value in extended(found, "value", inside):
            for with_output in extended(with_value, "output", at_output if found.formula.projected else []):
                # Scores that act on a single key are judged below, query bias included.
                judged = found.formula.softmax in ("keys", "queries") and bool(out.isfinite().all())
                if judged and not self._agrees(with_output, one, out):
                    continue
                for with_query in extended(with_output, "query", inside):
                    # A faulty formula may feel the key's bias; the reference cannot.
                    for with_key in extended(with_query, "key", inside if found.faults else []):
                        if self._agrees(with_key, *several):
                            return self._ignored_biases(with_key, inside, several)
        raise Unexplained("the biases: without them the output is explained, with them it is not", certain=True)

    def _outputs_again(self) -> tuple[Inputs, Tensor]:
        T_k = 7 if len(self.conventions.roles) == 1 or self.unequal_lengths_failed else 11
        inputs = self.inputs(2, 7, T_k)
        return inputs, self.run(inputs, self.conventions.neutral)

    def _ignored_biases(self, found: Hypothesis, inside: list[Cell], several: tuple[Inputs, Tensor]) -> Hypothesis:
        """What is left is a bias that the softmax ignores, so that no output can tell: the key's, in the reference."""
        for role in ("key", "query"):
            for cell in inside:
                complete = replace(found, cells={f"{role}.bias": cell} | found.cells)
                biases = [c for name, c in complete.cells.items() if name.endswith("bias")]
                free = f"{role}.bias" not in found.cells and cell not in found.cells.values()
                if free and bijective(biases) and self._agrees(complete, *several):
                    return complete
        return found
