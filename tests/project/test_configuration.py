"""Configuration: every source fills every field, the nearest source wins, and a mistake is named in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chatserve.config import Config
from chatserve.configuration import Setting, load_config, settings
from chatserve.errors import ConfigError

EXAMPLES: dict[str, tuple[str, Any]] = {
    "model": ("some/model", "some/model"),
    "served_model_name": ("mine", "mine"),
    "device": ("cpu", "cpu"),
    "dtype": ("float16", "float16"),
    "block_size": ("32", 32),
    "num_blocks": ("77", 77),
    "kv_memory": ("1.5", 1.5),
    "strict_plugins": ("true", True),
    "decoders": ("a.py, b.py", ("a.py", "b.py")),
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("0", 0),
    "shutdown_grace": ("0", 0.0),
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_sources_the_defaults_hold() -> None:
    assert load_config({}, {"PATH": "/bin"}) == Config()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_variable_sets_its_field(name: str) -> None:
    text, value = EXAMPLES[name]
    config = load_config({}, {f"CHATSERVE_{name.upper()}": text})
    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(value)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_flag_sets_its_field(name: str) -> None:
    text, value = EXAMPLES[name]
    raw = tuple(text.split(", ")) if isinstance(value, tuple) else text
    assert getattr(load_config({name: raw}, {}), name) == value


def test_a_file_sets_fields_of_every_kind(empty_folder: Path) -> None:
    file = empty_folder / "some.toml"
    file.write_text('port = 9000\nkv_memory = 2\ndecoders = ["a.py"]\nstrict_plugins = true\nkeepalive = "off"\n')
    expected = Config(port=9000, kv_memory=2.0, decoders=("a.py",), strict_plugins=True, keepalive="off")
    assert load_config({}, {}, file) == expected
    assert load_config({}, {"CHATSERVE_CONFIG": str(file)}) == expected


def test_flag_beats_variable_beats_file_beats_default(empty_folder: Path) -> None:
    (empty_folder / "chatserve.toml").write_text("port = 1\nmax_queue = 1\nblock_size = 1\n")
    config = load_config({"port": "3"}, {"CHATSERVE_PORT": "2", "CHATSERVE_MAX_QUEUE": "2"})
    assert (config.port, config.max_queue, config.block_size, config.host) == (3, 2, 1, "127.0.0.1")


def test_a_named_file_replaces_the_one_in_the_folder(empty_folder: Path) -> None:
    (empty_folder / "chatserve.toml").write_text("port = 1\n")
    (empty_folder / "other.toml").write_text("max_queue = 2\n")
    assert load_config({}, {}, empty_folder / "other.toml") == Config(max_queue=2)


def test_what_was_not_given_does_not_count() -> None:
    assert load_config({"port": None, "decoders": ()}, {"CHATSERVE_PORT": "5", "CHATSERVE_HOST": ""}) == Config(port=5)


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        ({"port": "70000"}, {}, "--port: '70000' is not possible, expected an integer from 0 to 65535"),
        ({}, {"CHATSERVE_PORT": "abc"}, "CHATSERVE_PORT: 'abc' is not possible, expected an integer from 0 to 65535"),
        ({"num_blocks": "0"}, {}, "--num-blocks: '0' is not possible, expected an integer of at least 1"),
        ({"block_size": "24"}, {}, "--block-size: '24' is not possible, expected a power of two from 1 to 256"),
        ({"block_size": "512"}, {}, "--block-size: '512' is not possible, expected a power of two from 1 to 256"),
        ({"kv_memory": "inf"}, {}, "--kv-memory: 'inf' is not possible, expected a number above 0"),
        ({"kv_memory": "nan"}, {}, "--kv-memory: 'nan' is not possible, expected a number above 0"),
        ({"device": "tpu"}, {}, "--device: 'tpu' is not possible, expected one of auto, cpu, cuda"),
        (
            {},
            {"CHATSERVE_STRICT_PLUGINS": "yes"},
            "CHATSERVE_STRICT_PLUGINS: 'yes' is not possible, expected true or false",
        ),
        ({}, {"CHATSERVE_PROT": "1"}, "unknown variable CHATSERVE_PROT, did you mean CHATSERVE_PORT?"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(flags: dict[str, str], environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(flags, environ)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot = 1", "some.toml: unknown key 'prot', did you mean port?"),
        ("[server]\nport = 1", "some.toml: [server] is a table; settings stand at the top, without tables"),
        ("port = [1]", "some.toml: port: [1] is not possible, expected an integer from 0 to 65535"),
        ("host = 1", "some.toml: host: 1 is not possible, expected a text"),
        ("port = ", "some.toml: not valid TOML"),
    ],
)
def test_a_mistake_in_a_file_names_the_file(empty_folder: Path, text: str, complaint: str) -> None:
    (empty_folder / "some.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config({}, {}, Path("some.toml"))
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read \(No such file"):
        load_config({}, {}, Path("missing.toml"))


@pytest.mark.parametrize("setting", settings().values(), ids=lambda setting: setting.name)
def test_every_field_is_described(setting: Setting) -> None:
    assert setting.description.endswith(".")
    assert setting.default is None or setting.convert(setting.default, "default") == setting.default
