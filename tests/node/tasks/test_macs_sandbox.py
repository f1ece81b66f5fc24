"""The macOS sandbox, with simulated macOS responses."""

import resource
import sys

import pytest

from node.tasks.sandbox import sandbox
from node.tasks.sandbox.confine import Confinement, confine
from node.tasks.sandbox.sandbox import SandboxSupport, launch_prefix, sandbox_support


@pytest.fixture
def mac(monkeypatch):
    sandbox_support.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    yield
    monkeypatch.undo()
    sandbox_support.cache_clear()


@pytest.mark.usefixtures("mac")
def test_macos_worker_skips_memory_limit_refused_by_kernel(monkeypatch):
    limited = {}

    def limit(kind, values):
        if kind == resource.RLIMIT_AS:
            raise ValueError("current limit exceeds maximum limit")
        limited[kind] = values

    monkeypatch.setattr(resource, "setrlimit", limit)
    none = {"namespaces": False, "landlock": False, "network": False}
    confine(Confinement(**none, readable=(), listed=(), program="", once="", memory_mib=1, nice=0))
    assert limited[resource.RLIMIT_FSIZE] == (0, 0) and resource.RLIMIT_NPROC in limited


@pytest.mark.usefixtures("mac")
@pytest.mark.parametrize("does, kind", [('shift 2; exec "$@"', "sandbox-exec"), ("false", "none")])
def test_macos_sandbox_is_used_only_if_a_worker_starts(tmp_path, monkeypatch, does, kind):
    command = tmp_path / "sandbox-exec"
    command.write_text(f"#!/bin/sh\n{does}\n", encoding="ascii")
    command.chmod(0o700)
    monkeypatch.setattr(sandbox, "SANDBOX_EXEC", command)
    assert sandbox_support().kind == kind


@pytest.mark.usefixtures("mac")
def test_macos_sandbox_profile_includes_symlink_targets(tmp_path):
    (tmp_path / "Cellar").mkdir()
    (tmp_path / "opt").symlink_to(tmp_path / "Cellar")
    support = SandboxSupport("sandbox-exec", landlock=False, seccomp=False)
    *_, profile = launch_prefix(support, [str(tmp_path / "opt")], network=False)
    for name in ("opt", "Cellar"):
        assert f'(subpath "{tmp_path / name}")' in profile
    assert "(allow network*)" not in profile and profile.count("(") == profile.count(")")
