"""Faults planted into the user files by changing their text: independent of how the verifier thinks of faults."""

# ruff: noqa: E501  one fault a line reads as a table

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Plant:
    """One fault in one file: the name that the verifier should give it, and the change."""

    code: str
    old: str
    new: str
    conventions: dict[str, str] = field(default_factory=dict)
    also: tuple[str, str] = ("", "")


QUESTION_SCALE = "/ math.sqrt(self.head_dim)"
QUESTION = (
    Plant("no_scale", QUESTION_SCALE, ""),
    Plant("scale_d_model", QUESTION_SCALE, "/ math.sqrt(self.embed_size)"),
    Plant("scale_head_dim", QUESTION_SCALE, "/ self.head_dim"),
    Plant("scale_inverted", QUESTION_SCALE, "* math.sqrt(self.head_dim)"),
    Plant("softmax_over_queries", "torch.softmax(energy, dim=2)", "torch.softmax(energy, dim=1)"),
    Plant("softmax_over_batch", "torch.softmax(energy, dim=2)", "torch.softmax(energy, dim=0)"),
    Plant("no_softmax", "torch.softmax(energy, dim=2)", "energy"),
    Plant("mask_ignored", "if mask is not None:", "if False:"),
    Plant("mask_ignored_across", "if mask is not None:", "if mask is not None and query.size(1) == key.size(1):"),
    Plant("query_key_swapped", "torch.bmm(q, k.transpose(1, 2))", "torch.bmm(self.queries[i](key), self.keys[i](query).transpose(1, 2))"),
    Plant("heads_share_weights", "q = self.queries[i](query)", "q = self.queries[0](query)"),
    Plant("heads_share_weights", "k = self.keys[i](key)", "k = self.keys[0](key)"),
    Plant("heads_share_weights", "v = self.values[i](value)", "v = self.values[0](value)"),
    Plant("heads_share_weights", "for _ in range(heads)])\n        self.fc_out", "for _ in range(1)] * heads)\n        self.fc_out"),
    Plant("heads_averaged", "torch.cat(outs, dim=2)", "torch.cat([sum(outs) / self.heads] * self.heads, dim=2)"),
    Plant("heads_averaged", "nn.Linear(embed_size, embed_size)\n", "nn.Linear(embed_size // heads, embed_size)\n", also=("torch.cat(outs, dim=2)", "sum(outs) / self.heads")),
    Plant("dropout_in_eval", "torch.softmax(energy, dim=2)", "nn.functional.dropout(torch.softmax(energy, dim=2), 0.1)"),
    Plant("residual", "return self.fc_out(torch.cat(outs, dim=2))", "return self.fc_out(torch.cat(outs, dim=2)) + query"),
    Plant("no_output_projection", "return self.fc_out(torch.cat(outs, dim=2))", "return torch.cat(outs, dim=2)"),
    Plant("key_reads_value", "k = self.keys[i](key)", "k = self.keys[i](value)"),
    Plant("value_reads_key", "v = self.values[i](value)", "v = self.values[i](key)"),
    Plant("merge_by_reshape", "torch.cat(outs, dim=2)", "torch.stack(outs, 1).reshape(query.shape)"),
)  # fmt: skip

FUSED_SCALE = "/ self.d_k**0.5"
FUSED_SPLIT = ".view(bs, -1, self.h, self.d_k).transpose(1, 2)"
FUSED_MASK = "masked_fill(mask == 0, -1e9)"
FUSED = (
    Plant("no_scale", FUSED_SCALE, ""),
    Plant("scale_d_model", FUSED_SCALE, "/ self.d_model**0.5"),
    Plant("scale_head_dim", FUSED_SCALE, "/ self.d_k"),
    Plant("scale_inverted", FUSED_SCALE, "* self.d_k**0.5"),
    Plant("softmax_over_queries", "dim=-1", "dim=-2"),
    Plant("softmax_over_heads", "dim=-1", "dim=1"),
    Plant("softmax_over_batch", "dim=-1", "dim=0"),
    Plant("no_softmax", "F.softmax(scores, dim=-1)", "scores"),
    Plant("mask_inverted", "mask == 0", "mask == 1"),
    Plant("mask_inverted", "mask == 0", "mask != 0", {"mask": "zero_blocks"}),
    Plant("mask_added", FUSED_MASK, "add(mask)", {"mask": "zero_blocks"}),
    Plant("mask_ignored", "if mask is not None:", "if False:"),
    Plant("mask_ignored", "scores = scores.masked_fill", "scores.masked_fill"),
    Plant("mask_ignored_across", "if mask is not None:", "if mask is not None and scores.size(-1) == scores.size(-2):"),
    Plant("mask_tiled", FUSED_MASK, "flatten(0, 1).masked_fill(mask[:, 0].repeat(self.h, 1, 1) == 0, -1e9).view(scores.shape)"),
    Plant("split_by_reshape", FUSED_SPLIT, ".view(bs, self.h, -1, self.d_k)"),
    Plant("split_by_reshape", f"self.w_q(q){FUSED_SPLIT}", "self.w_q(q).view(bs, self.h, -1, self.d_k)"),
    Plant("split_by_reshape", f"self.w_k(k){FUSED_SPLIT}", "self.w_k(k).view(bs, self.h, -1, self.d_k)"),
    Plant("split_by_reshape", f"self.w_v(v){FUSED_SPLIT}", "self.w_v(v).view(bs, self.h, -1, self.d_k)"),
    Plant("merge_by_reshape", "x.transpose(1, 2).contiguous()", "x.contiguous()"),
    Plant("query_key_swapped", "bs = q.size(0)", "bs = q.size(0); q, k = k, q"),
    Plant("key_reads_value", "self.w_k(k)", "self.w_k(v)"),
    Plant("value_reads_key", "self.w_v(v)", "self.w_v(key)"),
    Plant("heads_share_weights", f"self.w_k(k){FUSED_SPLIT}", f"self.w_k(k){FUSED_SPLIT}[:, :1].expand(-1, self.h, -1, -1)"),
    Plant("heads_share_weights", "self.w_v = nn.Linear(d_model, d_model)", "self.w_v = nn.Linear(d_model, self.d_k)", also=("self.w_v(v)", "self.w_v(v).repeat(1, 1, self.h)")),
    Plant("heads_share_weights", FUSED_SPLIT, FUSED_SPLIT + "[:, :1].expand(-1, self.h, -1, -1)"),
    Plant("heads_averaged", "x = x.transpose", "x = x.mean(1, keepdim=True).expand_as(x).transpose"),
    Plant("attention_averaged", "x = torch.matmul(p, v)", "x = torch.matmul(p.mean(1, keepdim=True), v)"),
    Plant("dropout_in_eval", "self.dropout(F.softmax(scores, dim=-1))", "F.dropout(F.softmax(scores, dim=-1), self.dropout.p)"),
    Plant("residual", "return self.w_o(x)", "return self.w_o(x) + residual"),
    Plant("residual_normalisation", "return self.w_o(x)", "return F.layer_norm(self.w_o(x) + residual, x.shape[-1:])"),
    Plant("normalisation", "return self.w_o(x)", "return F.layer_norm(self.w_o(x), x.shape[-1:])"),
    Plant("no_output_projection", "return self.w_o(x)", "return x"),
    Plant("tied_weights", "self.w_k = nn.Linear(d_model, d_model)", "self.w_k = self.w_q"),
)  # fmt: skip

GPT_SCALE = "* (1.0 / math.sqrt(k.size(-1)))"
GPT_MASK = 'masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))'
GPT = (
    Plant("no_scale", GPT_SCALE, ""),
    Plant("scale_d_model", GPT_SCALE, "* (1.0 / math.sqrt(C))"),
    Plant("causal_off_by_one", "torch.tril(torch.ones(config.block_size, config.block_size))", "torch.tril(torch.ones(config.block_size, config.block_size), 1)"),
    Plant("causal_off_by_one", "torch.tril(torch.ones(config.block_size, config.block_size))", "torch.tril(torch.ones(config.block_size, config.block_size), -1)"),
    Plant("causal_inverted", ":T] == 0", ":T] == 1"),
    Plant("causal_added", f"att.{GPT_MASK}", "att + self.bias[:, :, :T, :T]"),
    Plant("softmax_over_queries", "dim=-1", "dim=-2"),
    Plant("merge_by_reshape", "y.transpose(1, 2).contiguous()", "y.contiguous()"),
    Plant("split_by_reshape", ".view(B, T, self.n_head, C // self.n_head).transpose(1, 2)", ".reshape(B, self.n_head, T, C // self.n_head)"),
    Plant("residual", "return self.resid_dropout(self.c_proj(y))", "return x + self.resid_dropout(self.c_proj(y))"),
)  # fmt: skip

PLANTS = {"question": QUESTION, "fused01": FUSED, "gpt": GPT}
CLASSES = {"question": "MultiHeadAttention", "fused01": "MultiHeadAttention", "gpt": "CausalSelfAttention"}


def planted(source: str, plant: Plant) -> str:
    """The text of a user file with the fault in it."""
    changed = source.replace(plant.old, plant.new)
    if plant.also[0]:
        assert plant.also[0] in changed
        changed = changed.replace(*plant.also)
    assert changed != source, f"{plant.old!r} is not there"
    # Names of the inputs before they are overwritten, for the plants that need them.
    return changed.replace("bs = q.size(0)", "residual, key = q, k\n        bs = q.size(0)")
