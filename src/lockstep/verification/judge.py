"""The question as people ask it: is this class multi-head attention, and if not, what is wrong with it?"""

import io
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.attention.contract import INPUT_ROLES
from lockstep.verification.calling import CAUSAL_ARGUMENTS, check_stated, find_call
from lockstep.verification.candidate import Candidate
from lockstep.verification.certificate import Certificate, Finding
from lockstep.verification.certification import certify
from lockstep.verification.checks import Check
from lockstep.verification.construction import (
    Sizes,
    construct,
    other_heads,
    refuse_unregistered,
    set_dropout,
    signature,
    sizes_of,
)
from lockstep.verification.foreign import importable, load_class
from lockstep.verification.formula import CORE, relative_difference
from lockstep.verification.hypotheses import AGREES, Hypothesis
from lockstep.verification.mapping import MappingSearch, Unexplained
from lockstep.verification.mask_checks import MaskFindings, find_masks
from lockstep.verification.user_code import CannotTell, UserCodeError, user_code
from lockstep.verification.weight_search import norms


def verify(
    target: str | type | nn.Module,
    arguments: Mapping[str, Any] | None = None,
    conventions: Mapping[str, Any] | None = None,
    *,
    thorough: bool = True,
) -> Certificate:
    """Decide whether a class is multi-head attention, whatever its constructor, arguments, masks and weight layout.

    It runs the class's code in this process: this is no sandbox.

    Args:
        target: ``file.py:Class``, an importable path, a class, or a module (which is changed: its weights are redrawn).
        arguments: constructor arguments that cannot be guessed, or should be other than guessed.
        conventions: what cannot be found: ``inputs`` (argument name -> query, key or value), ``layout``
            (batch_first or time_first), ``mask`` (zero_blocks, true_attends, true_blocks, additive or one_blocks),
            ``mask_shape`` (such as "b q k") and ``num_heads``.
        thorough: all situations, sizes and mutants; or only those that vary one thing, in a fraction of the time.

    Raises:
        ValueError: an option, a class or an argument that does not exist.
        InputError: the target's file or module is not there, or cannot be imported.
    """
    stated = {name: value for name, value in (conventions or {}).items() if value is not None}
    check_stated(stated)
    started = time.perf_counter()
    cls = target if isinstance(target, type) else type(target)
    name = target if isinstance(target, str) else f"{cls.__module__}.{cls.__qualname__}"
    certificate = Certificate(name, folder=str(Path.cwd()))
    random_state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the matrices are small: threads would only wait for each other
    try:
        with importable(target, forget=True) if isinstance(target, str) else nullcontext():
            _Verification(certificate, stated, thorough).run(target, arguments or {})
    except (CannotTell, UserCodeError) as error:
        certificate.verdict = "could not tell"
        certificate.findings.append(Finding(error.code, str(error), error.trace))
    finally:
        torch.set_rng_state(random_state)
        torch.set_num_threads(threads)
    certificate.seconds = time.perf_counter() - started
    return certificate


def assert_multi_head_attention(
    target: str | type | nn.Module,
    arguments: Mapping[str, Any] | None = None,
    conventions: Mapping[str, Any] | None = None,
    *,
    thorough: bool = True,
) -> None:
    """:func:`verify` as one line of a test suite.

    Raises:
        AssertionError: the class was not found equivalent; its message is the certificate.
    """
    certificate = verify(target, arguments, conventions, thorough=thorough)
    if certificate.verdict != "equivalent":
        raise AssertionError("\n" + certificate.table())


@dataclass
class _Verification:
    """One run, stage by stage."""

    certificate: Certificate
    stated: Mapping[str, Any]
    thorough: bool
    frozen: list[str] = field(default_factory=list)
    initial: dict[str, Tensor] = field(default_factory=dict)
    others: list[Sizes] = field(default_factory=list)

    def run(self, target: str | type | nn.Module, arguments: Mapping[str, Any]) -> None:
        c = self.certificate
        with user_code("importing it") as printed:
            loaded = load_class(target) if isinstance(target, str) else target
        heads = self.stated.get("num_heads")
        if isinstance(loaded, nn.Module):
            module, sizes = loaded, sizes_of(loaded, heads)
        else:
            (module, c.arguments, sizes), printed = self._constructed(loaded, arguments, heads)
            if heads is None and "'num_heads'" not in str(c.arguments):
                self.others = other_heads(sizes)
            c.remarks += [
                f"only {name}={c.arguments.get(name, parameter.default)} was verified; see arguments.{name}"
                for name, parameter in signature(loaded, "__init__").items()
                if name.lower() in CAUSAL_ARGUMENTS
            ]
        if printed.getvalue():
            c.remarks.append("it prints while it is constructed")
        refuse_unregistered(module)
        module = module.to("cpu").eval()
        lazy = any(nn.parameter.is_lazy(parameter) for parameter in module.parameters())
        try:
            found, search = self._understand(module.double(), sizes, lazy)
        except UserCodeError:  # it may be that it computes in single precision alone
            try:
                found, search = self._understand(module.float(), sizes, lazy)
                c.precision = "float32 only"
            except UserCodeError:
                found, search = self._understand(module.double(), sizes, lazy)
        if found is None:
            return
        c.mapping = found.layouts()
        self._judge_mapping(search, found)
        cls = loaded if isinstance(loaded, type) else None
        if self.frozen and cls is not None:
            self._add(
                "frozen", f"its constructor freezes {', '.join(self.frozen)}: it computes the same and never learns it"
            )
        elif self.frozen:
            c.remarks.append(f"{', '.join(self.frozen)} came frozen, and was judged as if it learnt")
        unequal = search.unequal_lengths_failed is None
        candidate = Candidate(module, search.sizes, search.conventions, c.mapping)
        masks = self._masks(candidate, found, unequal)
        c.conventions = candidate.conventions
        if self._bijection(candidate, found):
            reach = {"unequal": unequal, "biases": masks.biases, "thorough": self.thorough}
            certify(c, candidate, cls, self.initial, **reach)
        if c.findings and {finding.code for finding in c.findings} <= CORE:
            beside = ", ".join(fault.sentence for fault in found.faults)
            c.findings.append(Finding("core_equivalent", f"the attention core is the reference; beside it, {beside}"))
        if masks.undecided and not c.findings:
            c.verdict = "could not tell"
            c.findings.append(Finding("mask_inverted", masks.undecided))

    def _constructed(
        self, cls: type, arguments: Mapping[str, Any], heads: int | None
    ) -> tuple[tuple[nn.Module, dict[str, Any], Sizes], io.StringIO]:
        """The class at the sizes that are stated, or at ours; where it refuses these, with other numbers of heads."""
        refused: list[UserCodeError] = []
        for number in (heads, 1, 8) if heads is None else (heads,):
            try:
                with user_code("constructing it") as printed:
                    return construct(cls, arguments, number), printed
            except UserCodeError as error:
                refused.append(error)
        raise refused[0]

    def _understand(self, module: nn.Module, sizes: Sizes, lazy: bool) -> tuple[Hypothesis | None, MappingSearch]:
        """How it is called, and which parameter plays which role; None where it is found to differ before."""
        c = self.certificate
        if lazy:
            find_call(module, sizes, self.stated)  # its first call makes the parameters
        self.frozen = [
            name for name, parameter in module.named_parameters() if not parameter.requires_grad
        ] or self.frozen
        module.requires_grad_(True)
        self.initial = self.initial or {name: p.detach().clone().double() for name, p in module.named_parameters()}
        set_dropout(module, 0.0)
        _draw_everything(module)
        c.conventions, neutrals = find_call(module, sizes, self.stated)
        c.remarks = [remark for remark in c.remarks if "was given None" not in remark]
        c.remarks += [f"{name!r} was given None: what it does was not verified" for name in c.conventions.none]
        search = MappingSearch(module, sizes, c.conventions, neutrals)
        if self._answers_otherwise(search):
            return None, search
        try:
            return search.search(), search
        except Unexplained as error:
            for other in self.others:
                again = MappingSearch(module, other, c.conventions, neutrals)
                with suppress(Unexplained):
                    found, search = again.search(), again
                    c.remarks.append(f"it has {other.num_heads} head{'s'[: other.num_heads - 1]}: found by trying")
                    return found, search
            if error.certain:
                c.differs("unknown", f"unknown difference, first seen in {error}")
                return None, search
            refuted = search.refuted(error)
            if refuted is None:
                raise CannotTell(
                    f"unknown difference, first seen in {error}; it does nothing that multi-head attention never does"
                ) from None
            c.differs(*refuted)
            return None, search
        finally:
            c.conventions = search.conventions

    def _answers_otherwise(self, search: MappingSearch) -> bool:
        """Whether the same call is answered differently, which leaves nothing else to be asked."""
        inputs = search.inputs(2, 7, 7)
        before = [x.clone() for x in inputs]

        def answer(seed: int, gradients: bool = False) -> Tensor:
            torch.manual_seed(seed)
            return search.run(inputs, search.neutrals[0], gradients).detach().nan_to_num()

        first, again = answer(0), answer(1)
        if torch.equal(first, again) and relative_difference(answer(0, gradients=True), first) <= AGREES:
            return False
        if not all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True)):
            code, sentence = "changes_inputs", "it writes into its inputs: called twice, it answers differently"
        elif torch.equal(first, again):
            code, sentence = "in_context", "it answers otherwise without gradients (no_grad) than with"
        elif torch.equal(first, answer(0)):
            code, sentence = "dropout_in_eval", "dropout stays active in eval: called twice, it answers differently"
        else:
            code, sentence = "keeps_state", "something is carried over from call to call: it answers differently"
        self.certificate.differs(code, sentence)
        return True

    def _judge_mapping(self, search: MappingSearch, found: Hypothesis) -> None:
        c = self.certificate
        for fault in found.faults:
            self._add(fault.code, fault.sentence)
            if fault.code.startswith(("no_scale", "scale")):
                c.remarks.append(
                    "a rescaled query weight would absorb the scale; at the same weights the functions differ"
                )
        single = [role for role, cell in found.cells.items() if "h" not in cell.axes and cell.axes != "d"]
        if single:
            roles = ", ".join(name.split(".")[0] for name in single if name.endswith("weight"))
            averaged = any(fault.code == "heads_averaged" for fault in found.faults)
            if not (averaged and roles == "output"):
                self._add("heads_share_weights", f"all heads share one projection ({roles})")
        sliced = [name.split(".")[0] for name, cell in found.cells.items() if cell.sliced]
        if sliced:
            self._add("input_sliced", f"each head is projected from its own slice of the input ({', '.join(sliced)})")
        if search.unequal_lengths_failed and "query_key_swapped" not in {f.code for f in found.faults}:
            error = search.unequal_lengths_failed
            self._add("unequal_lengths", f"it works only where T_q = T_k ({error})", error.trace)
        if "output.weight" in found.cells and found.cells["output.weight"].heads:
            c.remarks.append("heads come in another order at the output projection: a layout, no difference")
        for role, cell in found.cells.items():
            named = {r for r in ("query", "key", "value") if r in cell.parameter or f"{r[0]}_proj" in cell.parameter}
            if len(named) == 1 and cell.count == 1 and role.split(".")[0] not in named and role.endswith("weight"):
                c.remarks.append(f"{cell.parameter} acts as {role.split('.')[0]}: a layout, no difference")
        if search.prints:
            c.remarks.append("it prints while it is called")
        if {"query.bias", "value.bias"} <= set(found.cells) and "key.bias" not in found.cells and not found.faults:
            c.remarks.append("it has no key bias: the softmax would ignore one")

    def _add(self, code: str, sentence: str, trace: str = "") -> None:
        self.certificate.differs(code, f"equals the reference except that {sentence}", trace)

    def _masks(self, candidate: Candidate, found: Hypothesis, unequal: bool) -> MaskFindings:
        """Find the forms of masks."""
        if found.formula.softmax != "keys":
            return MaskFindings()  # nothing that a mask does to such weights has a name
        cross = "key" in candidate.conventions.roles and unequal
        try:
            masks = find_masks(candidate, found, self.stated.get("mask"), self.stated.get("mask_shape"), cross)
        except CannotTell:
            if self.certificate.findings:
                return MaskFindings()
            raise
        self.certificate.remarks += masks.remarks
        self.certificate.checks += masks.checks
        for fault in masks.faults:
            self._add(fault.code, fault.sentence)
        candidate.conventions = replace(
            candidate.conventions,
            masks=tuple(masks.forms),
            self_masks=tuple(masks.self_forms),
            causal_argument=masks.causal_argument,
            zeroes_hidden=masks.zeroes_hidden,
        )
        return masks

    def _bijection(self, candidate: Candidate, found: Hypothesis) -> bool:
        """Whether the mapping covers every parameter once and a round trip is exact; adds the check."""
        c = self.certificate
        own = {name: p.detach() for name, p in candidate.module.named_parameters()}
        layers = norms(candidate.module) if "norm" in found.formula.around else {}
        of_norms = {f"{name}.{p}" for name, layer in layers.items() for p, _ in layer.named_parameters()}
        complete = {f"{role}.weight" for role in (*INPUT_ROLES, "output")} <= {
            f"{role}.{layout.kind}" for layout in c.mapping for role in layout.roles
        }
        headless = any("h" not in layout.axes and layout.axes != "d" for layout in c.mapping)
        if not complete or headless or {"tied_weights", "input_sliced"} & {finding.code for finding in c.findings}:
            return False
        back = candidate.stored(candidate.canonical(own))
        unused = sorted(set(own) - set(back) - of_norms)
        if unused:
            self._add("unused_parameters", f"these parameters play no role in it: {', '.join(unused)}")
        wrong = len(unused) + sum(not torch.equal(back[name], own[name]) for name in back)
        c.checks.insert(0, Check("parameters: a bijection, exact there and back", float(wrong), 0.0, numerical=False))
        return not unused


def _draw_everything(module: nn.Module) -> None:
    """Ordinary values everywhere, for the questions asked before any parameter is understood."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
