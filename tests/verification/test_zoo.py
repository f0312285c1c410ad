"""The verdict on classes that people use, from well-known packages: ``pip install -e '.[zoo]'``.

Each has its reason, as the table in the room's README gives it; a package that is not there is skipped.
"""

from importlib import import_module

import pytest

import lockstep

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

MODELS = "transformers.models"
EQUIVALENT = (
    "torch.nn:MultiheadAttention",
    "timm.layers.attention:Attention",
    "timm.layers:AttentionRope",
    "perceiver_pytorch.perceiver_pytorch:Attention",
    "monai.networks.blocks.selfattention:SABlock",
    "monai.networks.blocks.crossattention:CrossAttentionBlock",
    f"{MODELS}.bart.modeling_bart:BartAttention",
    f"{MODELS}.beit.modeling_beit:BeitAttention",
    f"{MODELS}.clip.modeling_clip:CLIPAttention",
    f"{MODELS}.detr.modeling_detr:DetrSelfAttention",
    f"{MODELS}.dinov2.modeling_dinov2:Dinov2Attention",
    f"{MODELS}.distilbert.modeling_distilbert:DistilBertSelfAttention",
    f"{MODELS}.gpt2.modeling_gpt2:GPT2Attention",
    f"{MODELS}.m2m_100.modeling_m2m_100:M2M100Attention",
    f"{MODELS}.marian.modeling_marian:MarianAttention",
    f"{MODELS}.opt.modeling_opt:OPTAttention",
    f"{MODELS}.pegasus.modeling_pegasus:PegasusAttention",
    f"{MODELS}.siglip.modeling_siglip:SiglipAttention",
    f"{MODELS}.speech_to_text.modeling_speech_to_text:Speech2TextAttention",
    f"{MODELS}.vit.modeling_vit:ViTAttention",
    f"{MODELS}.wav2vec2.modeling_wav2vec2:Wav2Vec2Attention",
    f"{MODELS}.whisper.modeling_whisper:WhisperAttention",
    f"{MODELS}.xglm.modeling_xglm:XGLMAttention",
)
DIFFERENT = {
    f"{MODELS}.bert.modeling_bert:BertSelfAttention": "no_output_projection",
    f"{MODELS}.t5.modeling_t5:T5Attention": "no_scale",
    "vit_pytorch.vit:Attention": "normalisation_first",
    "vit_pytorch.simple_vit:Attention": "normalisation_first",
    "vit_pytorch.deepvit:Attention": "not_affine",
    "linformer:LinformerSelfAttention": "not_affine",
    "conformer.conformer:Attention": "knows_positions",
}
NOT_TOLD = (
    "vit_pytorch.cait:Attention",
    "performer_pytorch:SelfAttention",
    f"{MODELS}.llama.modeling_llama:LlamaAttention",
)


def verdict_on(target: str) -> tuple[str, list[str]]:
    try:
        import_module(target.partition(":")[0])
    except (ImportError, RuntimeError) as error:  # torchvision of another build raises a RuntimeError
        pytest.skip(f"pip install -e '.[zoo]': {error}")
    certificate = lockstep.verify(target, thorough=False)
    return certificate.verdict, [finding.code for finding in certificate.findings]


@pytest.mark.parametrize("target", EQUIVALENT)
def test_the_right_ones_are_certified_with_nothing_but_their_names(target: str) -> None:
    assert verdict_on(target) == ("equivalent", [])


@pytest.mark.parametrize(("target", "code"), DIFFERENT.items())
def test_what_differs_is_named(target: str, code: str) -> None:
    verdict, codes = verdict_on(target)
    assert verdict == "different"
    assert codes[0] == code


@pytest.mark.parametrize("target", NOT_TOLD)
def test_what_is_not_understood_is_never_certified(target: str) -> None:
    assert verdict_on(target)[0] == "could not tell"
