"""The suites' training settings against facts picked by hand from the public harness's files.

yaml: torchbench.yaml, huggingface.yaml, timm_models.yaml; list: *_models_list.txt; of its benchmarks/dynamo.
The harness's: what its three runners say beside them.
"""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from perfdash.files import bundled
from perfdash.suites.suite_file import DTYPES, Suite, load_suite

SUITES = ("torchbench", "huggingface", "timm")

# Of what the public harness has trained (its expected accuracy of training), what the suites have.
TRAINED = {
    "timm": """adv_inception_v3 beit_base_patch16_224 convnextv2_nano.fcmae_ft_in22k_in1k
        deit_base_distilled_patch16_224 deit_tiny_patch16_224.fb_in1k dm_nfnet_f0 ghostnet_100 inception_v3
        mobilenetv2_100 mobilenetv3_large_100 mobilevit_s nfnet_l0 repvgg_a2 swin_base_patch4_window7_224
        tf_efficientnet_b0 visformer_small vit_base_patch14_dinov2.lvd142m vit_base_patch16_siglip_256""",
    # DebertaV2ForQuestionAnswering, too large for its machine, is not in the suite.
    "huggingface": """AlbertForMaskedLM AlbertForQuestionAnswering AllenaiLongformerBase BartForCausalLM
        BartForConditionalGeneration BertForMaskedLM BertForQuestionAnswering BlenderbotSmallForCausalLM
        BlenderbotSmallForConditionalGeneration CamemBert DebertaForMaskedLM DebertaForQuestionAnswering
        DebertaV2ForMaskedLM DistilBertForMaskedLM DistilBertForQuestionAnswering DistillGPT2
        ElectraForCausalLM ElectraForQuestionAnswering GPT2ForSequenceClassification LayoutLMForMaskedLM
        LayoutLMForSequenceClassification M2M100ForConditionalGeneration MBartForCausalLM
        MBartForConditionalGeneration MT5ForConditionalGeneration MegatronBertForCausalLM
        MegatronBertForQuestionAnswering MobileBertForMaskedLM MobileBertForQuestionAnswering OPTForCausalLM
        PLBartForCausalLM PLBartForConditionalGeneration PegasusForCausalLM PegasusForConditionalGeneration
        RobertaForCausalLM RobertaForQuestionAnswering Speech2Text2ForCausalLM T5ForConditionalGeneration
        T5Small TrOCRForCausalLM XGLMForCausalLM XLNetLMHeadModel YituTechConvBert""",
    # Graph networks, clip, maml_omniglot, moco, hf_Whisper, stable_diffusion, vision_maskrcnn are not.
    "torchbench": """BERT_pytorch LearningToPaint Super_SloMo alexnet attention_is_all_you_need_pytorch dcgan
        drq fastNLP_Bert functorch_dp_cifar10 hf_Albert hf_Bart hf_DistilBert hf_GPT2 hf_Reformer hf_T5_large
        lennard_jones mnasnet1_0 mobilenet_v2 nvidia_deeprecommender phlippe_densenet phlippe_resnet
        pytorch_CycleGAN_and_pix2pix pytorch_stargan pytorch_unet resnet152 resnet18 resnet50 resnext50_32x4d
        shufflenet_v2_x1_0 soft_actor_critic speech_transformer squeezenet1_1 timm_efficientnet timm_regnet
        timm_resnest timm_vision_transformer timm_vision_transformer_large timm_vovnet tts_angular vgg16
        yolov3""",
}  # fmt: skip


def settings(suite: Suite, name: str, key: str) -> Any:
    (model,) = [model for model in suite.models if model.name == name]
    return suite.setting(model, key, scenario="training")


@pytest.fixture(scope="module")
def suites() -> dict[str, Suite]:
    return {name: load_suite(name) for name in SUITES}


@pytest.mark.parametrize(
    ("suite", "name", "cpu", "cuda"),
    [
        ("torchbench", "densenet121", 4, 4),  # yaml: batch_size.training
        ("torchbench", "demucs", 4, 4),  # the same; it stands under dont_change_batch_size
        ("torchbench", "dlrm", 1024, 1024),  # the same
        ("torchbench", "timm_efficientdet", 1, 1),  # the same
        ("torchbench", "yolov3", 8, 8),  # the same
        ("torchbench", "resnet50", 256, 128),  # lists: cpu, then gpu
        ("torchbench", "tts_angular", 1024, 64),  # list of the cpu; the benchmark's own for training
        ("torchbench", "Background_Matting", 4, 4),  # the benchmark's own: it allows no other
        ("torchbench", "pytorch_unet", 2, 2),  # yaml: accuracy.max_batch_size
        ("huggingface", "AlbertForMaskedLM", 4, 4),  # list: 8, yaml: divisor 2
        ("huggingface", "BlenderbotForCausalLM", 32, 4),  # list of the cpu; list: 32, yaml: divisor 8
        ("huggingface", "XGLMForCausalLM", 8, 8),  # list: 32, yaml: divisor 4
        ("timm", "mobilevit_s", 256, 64),  # list of the cpu; list: 128, yaml: divisor 2
        ("timm", "ghostnet_100", 128, 512),  # lists; no divisor
    ],
)
def test_batch_sizes(suites: dict[str, Suite], suite: str, name: str, cpu: int, cuda: int) -> None:
    sizes = settings(suites[suite], name, "batch_size")
    assert (sizes.cpu, sizes.cuda) == (cpu, cuda)


@pytest.mark.parametrize(
    ("suite", "name", "tolerance"),
    [
        ("torchbench", "resnet18", 1e-3),  # the harness's for training on a GPU
        ("torchbench", "vgg16", 1e-3),  # yaml: tolerance.higher
        ("torchbench", "yolov3", 8e-2),  # yaml: tolerance.even_higher, as the next four
        ("torchbench", "squeezenet1_1", 8e-2),
        ("torchbench", "soft_actor_critic", 8e-2),
        ("torchbench", "tacotron2", 8e-2),
        ("torchbench", "shufflenet_v2_x1_0", 8e-2),
        ("huggingface", "BertForMaskedLM", 1e-2),  # the harness's for training
        ("huggingface", "MT5ForConditionalGeneration", 2e-2),  # yaml: tolerance.higher_training
        ("huggingface", "GPT2ForSequenceClassification", 1e-2),  # higher_inference is not training's
        ("timm", "repvgg_a2", 1e-2),  # the harness's for training
        ("timm", "inception_v3", 4e-2),  # yaml: tolerance.higher_training, as the next
        ("timm", "mobilenetv3_large_100", 4e-2),
        ("timm", "deit_base_distilled_patch16_224", 8e-2),  # yaml: tolerance.even_higher, as the next
        ("timm", "vit_base_patch16_siglip_256", 8e-2),
        ("timm", "beit_base_patch16_224", 16e-2),  # yaml: tolerance.highest_training
    ],
)
def test_tolerances(suites: dict[str, Suite], suite: str, name: str, tolerance: float) -> None:
    assert settings(suites[suite], name, "tolerance") == dict.fromkeys(DTYPES, tolerance)


@pytest.mark.parametrize(
    ("name", "bfloat16"),
    [("drq", 1e-2), ("phlippe_resnet", 1e-3)],  # yaml: both of higher_fp16, drq of higher_bf16 too
)
def test_tolerances_by_dtype(suites: dict[str, Suite], name: str, bfloat16: float) -> None:
    tolerances = settings(suites["torchbench"], name, "tolerance")
    assert tolerances == {"float32": 1e-3, "bfloat16": bfloat16, "float16": 1e-2, "amp": 1e-2}


def test_inference_is_as_it_was(suites: dict[str, Suite]) -> None:
    (unet,) = [model for model in suites["torchbench"].models if model.name == "pytorch_unet"]
    assert suites["torchbench"].setting(unet, "batch_size").cuda == 8
    assert suites["torchbench"].setting(unet, "tolerance")["float32"] == 1e-4


@pytest.mark.parametrize("name", SUITES)
def test_a_skip_has_a_reason(name: str) -> None:
    text = bundled("suites").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    skips = {
        model["name"]: model["training"]["skip"]["reason"]
        for model in tomllib.loads(text)["models"]
        if "skip" in model.get("training", {})
    }
    assert all(len(reason) > 20 for reason in skips.values())
    # yaml: only_inference. The quantised models are made for evaluation: no floating weights.
    assert set(skips) == {
        "torchbench": {"mobilenet_v2_quantized_qat", "resnet50_quantized_qat"},
        "huggingface": {"M2M100ForConditionalGeneration"},
        "timm": set(),
    }[name]  # fmt: skip


@pytest.mark.parametrize("name", SUITES)
def test_what_the_public_harness_trains_has_its_settings(suites: dict[str, Suite], name: str) -> None:
    suite = suites[name]
    loss = {"torchbench": "mean", "huggingface": "model", "timm": "cross_entropy"}[name]
    assert set(TRAINED[name].split()) <= {model.name for model in suite.models}
    for model in suite.models:
        assert suite.setting(model, "loss", scenario="training") == loss
        assert suite.setting(model, "tolerance", scenario="training") != suite.defaults.tolerance
        inputs = suite.setting(model, "inputs", {}, scenario="training")
        assert loss != "model" or inputs.get("labels", True), f"{model.name}: no labels, no loss"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "name"), [("timm", "resnest101e"), ("timm", "rexnet_100"), ("torchbench", "timm_resnest")]
)
def test_batch_normalisation_of_one_value_a_channel(suites: dict[str, Suite], suite: str, name: str) -> None:
    import timm
    import torch

    (model,) = [model for model in suites[suite].models if model.name == name]
    sizes = settings(suites[suite], name, "batch_size")
    with torch.device("meta"):
        module = timm.create_model(model.target or name).train()
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            module(torch.randn(1, 3, 224, 224))
        module(torch.randn(sizes.one_thread, 3, 224, 224))
