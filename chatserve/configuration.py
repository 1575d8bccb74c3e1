"""Fills `Config` from flags, ``CHATSERVE_*`` variables and a TOML file: flag > variable > file > default."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import inspect

from chatserve.config import Config
from chatserve.errors import ConfigError

PREFIX = "CHATSERVE_"
FILE_VARIABLE = "CHATSERVE_CONFIG"
DEFAULT_FILE = "chatserve.toml"
BLOCK_SIZES = tuple(2**power for power in range(9))
# Variables with our prefix that are not settings: where the file is, and where converted models are kept.
OTHER_VARIABLES = (FILE_VARIABLE, "CHATSERVE_CACHE")


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of `Config` as flags, variables, files and documents name and describe it.

    Attributes:
        name: the field's name, which is also its key in a file.
        type: the annotated type that values are converted to.
        default: the value when nobody sets it.
        description: the help text.
        kind: what the type is once `None` and its annotations are set aside.
    """

    name: str
    type: Any
    default: Any
    description: str
    kind: inspect.Type

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that are allowed, in the order of the field's Literal; empty when it is none."""
        return get_args(get_args(self.type)[0]) if isinstance(self.kind, inspect.LiteralType) else ()

    @property
    def is_switch(self) -> bool:
        return isinstance(self.kind, inspect.BoolType)

    @property
    def is_list(self) -> bool:
        return isinstance(self.kind, inspect.VarTupleType)

    @property
    def allowed(self) -> str:
        """What a value must be, in words that follow "expected"."""
        if self.name == "block_size":
            return "a power of two from 1 to 256"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if isinstance(self.kind, inspect.IntType | inspect.FloatType):
            return _allowed_number(self.kind)
        if self.is_switch:
            return "true or false"
        return "a list of texts" if self.is_list else "a text"

    def convert(self, value: Any, source: str) -> Any:
        """Return `value` as the field's type; raises ConfigError naming `source`, the value and what is allowed."""
        try:
            converted = msgspec.convert(value, self.type, strict=False)
            if self._is_possible(converted):
                return converted
        except msgspec.ValidationError:
            pass
        raise ConfigError(f"{source}: {value!r} is not possible, expected {self.allowed}")

    def _is_possible(self, value: Any) -> bool:
        """Rules that the field's type cannot express."""
        if self.name == "block_size":
            return value in BLOCK_SIZES
        return not isinstance(value, float) or math.isfinite(value)


def settings() -> dict[str, Setting]:
    """Every field of `Config` by its name, in order."""
    types = get_type_hints(Config, include_extras=True)
    found = {}
    for field in msgspec.structs.fields(Config):
        kind, description = _unwrap(inspect.type_info(types[field.name]))
        found[field.name] = Setting(field.name, types[field.name], field.default, description, kind)
    return found


def load_config(flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None) -> Config:
    """Build the configuration from all its sources.

    Args:
        flags: values by field name; None, or an empty list, means that the flag was not given.
        environ: the environment; an empty variable counts as unset, lists are separated by commas.
        file: a TOML file; default: the one ``CHATSERVE_CONFIG`` names, else ``chatserve.toml`` here, if there is one.

    Raises:
        ConfigError: an unknown key, a bad value, or an unreadable file; one line that says what is allowed.
    """
    known = settings()
    values = {
        **_file_values(_find_file(environ, file), known),
        **_variable_values(environ, known),
        **{
            name: known[name].convert(value, known[name].flag)
            for name, value in flags.items()
            if value not in (None, ())
        },
    }
    return Config(**values)


def _find_file(environ: Mapping[str, str], file: Path | None) -> Path | None:
    if file is None and (named := environ.get(FILE_VARIABLE)):
        return Path(named)
    default = Path(DEFAULT_FILE)
    return default if file is None and default.is_file() else file


def _file_values(file: Path | None, known: Mapping[str, Setting]) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML ({error})") from None
    found = {}
    for name, value in entries.items():
        if isinstance(value, dict):
            raise ConfigError(f"{file}: [{name}] is a table; settings stand at the top, without tables")
        if name not in known:
            raise ConfigError(f"{file}: unknown key {name!r}, {_suggestion(name, known)}")
        found[name] = known[name].convert(value, f"{file}: {name}")
    return found


def _variable_values(environ: Mapping[str, str], known: Mapping[str, Setting]) -> dict[str, Any]:
    by_variable = {setting.variable: setting for setting in known.values()}
    found = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES or not text:
            continue
        if variable not in by_variable:
            raise ConfigError(f"unknown variable {variable}, {_suggestion(variable, by_variable)}")
        setting = by_variable[variable]
        parts = [part.strip() for part in text.split(",")] if setting.is_list else text
        found[setting.name] = setting.convert(parts, variable)
    return found


def _suggestion(name: str, names: Iterable[str]) -> str:
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"expected one of {', '.join(names)}"


def _unwrap(kind: inspect.Type) -> tuple[inspect.Type, str]:
    """Set annotations and `None` aside; return the kind and the first description on the way."""
    if isinstance(kind, inspect.Metadata):
        inner, description = _unwrap(kind.type)
        return inner, (kind.extra_json_schema or {}).get("description", description)
    if isinstance(kind, inspect.UnionType):
        [inner] = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
        return _unwrap(inner)
    return kind, ""


def _allowed_number(kind: inspect.IntType | inspect.FloatType) -> str:
    noun = "an integer" if isinstance(kind, inspect.IntType) else "a number"
    if kind.ge is not None and kind.le is not None:
        return f"{noun} from {kind.ge} to {kind.le}"
    if kind.ge is not None:
        return f"{noun} of at least {kind.ge}"
    return f"{noun} above {kind.gt}" if kind.gt is not None else noun
