"""Every variant listed in conf/attention, and configurations as the command line would compose them."""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path

import hydra
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import settings
from omegaconf import DictConfig, OmegaConf

from lockstep.commands.targets import locate
from lockstep.verification import mutants
from lockstep.verification.formula import FAULTS

# How long an example takes is the machine's affair.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

CONF = Path(__file__).parents[1] / "conf"
ADAPTER = "lockstep.verification.adapter"  # a user's class, verified when it was saved, may refuse what it cannot do
LISTED = sorted(p.stem for p in (CONF / "attention").glob("*.yaml") if ADAPTER not in p.read_text(encoding="utf-8"))
# A model and a task small enough for many steps in a test; head_dim stays 32, where bits were measured to agree.
TINY = [
    "name=tiny",
    "model.d_model=64",
    "model.num_heads=2",
    "model.d_ff=64",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "batch_tokens=256",
    "data.max_length=8",
    "data.train_size=2000",
    "data.validation_size=50",
    "data.test_size=50",
    "trainer.val_check_interval=1000",
    "trainer.log_every_n_steps=1",
    "trainer.accelerator=cpu",
    "attention_maps_every=0",
    "schedule.warmup_steps=20",
]


@cache
def make_variant(name: str, arithmetic: str = "native"):
    """A function (d_model, num_heads, **options) -> attention module, as configured."""
    config = OmegaConf.load(CONF / "attention" / f"{name}.yaml")
    node = OmegaConf.to_container(OmegaConf.create({"attention": config, "arithmetic": arithmetic}), resolve=True)
    cls = locate(node["attention"], "attention")
    arguments = {key: value for key, value in node["attention"].items() if key != "_target_"}
    return lambda d_model, num_heads, **options: cls(d_model, num_heads, **arguments, **options)


def compose(*overrides: str, script: str = "train") -> dict:
    """The plain configuration of a script with these overrides; each choice of groups is composed once."""
    if any(override.startswith(("+", "~")) for override in overrides):
        return OmegaConf.to_container(composed(script, overrides), resolve=True)
    chosen = tuple(o for o in overrides if (CONF / o.partition("=")[0].partition("@")[0]).is_dir())
    config = deepcopy(composed(script, chosen))
    for told in OverridesParser.create().parse_overrides([o for o in overrides if o not in chosen]):
        OmegaConf.update(config, told.key_or_group, told.value(), merge=True)
    return OmegaConf.to_container(config, resolve=True)


@cache
def composed(script: str, overrides: tuple[str, ...]) -> DictConfig:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(script, list(overrides))


# All that compute the reference's function of their canonical weights; ideas that compute another face the rest.
VARIANTS = [name for name in LISTED if name == "shared_heads" or make_variant(name)(4, 2).canonical]


@pytest.fixture(params=LISTED)
def any_variant(request):
    return make_variant(request.param)


@pytest.fixture(params=VARIANTS)
def variant(request):
    return make_variant(request.param)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _no_cache_of_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Preparations are kept, and found, in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def few_mutants(monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate plants few faults to prove its checks; test_verdicts.py plants all."""
    monkeypatch.setattr(mutants, "FAULTS", FAULTS[::9])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
