"""What checks are made of: something that attends.

Shapes: B batch, T_q and T_k query and key length, D = d_model, H = num_heads.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from lockstep.attention.layout import Layout
from lockstep.verification.construction import Sizes, WithoutDropout, signature
from lockstep.verification.conventions import NUMBERS, Conventions
from lockstep.verification.drawing import Inputs, draw, laid, zeroed
from lockstep.verification.formula import Formula, evaluate
from lockstep.verification.situations import Situation
from lockstep.verification.user_code import UserCodeError, user_code

Twist = Callable[[nn.Module, Inputs, Tensor], Tensor]


class Candidate:
    """A module under test: the user's, or a mutant of the reference.

    Args:
        module: in eval mode.
        conventions: how it is called, and so what it can be asked.
        mapping: where it keeps the canonical weights.
    """

    def __init__(self, module: nn.Module, sizes: Sizes, conventions: Conventions, mapping: Sequence[Layout]) -> None:
        self.module, self.sizes, self.conventions, self.mapping = module, sizes, conventions, mapping
        self.dtype = next(module.parameters()).dtype
        parameters = (
            signature(type(module), "forward").values() if type(module).forward is not nn.Module.forward else ()
        )
        self._positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        self.written: set[str] = set()
        self._drops_nothing = False

    def call(self, inputs: Inputs, situation: Situation) -> Tensor:
        """The output (B, T_q, D).

        What it writes into, of what it is given and of its parameters, is added to ``written``.

        Raises:
            UserCodeError: the class raised, or answered with something else.
        """
        masks = list(zip(situation.forms, inputs.masks, strict=True))
        asked = (self.sizes.num_heads, inputs.query, inputs.key, inputs.value, masks, situation.is_causal)
        arguments = {**self.conventions.arguments(*asked), **dict(situation.options)}
        for form in situation.forms:
            mask = laid(arguments[form.argument], situation.storage)
            arguments[form.argument] = mask.long() if situation.integers and form.meaning in NUMBERS else mask
        arguments = {name: given for name, given in arguments.items() if name not in situation.omitted}
        tensors = {name: x for name, x in arguments.items() if isinstance(x, Tensor)}
        tensors |= dict(self.module.named_parameters())
        # Whatever is written into a tensor counts its version up; an inference tensor has none.
        versions = {name: x._version for name, x in tensors.items() if not x.is_inference()}
        # As most people call it: hooks see what is given by position alone.
        given = [arguments.pop(name) for name in itertools.takewhile(arguments.__contains__, self._positional)]
        with user_code("calling it"), WithoutDropout() if self._drops_nothing else nullcontext():
            out = self.conventions.output_of(self.module(*given, **arguments))
        if not isinstance(out, Tensor) or out.shape != inputs.query.shape:
            got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise UserCodeError(f"calling it gave {got} for {tuple(inputs.query.shape)}")
        self.written |= {name for name, version in versions.items() if tensors[name]._version != version}
        return out

    @contextmanager
    def context(self, situation: Situation) -> Iterator[torch.dtype]:
        """Mode, gradients and precision as the situation says, and nothing dropped; gives the dtype of the inputs."""
        module, required = self.module, [p.requires_grad for p in self.module.parameters()]
        named = {"full": self.dtype, "bfloat16": torch.bfloat16, "float16": torch.float16}
        dtype = named.get(situation.precision, torch.float32)
        before = [parameter.data for parameter in module.parameters()]
        buffers = [(part, dict(part._buffers)) for part in module.modules()]
        self.written.clear()
        self._drops_nothing = situation.mode != "eval"
        try:
            module.train(situation.mode == "training")
            module.training = situation.mode != "eval"
            module.requires_grad_(situation.gradients != "inputs")
            if dtype != self.dtype:
                module.to(dtype)
            with ExitStack() as stack:
                stack.enter_context(torch.set_grad_enabled(situation.learns))
                stack.enter_context(torch.inference_mode(situation.gradients == "inference"))
                stack.enter_context(torch.autocast("cpu", torch.bfloat16, situation.precision == "autocast"))
                yield dtype
        finally:
            self._drops_nothing = False
            module.eval()
            if dtype != self.dtype:
                for part, own in buffers:
                    part._buffers.update(own)
            for parameter, data, learns in zip(module.parameters(), before, required, strict=True):
                parameter.data, parameter.grad = data, None
                parameter.requires_grad_(learns)

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors by parameter name -> canonical tensors."""
        read: dict[str, Tensor] = {}
        for layout in self.mapping:
            read |= layout.read(tensors, self.sizes.num_heads, self.sizes.head_dim)
        return read

    def stored(self, canonical: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of :meth:`canonical`."""
        H, K = self.sizes.num_heads, self.sizes.head_dim
        return {name: x for layout in self.mapping for name, x in layout.write(canonical, H, K).items()}

    def weights(self) -> dict[str, Tensor]:
        return self.canonical({name: p.detach().clone() for name, p in self.module.named_parameters()})

    def draw(self, situation: Situation, seed: int = 0, dtype: torch.dtype | None = None) -> Inputs:
        """Inputs for a situation, of a dtype."""
        dtype = dtype or self.dtype
        return draw(situation, self.conventions.roles, self.sizes, seed, dtype)(dtype)

    def expected(self, weights: Mapping[str, Tensor], inputs: Inputs, situation: Situation) -> tuple[Tensor, Tensor]:
        """The reference's output, and which rows are judged."""
        causal = self.conventions.causal or situation.is_causal
        formula = Formula(causal="lower_right" if causal else "none")
        out, rows = evaluate(formula, weights, inputs.query, inputs.key, inputs.value, inputs.visible)
        return out, rows & ~zeroed(inputs) if self.conventions.zeroes_hidden else rows


class Mutant(Candidate):
    """The reference with a fault, on the weights and under the conventions of another candidate.

    Args:
        formula: with its fault.
        twist: what becomes of its output, from what it was called with.
    """

    def __init__(self, of: Candidate, formula: Formula, twist: Twist = lambda module, inputs, out: out) -> None:
        module = nn.Module()
        mapping = []
        for name, tensor in of.weights().items():
            module.register_parameter(name.replace(".", "_"), nn.Parameter(tensor))
            role = name.split(".")[0]
            axes = {2: "h k", 1: "d", 3: "d h k" if role == "output" else "h k d"}[tensor.dim()]
            mapping.append(Layout(name.replace(".", "_"), axes, (role,)))
        super().__init__(module.eval(), of.sizes, of.conventions, mapping)
        self.formula, self.twist = formula, twist

    def call(self, inputs: Inputs, situation: Situation) -> Tensor:
        asked = self.conventions.causal or situation.is_causal
        formula = self.formula if asked else replace(self.formula, causal="none")
        if not formula.fits(inputs.query.size(1), inputs.key.size(1)):
            raise UserCodeError("the lengths do not fit")
        weights = self.canonical(dict(self.module.named_parameters()))
        out, _ = evaluate(formula, weights, inputs.query, inputs.key, inputs.value, inputs.visible)
        return self.twist(self.module, inputs, out)


class Spoiled(Candidate):
    """A candidate with one weight changed by 1% unknown to the checks, and noise on its output."""

    def __init__(self, of: Candidate) -> None:
        super().__init__(of.module, of.sizes, of.conventions, of.mapping)
        self.believed = of.weights()

    def __enter__(self) -> "Spoiled":
        self._place(1.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._place(1.0)

    def _place(self, factor: float) -> None:
        spoilt = dict(self.believed)
        value = spoilt["value.weight"] = spoilt["value.weight"].clone(memory_format=torch.contiguous_format)
        value.view(-1)[value.abs().argmax()] *= factor
        parameters = dict(self.module.named_parameters())
        with torch.no_grad():
            for name, tensor in self.stored(spoilt).items():
                parameters[name].copy_(tensor)

    def weights(self) -> dict[str, Tensor]:
        dtype = next(self.module.parameters()).dtype
        return {name: tensor.to(dtype, copy=True) for name, tensor in self.believed.items()}

    def call(self, inputs: Inputs, situation: Situation) -> Tensor:
        out = super().call(inputs, situation)
        return out + 1e-3 * torch.randn_like(out)
