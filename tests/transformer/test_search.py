"""Beam search against enumeration, against a slow one written otherwise, and against the model's own scores."""

import itertools
import math

import pytest
import torch
from conftest import VARIANTS, make_variant
from torch.nn.utils.rnn import pad_sequence

from lockstep.transformer import Transformer
from lockstep.transformer.decoding import RecomputedDecoder, next_token
from lockstep.transformer.search import SearchOptions, beam_search, largest

PAD, BOS, EOS, UNK = range(4)
NEVER = (PAD, BOS, UNK)
ENDS = {"bos": BOS, "eos": EOS, "device": torch.device("cpu")}
DEFAULTS = {"beam_size": 4, "length_penalty": 1.0, "min_length": 1, "max_length": None, "n_best": 1}
DEFAULTS |= {"early_stopping": False}
EARLY = {"early_stopping": True}


def options(**changes) -> SearchOptions:
    return SearchOptions(**{**DEFAULTS, **changes})


def make(variant="fused", vocabulary=12, dtype=torch.float32) -> Transformer:
    """Random weights, under which translations are of any length and no mere repetition."""
    torch.manual_seed(0)
    factory = make_variant(variant)
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "d_ff": 48, "dropout": 0.1}
    model = Transformer(
        lambda: factory(32, 4), 12, vocabulary, **sizes, activation="relu", norm="pre", tied_embeddings="none"
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm.weight" in name else 0.0, 0.1 if "norm" in name else 0.5)
    return model.to(dtype).eval()


def sentences(*lengths):
    generator = torch.Generator().manual_seed(7)
    return [[BOS, *torch.randint(4, 12, (n,), generator=generator).tolist(), EOS] for n in lengths]


def search(model, sources, how, decoder=next_token):
    source = pad_sequence([torch.tensor(ids) for ids in sources], batch_first=True, padding_value=PAD)
    with torch.no_grad():
        limits = [how.limit(len(ids)) for ids in sources]
        return beam_search(decoder(model, source, source != PAD), limits, how, never=NEVER, **ENDS)


@torch.no_grad()
def log_probabilities(model, ids, prefixes):
    """Of every token after each prefix of a source's translations (n, t), empty ones included: (n, t + 1, V)."""
    source = torch.tensor([ids] * len(prefixes))
    target = torch.tensor([[BOS, *tokens] for tokens in prefixes])
    return model(source, source != PAD, target).double().log_softmax(-1)


def forced_score(model, ids, tokens, length_penalty):
    (rows,) = log_probabilities(model, ids, [tokens])
    return sum(rows[i, token].item() for i, token in enumerate(tokens)) / len(tokens) ** length_penalty


def same(found, expected, tolerance=1e-5):
    assert [[h.tokens for h in best] for best in found] == [[h.tokens for h in best] for best in expected]
    for a, b in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        assert a.score == pytest.approx(b.score, abs=tolerance)


def test_the_score_counts_eos_and_not_bos():
    """A: log-probability -4.0, 4 tokens; B: -4.9, 5 tokens."""
    by_length, plain = options(length_penalty=1.0), options(length_penalty=0.0)
    assert (by_length.score(-4.0, 4), by_length.score(-4.9, 5)) == (-1.0, pytest.approx(-0.98))
    assert plain.score(-4.0, 4) > plain.score(-4.9, 5)
    assert options(length_penalty=0.6).score(-4.0, 4) == pytest.approx(-4.0 / 4**0.6)
    with pytest.raises(ValueError, match=r"length_penalty=1000\.0 is not a number from 0 to 10"):
        options(length_penalty=1000.0)  # by which any length overflows


class Scripted:
    """Begins A or B with log-probability -4.0 or -4.9, else with a forbidden token; all that follows is certain."""

    def __call__(self, prefix):
        probabilities = torch.zeros(len(prefix), 9)
        for row, tokens in zip(probabilities, prefix[:, 1:].tolist(), strict=True):
            if tokens:
                script = B if tokens[0] == B[0] else A
                row[script[min(len(tokens), len(script) - 1)]] = 1.0
            else:
                row[A[0]], row[B[0]], row[UNK] = math.exp(-4.0), math.exp(-4.9), 1 - math.exp(-4.0) - math.exp(-4.9)
        return probabilities.log()

    def select(self, sources, rows):
        pass


A, B = [5, 6, 4, EOS], [7, 6, 4, 5, EOS]


@pytest.mark.parametrize(("penalty", "expected"), [(0.0, [A, B]), (1.0, [B, A])])
def test_alone_and_beside_a_sentence_that_may_be_longer(penalty, expected):
    for limits in ([6], [9, 6], [6, 6, 50]):
        for n_best in (1, 2):
            how = options(beam_size=2, n_best=n_best, length_penalty=penalty)
            for found in beam_search(Scripted(), limits, how, never=NEVER, **ENDS):
                assert [h.tokens for h in found] == expected[:n_best]
                assert [h.score for h in found] == pytest.approx(
                    [{4: -4.0, 5: -4.9}[len(h.tokens)] / len(h.tokens) ** penalty for h in found], abs=1e-5
                )


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 3.0])
def test_a_beam_as_wide_as_the_space_finds_what_enumeration_finds(length_penalty):
    """Three words, at most four tokens: 40 translations end, and 81 are cut."""
    model, sources = make(vocabulary=7, dtype=torch.float64), sentences(1, 3, 5)
    how = options(beam_size=200, length_penalty=length_penalty, max_length=4, n_best=121)
    found = search(model, sources, how)
    cut = list(itertools.product((4, 5, 6), repeat=4))
    for ids, hypotheses in zip(sources, found, strict=True):
        totals = {}
        for words, rows in zip(cut, log_probabilities(model, ids, cut), strict=True):
            for n in range(5):
                total = sum(rows[i, words[i]].item() for i in range(n))
                totals[words[:n] if n == 4 else (*words[:n], EOS)] = total + (rows[n, EOS].item() if n < 4 else 0.0)
        scored = sorted(((total / len(t) ** length_penalty, t) for t, total in totals.items()), reverse=True)
        assert len(scored) == 121
        assert [tuple(h.tokens) for h in hypotheses] == [tokens for _, tokens in scored]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in scored], abs=1e-10)
    same(search(model, sources, options(**{**vars(how), "n_best": 1})), [best[:1] for best in found], 1e-12)


def plain_beam_search(model, ids, how):
    """One sentence, one hypothesis after the other, everything recomputed, ended early only where that is asked for."""
    live, ended = [([], 0.0)], []
    limit = how.limit(len(ids))
    for length in range(1, limit + 1):
        candidates = []
        following = log_probabilities(model, ids, [tokens for tokens, _ in live])[:, -1].tolist()
        for (tokens, total), values in zip(live, following, strict=True):
            for token, value in enumerate(values):
                if token not in NEVER and not (token == EOS and length < how.min_length):
                    candidates.append(([*tokens, token], total + value))
        candidates.sort(key=lambda c: -c[1])
        ended += [c for c in candidates[: how.beam_size] if c[0][-1] == EOS or length == limit]
        live = [c for c in candidates if c[0][-1] != EOS][: how.beam_size]
        if len(ended) >= how.beam_size and (how.early_stopping or how.beam_size == 1):
            break
    scored = sorted(((total / len(tokens) ** how.length_penalty, tokens) for tokens, total in ended), reverse=True)
    return scored[: how.n_best]


@pytest.mark.parametrize(
    ("beam_size", "changes"),
    [
        *[(1, {}), (1, {"min_length": 4}), (2, {}), (2, {"max_length": 6}), (2, {**EARLY, "length_penalty": 0.0})],
        *[(5, {"length_penalty": 0.0}), (5, {"min_length": 4, "max_length": 9}), (5, EARLY)],
    ],
)
def test_equals_a_plain_search_and_its_scores_are_the_models(beam_size, changes):
    model, sources = make(dtype=torch.float64), sentences(1, 3, 5, 2)
    how = options(beam_size=beam_size, n_best=beam_size, **changes)
    found = search(model, sources, how)
    for ids, hypotheses in zip(sources, found, strict=True):
        expected = plain_beam_search(model, ids, how)
        assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
        for hypothesis in hypotheses:
            assert hypothesis.score == pytest.approx(
                forced_score(model, ids, hypothesis.tokens, how.length_penalty), abs=1e-10
            )
            assert how.min_length <= len(hypothesis.tokens) <= how.limit(len(ids))
            assert not set(hypothesis.tokens) & set(NEVER)
            assert EOS not in hypothesis.tokens[:-1]
    assert len({len(h.tokens) for best in found for h in best}) > 1


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_finds_the_same_with_and_without_cache(name):
    model, sources, how = make(name, dtype=torch.float64), sentences(1, 4, 2, 7), options(n_best=4)
    same(search(model, sources, how), search(model, sources, how, decoder=RecomputedDecoder), 1e-10)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_translation_depends_on_no_neighbour(beam_size):
    model, sources, how = make(), sentences(1, 2, 3, 4, 5), options(beam_size=beam_size, n_best=beam_size)
    together = search(model, sources, how)
    assert len({len(best.tokens) for best, *_ in together}) > 2
    for ids, found in zip(sources, together, strict=True):
        for hypothesis in found:
            assert hypothesis.score == pytest.approx(forced_score(model, ids, hypothesis.tokens, 1.0), abs=1e-5)
    same([search(model, [ids], how)[0] for ids in sources], together)
    same([found for pair in (sources[:2], sources[2:4], sources[4:]) for found in search(model, pair, how)], together)
    same(search(model, sources[::-1], how)[::-1], together)
    same(search(model, [*sources, *sentences(50)], how)[:5], together)


def test_the_best_does_not_depend_on_how_many_are_asked_for():
    model, sources = make(), sentences(1, 2, 3, 4, 5, 6, 7, 8)
    five = search(model, sources, options(beam_size=5, n_best=5))
    for n in (1, 2, 4):
        same(search(model, sources, options(beam_size=5, n_best=n)), [best[:n] for best in five], 1e-12)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, EARLY, {"length_penalty": 0.0}, {"length_penalty": 2.0}])
def test_a_beam_of_one_is_greedy(changes):
    """The likeliest token that is allowed, until it is EOS."""
    model, sources = make(vocabulary=12), sentences(3, 1, 6, 4, 2, 5)
    model.output.weight[UNK] *= 3
    with_forbidden = []
    for ids, (best,) in zip(sources, search(model, sources, options(beam_size=1, **changes)), strict=True):
        tokens = []
        while len(tokens) < 2 * len(ids) + 10 and EOS not in tokens:
            following = log_probabilities(model, ids, [tokens])[0, -1]
            with_forbidden.append(int(following.argmax()) in NEVER)
            following[list(NEVER)] = -math.inf
            tokens.append(int(following.argmax()))
        assert best.tokens == tokens
    assert any(with_forbidden)


class Tables:
    """Many toy models at once: each has a table (V, V) of what follows what."""

    def __init__(self, logits):
        self._logits = logits

    def __call__(self, prefix):
        B = len(self._logits)
        return self._logits[torch.arange(B)[:, None], prefix[:, -1].view(B, -1)].flatten(0, 1)

    def select(self, sources, rows):
        self._logits = self._logits[sources]


def best_of_tables(logits, limit, **changes):
    found = beam_search(Tables(logits), [limit] * len(logits), options(**changes), never=NEVER, **ENDS)
    return [best for (best,) in found]


def enumerated(logits, limit, how):
    """The best score of all translations, of each toy model."""
    after = logits.double().log_softmax(dim=-1)
    best = torch.full((len(logits),), -math.inf, dtype=torch.float64)
    for length in range(how.min_length, limit + 1):
        for words in itertools.product((4, 5, 6), repeat=length - 1):
            for last in (EOS,) if length < limit else (EOS, 4, 5, 6):
                path = [BOS, *words, last]
                total = sum(after[:, a, b] for a, b in itertools.pairwise(path))
                best = torch.maximum(best, total / length**how.length_penalty)
    return best


@pytest.mark.parametrize("changes", [{}, {"length_penalty": 0.0}, {"length_penalty": 2.0}, {"min_length": 2}])
def test_a_search_goes_on_while_a_hypothesis_could_win(changes):
    """100 toy models of three words and at most four tokens."""
    logits = 2 * torch.randn(100, 7, 7, generator=torch.Generator().manual_seed(5))
    best = enumerated(logits, 4, options(**changes))

    def scores(**more):
        found = best_of_tables(logits, 4, **{**changes, **more})
        return torch.tensor([hypothesis.score for hypothesis in found], dtype=torch.float64)

    torch.testing.assert_close(scores(beam_size=121), best, rtol=0, atol=1e-6)
    for beam_size in (2, 3):
        patient, early = scores(beam_size=beam_size), scores(beam_size=beam_size, early_stopping=True)
        assert (patient >= early).all()
        assert (patient <= best + 1e-6).all()
        assert (patient - best).mean() > (early - best).mean()
    greedy = scores(beam_size=1)
    assert greedy.mean() < scores(beam_size=2).mean() < scores(beam_size=3).mean()


def test_two_that_end_at_once_do_not_end_the_search():
    """Of a, b, EOS at 0.6, 0.9 and 1, the second step sees EOS at 0.4 and 0.06 end; only the third is likely."""
    logits = torch.full((1, 7, 7), -30.0)
    logits[0, BOS, [4, EOS]] = torch.tensor([0.6, 0.4]).log()
    logits[0, 4, [5, EOS]] = torch.tensor([0.9, 0.1]).log()
    logits[0, 5, EOS] = 0.0
    (greedy,), (early,), (found,) = (
        best_of_tables(logits, 9, **changes)
        for changes in ({"beam_size": 1}, {"beam_size": 2, **EARLY}, {"beam_size": 2})
    )
    assert early.tokens == [EOS]
    assert early.score == pytest.approx(math.log(0.4))
    assert found == greedy
    assert found.tokens == [4, 5, EOS]
    assert found.score == pytest.approx(math.log(0.54) / 3)


def test_equal_candidates_come_in_the_order_of_hypotheses_and_ids():
    class Indifferent:
        def __call__(self, prefix):
            return torch.zeros(len(prefix), 1000)

        def select(self, sources, rows):
            pass

    how = options(beam_size=3, n_best=3, max_length=2, min_length=2)
    for count in (1, 7):
        found = beam_search(Indifferent(), [2] * count, how, never=NEVER, **ENDS)
        assert [[h.tokens for h in best] for best in found] == [[[4, EOS], [4, 4], [4, 5]]] * count
    values = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0, 2.0]])
    assert largest(values, 2)[1].tolist() == [[1, 2]]
    assert largest(values, 4)[1].tolist() == [[1, 2, 4, 3]]
    assert largest(values, 6)[1].tolist() == [[1, 2, 4, 3, 5, 0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_size": 0}, "beam_size=0 is less than 1"),
        ({"beam_size": 10**5}, "beam_size=100000 is over 1000"),
        ({"n_best": 5}, "n_best=5 is more than the beam_size=4 hypotheses kept"),
        ({"length_penalty": -1.0}, "length_penalty=-1.0 is not"),
        ({"length_penalty": math.nan}, "length_penalty=nan is not"),
        ({"max_length": 3, "min_length": 4}, "max_length=3 is less than min_length=4"),
    ],
)
def test_options_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        options(**changes)
