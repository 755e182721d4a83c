"""`CodeCache`: compiled code that workers of a project share through the controller.

Inductor keeps what it compiles in a folder, under names that follow from its content: other code
only misses. A worker unpacks the folder of an earlier one before it compiles, and sends its own if
it compiled anything new. Every failure means a cold compile.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from worker_agent.frameworks import BundleStore
from worker_agent.pytorch.tensors import dtype_name
from worker_agent.state.signed_archive import (
    ArchiveRefused,
    pack_folder,
    regular_files,
    unpack_folder,
)

log = logging.getLogger(__name__)

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


class CodeCache:
    """The folder of compiled code of one model on this machine.

    Args:
        model: The model.
        bundles: Where bundles of the project are; None to share nothing.
    """

    def __init__(self, model: nn.Module, bundles: BundleStore | None) -> None:
        self.model, self.bundles = model, bundles
        self.key = ""
        self.known: set[str] = set()
        self.is_open = False

    def open(self) -> str:
        """Let the compiler use the folder from now on, with what other workers have compiled.

        Returns:
            Why there is no bundle to use; empty if there is one, or none is wanted.
        """
        if self.is_open:
            return ""
        self.is_open = True
        tag = platform_key()
        # PyTorch's own key has no instruction set: code for AVX-512 could run under AVX2.
        config: Any = torch.compiler.config
        config.cache_key_tag = tag
        if self.bundles is None or has_own_folder():
            return ""
        self.key = hashlib.sha256(f"{tag} {model_digest(self.model)}".encode()).hexdigest()
        folder = self.bundles.folder / self.key
        why = self._unpack(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ[CACHE_VARIABLE] = str(folder)
        self.known = set(regular_files(folder))
        return why

    def share(self) -> str:
        """Send the folder if it holds more than before; returns why it was not sent, if so."""
        if self.bundles is None or not self.key:
            return ""
        folder = self.bundles.folder / self.key
        try:
            files = set(regular_files(folder))
            if files <= self.known:
                return ""
            self.bundles.store(self.key, pack_folder(folder, self.key, self.bundles.secret))
            self.known = files
        except (OSError, ArchiveRefused, ConnectionError) as error:
            return f"the code that was compiled is not shared: {error}"
        return ""

    def _unpack(self, folder: Path) -> str:
        assert self.bundles is not None
        if folder.is_dir():  # another worker of this machine was first
            return ""
        try:
            archive = self.bundles.fetch(self.key)
            if archive is None:
                return ""
            unpack_folder(archive, self.key, self.bundles.secret, folder)
        except (OSError, ArchiveRefused, ConnectionError) as error:
            return f"compiled code of other workers is not used: {error}"
        return ""


def has_own_folder() -> bool:
    """Whether the script or its environment names a folder of compiled code.

    Inductor writes its default into the environment itself.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return os.environ.get(CACHE_VARIABLE, default_cache_dir()) != default_cache_dir()


def model_digest(model: nn.Module) -> str:
    """Return a hash of the names, shapes and types of a model's parameters and buffers."""
    facts = [
        (name, list(each.shape), dtype_name(each.dtype))
        for name, each in (*model.named_parameters(), *model.named_buffers())
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def platform_key() -> str:
    """Return a hash of all that compiled code depends on, besides the code.

    The threads are among it: other code is made for one than for several.
    """
    facts = [*platform_facts(), torch.get_num_threads()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


@functools.cache
def platform_facts() -> tuple[str, ...]:
    """Return what compiled code depends on and no process changes."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    isa: Any = pick_vec_isa()
    facts: list[str] = [
        torch.__version__,
        str(torch.version.git_version),
        str(sysconfig.get_config_var("SOABI")),
        str(isa),
        str(isa.build_arch_flags()) if isa else "",
        torch.backends.cpu.get_cpu_capability(),
        " ".join(platform.libc_ver()),
        *compiler_facts(),
    ]
    if torch.cuda.is_available():
        facts += [torch.cuda.get_device_name(), str(torch.cuda.get_device_capability())]
        facts.append(str(torch.version.cuda))
    return tuple(facts)


def compiler_facts() -> Iterable[str]:
    """Return path and version of the C++ compiler; nothing without one."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        compiler: str = get_cpp_compiler()
        command = [compiler, "--version"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (InvalidCxxCompiler, OSError, subprocess.SubprocessError):
        return ()
    return compiler, shown.stdout.partition("\n")[0]
