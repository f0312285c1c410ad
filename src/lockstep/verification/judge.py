"""The question as people ask it: is this class multi-head attention, and if not, what is wrong with it?"""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.attention.contract import INPUT_ROLES
from lockstep.verification.calling import CAUSAL_ARGUMENTS, check_stated, find_call, flags
from lockstep.verification.candidate import SELF_ATTENTION, Candidate, Situation, situations
from lockstep.verification.certificate import Certificate, Finding
from lockstep.verification.checks import FLOAT32, Check, judged_checks
from lockstep.verification.construction import construct, refuse_unregistered, set_dropout, signature, sizes_of
from lockstep.verification.foreign import importable, load_class, resolve
from lockstep.verification.formula import CORE
from lockstep.verification.hypotheses import Hypothesis
from lockstep.verification.mapping import MappingSearch, Unexplained
from lockstep.verification.mask_checks import find_masks
from lockstep.verification.mutants import blunt_checks, mutants
from lockstep.verification.reported_weights import reported
from lockstep.verification.user_code import CannotTell, UserCodeError, user_code
from lockstep.verification.weight_search import norms


def verify(
    target: str | type | nn.Module,
    arguments: Mapping[str, Any] | None = None,
    conventions: Mapping[str, Any] | None = None,
) -> Certificate:
    """Decide whether a class is multi-head attention, whatever its constructor, arguments, masks and weight layout.

    It runs the class's code in this process: this is no sandbox.

    Args:
        target: ``file.py:Class``, an importable path, a class, or a module (which is changed: its weights are redrawn).
        arguments: constructor arguments that cannot be guessed, or should be other than guessed.
        conventions: what cannot be found: ``inputs`` (argument name -> query, key or value), ``layout``
            (batch_first or time_first), ``mask`` (zero_blocks, true_attends, true_blocks, additive or one_blocks),
            ``mask_shape`` (such as "b q k") and ``num_heads``.

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
            _Verification(certificate, stated).run(target, arguments or {})
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
) -> None:
    """:func:`verify` as one line of a test suite.

    Raises:
        AssertionError: the class was not found equivalent; its message is the certificate.
    """
    certificate = verify(target, arguments, conventions)
    if certificate.verdict != "equivalent":
        raise AssertionError("\n" + certificate.table())


@dataclass
class _Verification:
    """One run, stage by stage."""

    certificate: Certificate
    stated: Mapping[str, Any]

    def run(self, target: str | type | nn.Module, arguments: Mapping[str, Any]) -> None:
        c = self.certificate
        with user_code("importing it") as printed:
            loaded = load_class(target) if isinstance(target, str) else target
        heads = self.stated.get("num_heads")
        if isinstance(loaded, nn.Module):
            module, sizes = loaded, sizes_of(loaded, heads)
        else:
            with user_code("constructing it") as printed:
                module, c.arguments, sizes = construct(loaded, arguments, heads)
            c.remarks += [
                f"only {name}={c.arguments.get(name, parameter.default)} was verified; see arguments.{name}"
                for name, parameter in signature(loaded, "__init__").items()
                if name.lower() in CAUSAL_ARGUMENTS
            ]
        if printed.getvalue():
            c.remarks.append("it prints while it is constructed")
        refuse_unregistered(module)
        module = module.to("cpu", torch.float64).eval()
        if any(nn.parameter.is_lazy(parameter) for parameter in module.parameters()):
            find_call(module, sizes, self.stated)  # its first call makes the parameters
        frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
        module.requires_grad_(True)
        initial = {name: p.detach().clone() for name, p in module.named_parameters()}
        set_dropout(module, 0.0)
        _draw_everything(module)
        c.conventions, neutrals = find_call(module, sizes, self.stated)
        c.remarks += [f"{name!r} was given None: what it does was not verified" for name in c.conventions.none]
        search = MappingSearch(module, sizes, c.conventions, neutrals)
        if self._answers_otherwise(search):
            return
        try:
            found = search.search()
        except Unexplained as error:
            c.differs("unknown", f"unknown difference, first seen in {error}")
            return
        finally:
            c.conventions = search.conventions
        c.mapping = found.layouts()
        self._judge_mapping(search, found)
        if frozen and isinstance(loaded, type):
            self._add(
                "frozen", f"its constructor freezes {', '.join(frozen)}: it computes the same and never learns it"
            )
        elif frozen:
            c.remarks.append(f"{', '.join(frozen)} came frozen, and was judged as if it learnt")
        equal_lengths = search.unequal_lengths_failed is not None
        candidate = Candidate(module, sizes, search.conventions, c.mapping)
        undecided = self._masks(candidate, found, equal_lengths)
        c.conventions = candidate.conventions
        if self._bijection(candidate, found):
            asked = situations(candidate.conventions, not equal_lengths, flags(module))
            dropping = self._dropping(loaded, candidate)
            asked = [situation for situation in asked if self._answered(candidate, situation)]
            self._certify(candidate, asked, initial, dropping)
        if c.findings and {finding.code for finding in c.findings} <= CORE:
            beside = ", ".join(fault.sentence for fault in found.faults)
            c.findings.append(Finding("core_equivalent", f"the attention core is the reference; beside it, {beside}"))
        if undecided and not c.findings:
            c.verdict = "could not tell"
            c.findings.append(Finding("mask_inverted", undecided))

    def _answers_otherwise(self, search: MappingSearch) -> bool:
        """Whether the same call is answered differently, which leaves nothing else to be asked."""
        inputs = search.inputs(2, 7, 7)
        before = [x.clone() for x in inputs]

        def differ(seeds: tuple[int, int]) -> bool:
            answers = []
            for seed in seeds:
                torch.manual_seed(seed)
                answers.append(search.run(inputs, search.neutrals[0]))
            return bool((answers[0] - answers[1]).nan_to_num().any())

        if not differ((0, 1)):
            return False
        if not all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True)):
            code, sentence = "changes_inputs", "it writes into its inputs"
        elif differ((0, 0)):
            code, sentence = "keeps_state", "something is carried over from call to call"
        else:
            code, sentence = "dropout_in_eval", "dropout stays active in eval"
        self.certificate.differs(code, f"{sentence}: called twice, it answers differently")
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

    def _masks(self, candidate: Candidate, found: Hypothesis, equal_lengths: bool) -> str | None:
        """Find the forms of masks; returns what cannot be decided about them."""
        if found.formula.softmax != "keys":
            return None  # nothing that a mask does to such weights has a name
        cross = "key" in candidate.conventions.roles and not equal_lengths
        try:
            masks = find_masks(candidate, found, self.stated.get("mask"), self.stated.get("mask_shape"), cross)
        except CannotTell:
            if self.certificate.findings:
                return None
            raise
        self.certificate.remarks += masks.remarks
        self.certificate.checks += masks.checks
        for fault in masks.faults:
            self._add(fault.code, fault.sentence)
        candidate.conventions = replace(
            candidate.conventions, masks=tuple(masks.forms), causal_argument=masks.causal_argument
        )
        return masks.undecided

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

    def _answered(self, candidate: Candidate, situation: Situation) -> bool:
        """Whether it may be judged: what it may refuse is tried first."""
        if situation.refusable:
            try:
                candidate.call(candidate.draw(situation), situation)
            except UserCodeError as error:
                self.certificate.remarks.append(f"it refuses {situation.name}: {error}")
                return False
        return True

    def _dropping(self, loaded: type | nn.Module, candidate: Candidate) -> Check:
        """Whether dropout is inactive in eval: the layers told to drop, and the class constructed anew to do so."""
        situation, figure = SELF_ATTENTION, 0.0
        inputs, arguments = candidate.draw(situation), self.certificate.arguments
        dropping = [candidate]
        if isinstance(loaded, type) and "'dropout'" in str(arguments):
            with user_code("constructing it with a dropout of 0.5"):
                anew = loaded(**resolve(arguments, candidate.sizes.values(dropout=0.5))).to(torch.float64).eval()
            dropping.append(Candidate(anew, candidate.sizes, candidate.conventions, candidate.mapping))
        with torch.no_grad():
            without = candidate.call(inputs, situation)
            found = set_dropout(candidate.module, 0.5)
            try:
                for each in dropping:
                    if each is not candidate:
                        each.call(inputs, situation)  # where parameters are made by the first call
                        each.module.load_state_dict(candidate.module.state_dict(), strict=False)
                    figure = max(figure, float((each.call(inputs, situation) - without).abs().max()))
            finally:
                set_dropout(candidate.module, 0.0)
        if figure:
            self.certificate.differs("dropout_in_eval", "dropout stays active in eval: at 0.5 the answer is another")
        note = "" if found or len(dropping) > 1 else "it has none"
        return Check("dropout of 0.5 is inactive in eval", figure, 0.0, numerical=False, note=note)

    def _certify(
        self, candidate: Candidate, asked: list[Situation], initial: dict[str, Tensor], dropping: Check
    ) -> None:
        c = self.certificate
        c.checks += [*judged_checks(candidate, asked), dropping]
        if c.findings:
            return
        failed = [check for check in c.checks if not check.passed]
        if failed:
            seen = ", ".join(str(said) for said in (failed[0].figure, failed[0].note) if said)
            code, what = "unknown", "unknown difference"
            outputs = [check for check in failed if not check.what.startswith("gradients")]
            rounded = [c for c in outputs if isinstance(c.figure, float) and c.figure <= FLOAT32]
            if outputs and rounded == outputs:
                code, what = "single_precision", "right to single precision only: it rounds, or adds a small constant"
            c.differs(code, f"{what}, first seen in: {failed[0].what} ({seen})")
            return
        c.mutants = dict(mutants(candidate, asked))
        survivors = [name for name, outcome in c.mutants.items() if outcome == "NOT CAUGHT"]
        blunt = blunt_checks(candidate, asked)
        if survivors or blunt:
            c.findings.append(Finding("void", f"the checks have no teeth here: {'; '.join([*survivors, *blunt])}"))
            return
        c.remarks.append("spoiled (one weight by 1%, noise on the output), it fails every numerical check")
        c.checks += reported(candidate, candidate.canonical(initial))
        c.verdict = "equivalent"


def _draw_everything(module: nn.Module) -> None:
    """Ordinary values everywhere, for the questions asked before any parameter is understood."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
