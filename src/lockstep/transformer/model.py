"""The encoder-decoder Transformer.

Shapes: B batch, T_s and T_t source and target length, D = d_model, V vocabulary size.
"""

import math
from typing import Literal

from torch import Tensor, nn

from lockstep.attention.dropout import Dropout
from lockstep.transformer.layers import (
    Activation,
    AttentionFactory,
    DecoderLayer,
    EncoderLayer,
    Norm,
    SinusoidalPositions,
)

TiedEmbeddings = Literal["none", "output", "all"]


class Transformer(nn.Module):
    """The model of "Attention Is All You Need" around any multi-head attention.

    Args:
        attention: makes one attention module of width ``d_model``; called for each place in the model.
        source_vocabulary: number of source tokens.
        target_vocabulary: number of target tokens, V.
        d_model: width D.
        encoder_layers: number of encoder layers.
        decoder_layers: number of decoder layers.
        d_ff: inner width of the feed-forward layers.
        dropout: on each sublayer's output and on the embedded input, as in section 5.4.
        activation: of the feed-forward layers.
        norm: "post" normalises after each residual sum, as the paper does; "pre" before each sublayer.
        tied_embeddings: "output" shares the target embedding with the output projection (section 3.4), "all" the
            source embedding too, which takes one vocabulary for both sides.
        residual_gain: of what writes into the residual stream, at the start (see :func:`initialize`).

    Raises:
        ValueError: tied source and target embeddings of different vocabularies.
    """

    def __init__(
        self,
        attention: AttentionFactory,
        source_vocabulary: int,
        target_vocabulary: int,
        *,
        d_model: int,
        encoder_layers: int,
        decoder_layers: int,
        d_ff: int,
        dropout: float,
        activation: Activation,
        norm: Norm,
        tied_embeddings: TiedEmbeddings,
        residual_gain: float = 1.0,
    ) -> None:
        super().__init__()
        if tied_embeddings == "all" and source_vocabulary != target_vocabulary:
            raise ValueError(
                f"tied_embeddings=all takes one vocabulary for both sides, got {source_vocabulary} source and "
                f"{target_vocabulary} target tokens"
            )
        self.d_model = d_model
        self.residual_gain = residual_gain
        self.source_embedding = nn.Embedding(source_vocabulary, d_model)
        self.target_embedding = (
            self.source_embedding if tied_embeddings == "all" else nn.Embedding(target_vocabulary, d_model)
        )
        self.positions = SinusoidalPositions(d_model)
        self.dropout = Dropout(dropout)
        layer = (attention, d_model, d_ff, dropout, activation, norm)
        self.encoder = nn.ModuleList(EncoderLayer(*layer) for _ in range(encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(*layer) for _ in range(decoder_layers))
        # Pre-norm leaves the last residual sum as it is; one more norm completes each stack.
        self.encoder_norm = nn.LayerNorm(d_model) if norm == "pre" else nn.Identity()
        self.decoder_norm = nn.LayerNorm(d_model) if norm == "pre" else nn.Identity()
        self.output = nn.Linear(d_model, target_vocabulary, bias=False)
        if tied_embeddings != "none":
            self.output.weight = self.target_embedding.weight

    def embed(self, embedding: nn.Module, tokens: Tensor, start: int = 0) -> Tensor:
        """Token ids (B, T), the first at position ``start``, to scaled embeddings with positions (B, T, D)."""
        x = embedding(tokens) * math.sqrt(self.d_model)
        return self.dropout(x + self.positions(start, tokens.size(1), x))

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Source ids (B, T_s), of which ``source_mask`` (B, T_s) is True at real tokens, to memory (B, T_s, D)."""
        x = self.embed(self.source_embedding, source)
        mask = source_mask[:, None, None, :]
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x)

    def decode(self, target: Tensor, memory: Tensor, source_mask: Tensor) -> Tensor:
        """Target prefixes (B, T_t) to the logits of each next token (B, T_t, V).

        Padding must stand at the end of the target: causality hides it from every real token.
        """
        return self.output(self._decoded(target, memory, source_mask))

    def _decoded(self, target: Tensor, memory: Tensor, source_mask: Tensor) -> Tensor:
        x = self.embed(self.target_embedding, target)
        mask = source_mask[:, None, None, :]
        for layer in self.decoder:
            x = layer(x, memory, mask)
        return self.decoder_norm(x)

    def states(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """What the output projection is given for each prefix of ``target`` (B, T_t): (B, T_t, D)."""
        return self._decoded(target, self.encode(source, source_mask), source_mask)

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Logits (B, T_t, V) of the token that follows each prefix of ``target`` (B, T_t)."""
        return self.output(self.states(source, source_mask, target))
