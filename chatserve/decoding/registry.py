"""Decoders by name: the `@decoder` decorator, and `Registry`, which finds them in entry points and files."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import logging
import re
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from chatserve.decoding.bounded_call import call_bounded
from chatserve.decoding.context import Context
from chatserve.decoding.places import place_of
from chatserve.decoding.sequence import Sequence
from chatserve.errors import ConfigError, RequestError

API_VERSION = 1
NAME_PATTERN = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"
ENTRY_POINT_GROUP = "chatserve.decoders"
IMPORT_TIMEOUT = 60.0
DecoderFunction: TypeAlias = Callable[[Context, Sequence, Any], Coroutine[Any, Any, None]]

_log = logging.getLogger("chatserve.decoders")
_MISSING = re.compile(r"missing required field `([^`]*)`")


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a decoder's parameter struct; fields need defaults, `msgspec.Meta` bounds and describes them."""


@dataclass(frozen=True)
class Decoder:
    """A decoder as registered; call it for its coroutine.

    Attributes:
        name: lower case letters, digits and dashes.
        function: ``async def (ctx, prompt, params)``.
        params: its parameter struct.
        api: version of the decoder API it speaks.
        num_sequences: most sequences it holds at once, from (params, n); admission counts one block for each.
    """

    name: str
    function: DecoderFunction
    params: type[Params]
    api: int
    num_sequences: Callable[[Any, int], int]

    def __call__(self, ctx: Context, prompt: Sequence, params: Any) -> Coroutine[Any, Any, None]:
        return self.function(ctx, prompt, params)

    @property
    def description(self) -> str:
        return inspect.getdoc(self.function) or ""

    @property
    def package(self) -> str:
        """Where its code is: the first part of its module's name."""
        return self.function.__module__.partition(".")[0]

    def make_params(self, given: dict[str, Any]) -> Params:
        """Validate parameters; raises RequestError that names the field, what was given and what is allowed."""
        try:
            return msgspec.convert(given, self.params)
        except msgspec.ValidationError as error:
            reason, _, place = str(error).partition(" - at `$")
            param = "decoder_params" + place.rstrip("`")
            if missing := _MISSING.search(reason):
                param += f".{missing[1]}"
            raise RequestError(
                f"{param}: {reason} (decoder {self.name!r})", param=param, code="invalid_value"
            ) from None
        except Exception as error:  # from a `__post_init__` of the plugin's own
            _log.error("the parameters' own checks of decoder %s raised", self.name, exc_info=error)
            message = f"decoder_params: refused by decoder {self.name!r}: {error!r}"
            raise RequestError(message, param="decoder_params", code="invalid_value") from error


def decoder(
    name: str,
    *,
    params: type[Params] = Params,
    api: int = API_VERSION,
    sequences: Callable[[Any, int], int] = lambda params, n: n,
) -> Callable[[DecoderFunction], Decoder]:
    """Make an ``async def (ctx, prompt, params)`` a decoder.

    Args:
        name: how requests name it: lower case letters, digits and dashes.
        params: struct of its parameters, a subclass of `Params`.
        api: version of this API that it was written for.
        sequences: most sequences it holds at once, from (params, n).
    """

    if not isinstance(name, str):
        raise TypeError('a decoder needs a name: use @decoder("name")')

    def register(function: DecoderFunction) -> Decoder:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"decoder {name!r} must be an `async def` without `yield`")
        if len(inspect.signature(function).parameters) != 3:
            raise TypeError(f"decoder {name!r} must take (ctx, prompt, params)")
        if not (isinstance(params, type) and issubclass(params, Params)):
            raise TypeError(f"decoder {name!r}: params must be a subclass of chatserve.decoding.Params")
        return Decoder(name, function, params, api, sequences)

    return register


@dataclass(frozen=True, slots=True)
class DecoderInfo:
    """What `GET /v1/decoders` and the CLI show of a decoder; `reason` says why a broken one is broken."""

    id: str
    name: str
    description: str
    version: str
    distribution: str
    api: int
    parameters: dict[str, Any]
    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class _Entry:
    decoder: Decoder | None
    distribution: str
    version: str
    reason: str | None = None


class Registry:
    """All decoders that a server knows. A plugin that fails to load is kept as broken, with the reason.

    Args:
        import_timeout: seconds that the import of one plugin may take.
    """

    def __init__(self, import_timeout: float = IMPORT_TIMEOUT) -> None:
        self._entries: dict[str, _Entry] = {}
        self._import_timeout = import_timeout

    @classmethod
    def load(
        cls, files: Iterable[str] = (), *, strict: bool = False, import_timeout: float = IMPORT_TIMEOUT
    ) -> Registry:
        """Decoders of all installed packages (entry points of group ``chatserve.decoders``) and of these files.

        Raises ConfigError for a file that is not there, and for the first broken decoder when `strict`.
        """
        registry, files = cls(import_timeout), list(files)
        for file in files:
            if not Path(file).is_file():
                raise ConfigError(f"decoders: no Python file at {file}")
        for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
            registry._load_entry_point(entry_point)
        for file in files:
            registry.load_file(file)
        broken = [f"{name}: {entry.reason}" for name, entry in registry._entries.items() if entry.reason]
        for line in broken:
            _log.warning("broken decoder %s", line)
        if strict and broken:
            raise ConfigError(f"broken decoder {broken[0]}")
        return registry

    def add(self, added: Decoder, *, distribution: str = "", version: str = "") -> None:
        """Register a decoder; one of another API version, or whose name is wrong or taken, is listed as broken."""
        name = added.name
        taken = self._entries.get(name)
        if added.api != API_VERSION:
            reason = f"speaks decoder API {added.api}; this chatserve speaks {API_VERSION}"
        elif not re.fullmatch(NAME_PATTERN, name):
            reason = f"the name {name!r} must be lower case letters, digits and dashes, beginning with a letter"
        elif taken is not None and taken.decoder is not None:
            reason = f"the name {name!r} is taken by {taken.distribution or 'another file'}"
        else:
            if taken is not None:  # by a broken one
                self._entries[f"{name} ({taken.distribution})"] = taken
            self._entries[name] = _Entry(added, distribution, version)
            return
        self._add_broken(name, distribution, version, reason)

    def _add_broken(self, name: str, distribution: str, version: str, reason: str) -> None:
        """List what cannot be used, under a name that takes none away."""
        if name in self._entries:
            name = f"{name} ({distribution})"
        self._entries[name] = _Entry(None, distribution, version, reason)

    def load_file(self, file: str) -> None:
        """Register the decoders in a Python file; one that cannot be used is listed as broken under the file's name."""
        try:
            module = call_bounded(lambda: _import_file(Path(file)), self._import_timeout)
            found = [value for value in vars(module).values() if isinstance(value, Decoder)]
            if not found:
                raise ValueError("holds no decoder (a function decorated with @decoder)")
        except Exception as error:  # as above
            self._add_broken(Path(file).stem, file, "", _reason(error, _module_name(Path(file))))
        else:
            for value in found:
                self.add(value, distribution=file)

    def get(self, name: str) -> Decoder:
        """The decoder of this name; raises RequestError that lists the names there are."""
        entry = self._entries.get(name)
        if entry is None:
            names = ", ".join(sorted(n for n, e in self._entries.items() if e.decoder))
            raise RequestError(
                f"decoder {name!r} is not known; there are: {names}", param="decoder", code="decoder_not_found"
            )
        if entry.decoder is None:
            raise RequestError(f"decoder {name!r} is broken: {entry.reason}", param="decoder", code="decoder_broken")
        return entry.decoder

    def list(self) -> list[DecoderInfo]:
        """All decoders, broken ones included, by name."""
        return [_info(name, entry) for name, entry in sorted(self._entries.items())]

    def _load_entry_point(self, entry_point: importlib.metadata.EntryPoint) -> None:
        distribution = entry_point.dist.name if entry_point.dist else ""
        version = entry_point.dist.version if entry_point.dist else ""
        try:
            loaded = call_bounded(entry_point.load, self._import_timeout)
            if not isinstance(loaded, Decoder):
                raise TypeError(f"{entry_point.value} is not a decoder (a function decorated with @decoder)")
        except Exception as error:  # a stranger's code may raise anything while it is imported
            reason = _reason(error, entry_point.value.partition(":")[0])
            self._add_broken(entry_point.name, distribution, version, reason)
        else:
            self.add(loaded, distribution=distribution, version=version)


def _import_file(path: Path) -> Any:
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no Python file at {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that annotations of its structs resolve
    spec.loader.exec_module(module)
    return module


def _module_name(path: Path) -> str:
    return f"chatserve_decoder_file_{path.stem}"


def _reason(error: Exception, module: str) -> str:
    """What an import raised, and at which line of the plugin."""
    place = place_of(error, module.partition(".")[0])
    return f"{type(error).__name__}: {error}" + (f" ({Path(place).name})" if place else "")


def _info(name: str, entry: _Entry) -> DecoderInfo:
    made = entry.decoder
    return DecoderInfo(
        id=name,
        name=name,
        description=made.description if made else "",
        version=entry.version,
        distribution=entry.distribution,
        api=made.api if made else API_VERSION,
        parameters=msgspec.json.schema(made.params) if made else {},
        state="ready" if made else "broken",
        reason=entry.reason,
    )
