"""Flags over environment over config.toml, and one variable that moves every folder."""

import pytest

from localspec import options
from localspec.chat.request import request_from
from localspec.errors import BadSetting
from localspec.options import configured
from localspec.sampler.sampling import Sampling

pytestmark = pytest.mark.usefixtures("home", "cache_of_its_own")


def config(text: str) -> None:
    options.config_dir().mkdir(parents=True, exist_ok=True)
    options.config_file().write_text(text, "utf-8")


def test_nothing_is_set_at_first():
    assert configured() == {}


def test_flags_win_over_the_environment_and_that_over_the_file(monkeypatch):
    config('pair = "file"\ncontext = 16\ntemperature = 1')
    monkeypatch.setenv("LOCALSPEC_PAIR", "environment")
    monkeypatch.setenv("LOCALSPEC_CONTEXT", "32")
    loaded = configured(pair="flag", context_length=None)
    assert loaded == {"pair": "flag", "context_length": 32, "temperature": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("contxt = 5", "no setting called contxt in .*config.toml"),
        ('context = "5"', "not a whole number"),
        ("context = true", "not a whole number"),
        ("pair = 5", "not text"),
        ("pair = ", "config.toml is not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named(text, says):
    config(text)
    with pytest.raises(BadSetting, match=says):
        configured()


def test_a_byte_order_mark_is_skipped():
    config("\ufefftemperature = 0.5\n")
    assert configured() == {"temperature": 0.5}


def test_a_mistyped_name_is_suggested():
    config("contxt = 5")
    with pytest.raises(BadSetting) as caught:
        configured()
    assert caught.value.hint == "did you mean context?"


def test_a_variable_of_the_wrong_type_is_named(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_TEMPERATURE", "warm")
    with pytest.raises(BadSetting, match=r"LOCALSPEC_TEMPERATURE is 'warm', not a number"):
        configured()


def test_a_mistyped_variable_is_suggested_and_a_strangers_one_is_left_alone(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_OF_ANOTHER_PROGRAM", "x")
    assert "temperature" not in configured()
    monkeypatch.setenv("LOCALSPEC_TEMPRATURE", "1")
    with pytest.raises(BadSetting, match="LOCALSPEC_TEMPRATURE is not a setting") as caught:
        configured()
    assert "LOCALSPEC_TEMPERATURE" in caught.value.hint


def test_depth_may_be_a_number_or_auto():
    config("depth = 3")
    assert configured()["depth"] == 3
    config('depth = "auto"')
    assert configured()["depth"] == "auto"


def test_think_is_on_off_or_a_number(monkeypatch):
    for text, think in (("true", True), ("false", False), ("0", 0), ("1", 1), ("512", 512)):
        config(f"think = {text}")
        assert repr(configured()["think"]) == repr(think)
        monkeypatch.setenv("LOCALSPEC_THINK", text)
        config("")
        assert repr(configured()["think"]) == repr(think)
        monkeypatch.delenv("LOCALSPEC_THINK")


def test_one_variable_moves_every_folder(home):
    for folder in (options.config_dir(), options.data_dir(), options.cache_dir()):
        assert folder.is_relative_to(home)


def test_without_it_the_system_decides(monkeypatch):
    monkeypatch.delenv("LOCALSPEC_HOME")
    folders = {options.config_dir(), options.data_dir(), options.cache_dir()}
    assert all("localspec" in folder.parts for folder in folders)


@pytest.mark.parametrize(
    ("folder", "says"), [("/" + "x" * 300, "cannot be read"), ("~nobody-here/x", "user who does not exist")]
)
def test_a_home_that_cannot_be_is_named(folder, says, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", folder)
    with pytest.raises(BadSetting, match=says):
        configured()


def test_an_unknown_option_is_refused_with_the_nearest_name_wherever_it_is_given():
    with pytest.raises(BadSetting, match="no option called temprature") as caught:
        request_from({"temprature": 1}, Sampling())
    assert caught.value.hint == "did you mean temperature?"
    with pytest.raises(BadSetting, match="no option called gpu_layer") as caught:
        configured(gpu_layer=1)
    assert caught.value.hint == "did you mean gpu_layers?"


@pytest.mark.parametrize(
    "text", ["depth = 'deep'", "top_p = 2", "threads = 0", "think = -1", "flash_attn = 'yes'", "seed = -1"]
)
def test_a_value_out_of_range_is_named_with_its_place_and_what_fits(text):
    config(text)
    with pytest.raises(BadSetting, match=f"^{text.split()[0]} in .*config.toml is .*, not ") as caught:
        configured()
    assert caught.value.hint.startswith(f"{text.split()[0]}: ")
