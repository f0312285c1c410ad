"""Learners whose choices depend on how weights are stored: where the same function does not learn the same.

Each is a habit found in real code. None is wrong; with each, "the same model" means another one in another layout.
"""

import torch
from torch import nn

from lockstep.attention import MultiHeadAttention
from lockstep.comparison.variant import Learner, ParameterGroup
from lockstep.transformer import Transformer


class XavierAsStored(Learner):
    """Draws every stored matrix by its own shape, in the order of the modules, as ``reset_parameters`` loops do.

    Xavier's bound sqrt(6 / (fan_in + fan_out)) for D = 512 and 8 heads is 0.102 for a head's matrix, 0.0766 for
    one of all heads, 0.0541 for query, key and value in one.
    """

    def initialize(self, model: Transformer, seed: int) -> None:
        super().initialize(model, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for module in model.modules():
                if isinstance(module, MultiHeadAttention):
                    for parameter in module.parameters():
                        if parameter.dim() >= 2:
                            nn.init.xavier_uniform_(parameter)


class ClippedByTensor(Learner):
    """Clips the norm of each stored tensor's gradient by itself: heads stored apart are clipped apart."""

    def clip(self, model: Transformer, max_norm: float) -> None:
        for parameter in model.parameters():
            nn.utils.clip_grad_norm_(parameter, max_norm)


class DecayByRank(Learner):
    """Decays tensors of two or more dimensions, and spares the others: "no decay for biases and norms", by rank.

    Biases stored as (H, K) have two dimensions.
    """

    def groups(self, model: Transformer) -> list[ParameterGroup]:
        parameters = list(model.named_parameters())
        return [
            {"params": [(name, p) for name, p in parameters if p.dim() >= 2]},
            {"params": [(name, p) for name, p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]


class AttentionMatrices(Learner):
    """Trains the matrices of the attention alone: what Muon, which takes nothing else, is given."""

    def groups(self, model: Transformer) -> list[ParameterGroup]:
        inside = {
            id(p) for module in model.modules() if isinstance(module, MultiHeadAttention) for p in module.parameters()
        }
        return [{"params": [(name, p) for name, p in model.named_parameters() if id(p) in inside and p.dim() == 2]}]
