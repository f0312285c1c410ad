"""An attention is tried before a model is made of it, and what it breaks is said."""

import contextlib
import random

import pytest
import torch
from certificates import certificate_of
from conftest import LISTED, TINY, compose, make_variant
from torch import nn

from lockstep.attention.fused import FusedAttention
from lockstep.attention.shared_heads import SharedHeadsAttention
from lockstep.base.errors import ConfigurationError
from lockstep.commands.train import train
from lockstep.verification.adapter import ForeignAttention
from lockstep.verification.trial import ContractError, try_out


class ReturnsTuple(FusedAttention):
    def forward(self, *inputs, **options):
        return super().forward(*inputs, **options), None


class ReturnsHeads(FusedAttention):
    def forward(self, *inputs, **options):
        return super().forward(*inputs, **options).unflatten(2, (self.num_heads, -1))


class NoMask(FusedAttention):
    def forward(self, query, key, value):
        return super().forward(query, key, value)


class MaskOfPairs(FusedAttention):
    def forward(self, query, key, value, mask=None, is_causal=False):
        if mask is not None and mask.size(2) != query.size(1):
            raise RuntimeError("mask is (B, T_q, T_k)")
        return super().forward(query, key, value, mask, is_causal)


class NotCausal(FusedAttention):
    def forward(self, query, key, value, mask=None, is_causal=False):
        assert not is_causal
        return super().forward(query, key, value, mask)


class IgnoresMask(FusedAttention):
    def forward(self, query, key, value, mask=None, is_causal=False):
        return super().forward(query, key, value, None, is_causal)


class InvertsMask(FusedAttention):
    def forward(self, query, key, value, mask=None, is_causal=False):
        return super().forward(query, key, value, mask if mask is None else ~mask, is_causal)


class IgnoresCausality(FusedAttention):
    def forward(self, query, key, value, mask=None, is_causal=False):
        return super().forward(query, key, value, mask)


class AveragesWeights(FusedAttention):
    def attention_weights(self, *inputs, **options):
        return super().attention_weights(*inputs, **options).mean(1)


class HasNoWeights(FusedAttention):
    attention_weights = None


class Gated(FusedAttention):
    canonical = False

    def __init__(self, d_model, num_heads, **options):
        super().__init__(d_model, num_heads, **options)
        self.gate = self.kept(nn.Linear(d_model, d_model))

    def kept(self, layer):
        return [layer]

    def forward(self, *inputs, **options):
        (gate,) = self.gate.values() if isinstance(self.gate, dict) else self.gate
        return gate(super().forward(*inputs, **options))


class InDict(Gated):
    def kept(self, layer):
        return {"gate": layer}


class InModuleList(Gated):
    def kept(self, layer):
        return nn.ModuleList([layer])


class SaysCanonical(InModuleList):
    canonical = True


class PlainTensor(FusedAttention):
    def __init__(self, d_model, num_heads, **options):
        super().__init__(d_model, num_heads, **options)
        self.scale = torch.zeros(d_model, requires_grad=True)

    def forward(self, *inputs, **options):
        return super().forward(*inputs, **options) * self.scale


class RandomConstant(FusedAttention):
    def __init__(self, d_model, num_heads, **options):
        super().__init__(d_model, num_heads, **options)
        self.scale = torch.randn(d_model)

    def forward(self, *inputs, **options):
        return super().forward(*inputs, **options) * self.scale


class RandomBuffer(RandomConstant):
    def __init__(self, d_model, num_heads, **options):
        super().__init__(d_model, num_heads, **options)
        del self.scale
        self.register_buffer("scale", torch.randn(d_model))


class WrongNames(FusedAttention):
    def to_canonical(self, tensors):
        return dict(tensors)


class FailsInConstructor(FusedAttention):
    def __init__(self, *sizes, **options):
        raise KeyError("no such luck")


class FrozenKey(FusedAttention):
    def __init__(self, d_model, num_heads, **options):
        super().__init__(d_model, num_heads, **options)
        self.key.requires_grad_(False)


class Changed(FusedAttention):
    """Its answer is what a test makes of the right one."""

    make = staticmethod(lambda query, mask, out: out)

    def forward(self, query, key, value, mask=None, is_causal=False):
        return self.make(query, mask, super().forward(query, key, value, mask, is_causal))


def in_place(query, mask, out):
    query.data.mul_(2)
    return out


def mask_in_place(query, mask, out):
    if mask is not None:
        mask[..., 0] = False
    return out


def switches_gradients_off(query, mask, out):
    torch.set_grad_enabled(False)
    return out


def seeds(query, mask, out):
    torch.manual_seed(0)
    return out


def of_five_tokens(query, mask, out):
    return out + torch.zeros(5, 1)


class OnMeta(FusedAttention):
    def __init__(self, d_model, num_heads, **options):
        super().__init__(d_model, num_heads, **options)
        self.extra = nn.Parameter(torch.empty(3, device="meta"))


class IsLazy(FusedAttention):
    canonical = False

    def __init__(self, d_model, num_heads, **options):
        super().__init__(d_model, num_heads, **options)
        self.extra = nn.LazyLinear(d_model)


@pytest.mark.parametrize(
    ("make", "breach"),
    [
        (lambda query, mask, out: out.double(), "returns torch.float64 on cpu of torch.float32"),
        (lambda query, mask, out: out.detach(), "no gradient goes back to its values"),
        (switches_gradients_off, "no gradient goes back to its values"),
        (in_place, "changes its inputs in place"),
        (mask_in_place, "changes its inputs in place"),
        (seeds, "forward seeds torch's generator"),
        (of_five_tokens, r"of one token it returns a tensor of shape \(2, 5, 24\), not one of shape \(2, 1, 24\)"),
    ],
)
def test_what_forward_does_beside_its_answer_is_said(make, breach):
    cls = type("Breach", (Changed,), {"make": staticmethod(make)})
    with pytest.raises(ContractError, match=breach):
        try_out(lambda: cls(24, 3))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("cls", [OnMeta, IsLazy])
def test_weights_that_are_not_there_yet_are_refused(cls):
    with pytest.raises(ContractError, match="weights that are no real numbers yet"):
        try_out(lambda: cls(24, 3))


@pytest.mark.parametrize("name", LISTED)
def test_every_listed_variant_serves(name):
    for options in ({}, {"bias": False, "dropout": 0.3}):
        try_out(lambda options=options: make_variant(name)(24, 3, **options))


@pytest.mark.parametrize("cls", [InModuleList, RandomBuffer, FrozenKey, SharedHeadsAttention])
def test_other_ideas_serve(cls):
    try_out(lambda: cls(24, 3))


@pytest.mark.parametrize(
    ("cls", "breach"),
    [
        (ReturnsTuple, r"under a padding mask .* it returns a tuple, not one of shape \(2, 5, 24\)"),
        (ReturnsHeads, r"it returns a tensor of shape \(2, 5, 3, 8\)"),
        (NoMask, r"under a padding mask \(B, 1, 1, T_k\) it fails: TypeError"),
        (MaskOfPairs, r"under a padding mask .*test_trial.py, line \d+: RuntimeError: mask is"),
        (NotCausal, r"with is_causal=True it fails: .*test_trial.py, line \d+: AssertionError"),
        (
            IgnoresMask,
            r"under a padding mask .* depends on keys that are hidden: it ignores its mask, .* or inverts it",
        ),
        (InvertsMask, r"under a padding mask .* depends on keys that are hidden"),
        (IgnoresCausality, "with is_causal=True its answer depends on keys that are hidden: it ignores is_causal"),
        (AveragesWeights, r"attention_weights, for pictures, are shape \(2, 5, 5\), not of .* \(2, 3, 5, 5\)"),
        (HasNoWeights, "attention_weights, for pictures, fail: TypeError"),
        (Gated, r"weight of shape \(24, 24\) which is none of its parameters"),
        (InDict, r"weight of shape \(24, 24\) which is none of its parameters"),
        (PlainTensor, r"weight of shape \(24,\) which is none of its parameters"),
        (RandomConstant, "given the same state_dict, it answers otherwise"),
        (SaysCanonical, r"gate.0.weight does not come back .* says canonical = False"),
        (WrongNames, r"to_canonical gives no query.weight of shape \(3, 8, 24\)"),
        (FailsInConstructor, r"it fails: .*test_trial.py, line \d+: KeyError: 'no such luck'"),
    ],
)
def test_what_breaks_the_contract_is_said(cls, breach):
    with pytest.raises(ContractError, match=breach):
        try_out(lambda: cls(24, 3))


def test_a_verified_class_without_masks_cannot_serve():
    certificate = certificate_of("interleaved.py:InterleavedAttention")
    saved = {
        "target": certificate.target,
        "arguments": certificate.arguments,
        "conventions": {**certificate.as_dict()["conventions"], "masks": []},
        "mapping": certificate.as_dict()["mapping"],
    }
    with pytest.raises(
        ContractError, match=r"under a padding mask .*interleaved.py:InterleavedAttention takes no mask"
    ):
        try_out(lambda: ForeignAttention(24, 3, **saved))


@pytest.mark.parametrize(
    ("cls", "ends"), [(FusedAttention, contextlib.nullcontext()), (NoMask, pytest.raises(ContractError))]
)
def test_no_generator_is_moved(cls, ends):
    before = torch.get_rng_state(), random.getstate()
    with ends:
        try_out(lambda: cls(24, 3, dropout=0.5))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_training_refuses_it_before_a_folder_is_made(tmp_path):
    with pytest.raises(ConfigurationError, match=r"test_trial.ReturnsTuple cannot serve: under .* returns a tuple"):
        train({**compose(*TINY, f"output={tmp_path}/runs"), "attention": {"_target_": f"{__name__}.ReturnsTuple"}})
    assert not (tmp_path / "runs").exists()
