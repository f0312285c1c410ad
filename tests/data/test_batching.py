"""Batches: whole, grouped, within budget, never of one, a function of seed and epoch."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstep.data.batching import LengthGroupedBatches, collate

LENGTHS = st.lists(st.tuples(st.integers(2, 30), st.integers(2, 30)), min_size=2, max_size=60)


@given(LENGTHS, st.integers(1, 200), st.integers(0, 5), st.integers(0, 3))
def test_each_example_once_within_budget_and_never_alone(lengths, budget, jitter, epoch):
    sampler = LengthGroupedBatches(lengths, budget, seed=0, jitter=jitter)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert len(batches) == len(sampler)
    for batch in batches:
        padded = max(lengths[i][1] for i in batch) * len(batch)
        assert len(batch) >= 2
        # The last of an odd number joins another batch.
        assert padded <= budget or len(batch) <= 3


def test_order_is_a_pure_function_of_seed_and_epoch():
    lengths = [(5 + i % 7, 6 + i % 7) for i in range(200)]

    def order(seed, epoch, after=()):
        sampler = LengthGroupedBatches(lengths, 64, seed=seed, jitter=2)
        for earlier in after:
            sampler.set_epoch(earlier)
            list(sampler)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 3) == order(0, 3, after=(0, 1, 7))
    distinct = [order(0, 0), order(0, 1), order(1, 0), order(1, 1)]
    assert all(a != b for i, a in enumerate(distinct) for b in distinct[:i])


def test_jitter_mixes_lengths_a_little_and_evaluation_keeps_one_order():
    lengths = [(2 + i % 12, 2 + i % 12) for i in range(600)]

    def spread(jitter):
        plan = LengthGroupedBatches(lengths, 128, seed=0, jitter=jitter).plan()
        return [max(lengths[i][0] for i in b) - min(lengths[i][0] for i in b) for b in plan]

    assert max(spread(0)) <= 1
    assert sum(s > 0 for s in spread(2)) > len(spread(2)) / 2
    assert max(spread(2)) <= 3
    fixed = LengthGroupedBatches(lengths, 128, seed=None)
    before = fixed.plan()
    fixed.set_epoch(5)
    assert fixed.plan() == before


def test_collate_pads_at_the_end():
    batch = collate(
        [(torch.tensor([1, 7, 2]), torch.tensor([1, 2])), (torch.tensor([1, 2]), torch.tensor([1, 8, 9, 2]))]
    )
    assert batch.source.tolist() == [[1, 7, 2], [1, 2, 0]]
    assert batch.source_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.prefix.tolist() == [[1, 2, 0], [1, 8, 9]]
    assert batch.labels.tolist() == [[2, 0, 0], [8, 9, 2]]


def test_examples_alike_on_both_sides_go_together_where_lengths_differ():
    draw = torch.Generator().manual_seed(0)
    source = torch.randint(5, 25, (4000,), generator=draw)
    target = (source * (0.7 + 0.6 * torch.rand(4000, generator=draw))).long()
    lengths = list(zip(source.tolist(), target.tolist(), strict=True))
    sampler = LengthGroupedBatches(lengths, 1024, seed=0)
    padded = sum(max(lengths[i][side] for i in b) * len(b) for b in sampler.plan() for side in (0, 1))
    share = 1 - float(source.sum() + target.sum()) / padded
    assert share < 0.06  # 0.08 where only the longer side counts
    assert sampler.summary().endswith(f"padding {share:.1%}")
    first = sampler.plan()
    sampler.set_epoch(1)
    assert {tuple(sorted(b)) for b in first}.isdisjoint(tuple(sorted(b)) for b in sampler.plan())


def test_the_size_of_an_epoch_is_told():
    # Target tokens to be predicted: 3 + 3 + 5 + 5. One batch pads to 4 x (4 + 6), of which 2 x (2 + 2) are not real.
    lengths = [(2, 4), (2, 4), (4, 6), (4, 6)]
    told = LengthGroupedBatches(lengths, 1000, seed=0).summary()
    assert told == "4 training pairs, 16 target tokens, 1 batch an epoch, padding 20.0%"
