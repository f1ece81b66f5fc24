"""A check's result, and checks of the files that a node reads: model, manifest, tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from node.config.config import Config
from node.errors import NodeError, TaskSetError
from node.network.creation import unlisted
from node.network.membership import check_work
from node.network.pinned_manifest import checked_manifest
from node.policy.model_files import PolicyError
from node.policy.model_source import SHIPPED, check_model, no_folder
from node.storage.run_folder import RunFolder
from node.tasks.sources.jsonl import check_version
from node.tasks.task_set import Allowed, allowed_by, in_file, misnamed, overview, summary
from protocol.identity import Identity, KeyFileError
from protocol.manifest import AdmissionRule, AllowList, Manifest


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; "fail" prevents a node from working, "warn" may."""

    check: str
    level: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""
    brief: str = ""  # printed instead of ``found``, if that is long


def ok(check: str, found: str) -> Check:
    return Check(check, "ok", found)


def warn(check: str, found: str, remedy: str) -> Check:
    return Check(check, "warn", found, remedy)


def fail(check: str, found: str, remedy: str) -> Check:
    return Check(check, "fail", found, remedy)


def failed(check: str, error: NodeError) -> Check:
    return fail(check, f"{error.what}: {error.value}", error.remedy)


def check_model_files(config: Config) -> list[Check]:
    """Check that a model's folder is complete; a hub is not asked."""
    model = config.policy.model
    is_local = model in SHIPPED or no_folder(model) or Path(model).expanduser().exists()
    if not is_local:
        return []
    try:
        check_model(model)
    except PolicyError as error:
        return [failed("model", error)]
    return [ok("model", f"{model}: its files are complete")]


def check_pinned(config: Config, folder: RunFolder) -> list[Check]:
    if not folder.manifest.exists():
        return []
    return check_manifest(folder.manifest.read_bytes(), str(folder.manifest), config, folder)


def check_manifest(signed: bytes, source: str, config: Config, folder: RunFolder) -> list[Check]:
    """Check which task families of a manifest this node would open, and if it is admitted."""
    try:
        manifest = checked_manifest(signed, source)
    except NodeError as error:
        return [failed("tasks", error)]
    allowed = allowed_by(config.tasks, config.sandbox)
    return [*_check_tasks(manifest, allowed), *_check_admission(manifest.admission, config, folder)]


def _check_tasks(manifest: Manifest, allowed: Allowed) -> list[Check]:
    headline, *details = overview(manifest.catalogue, allowed)
    checks = []
    for spec in manifest.catalogue:
        if in_file(spec) and spec.name in allowed.files:
            try:
                check_version(spec, Path(allowed.files[spec.name]))
            except TaskSetError as error:
                remedy = f"Set tasks.files.{spec.name} to the file that its creator used."
                checks.append(fail("tasks", str(error), remedy))
    if len(details) == len(manifest.catalogue):
        remedy = "To train, a node needs one: a file, a package, or tasks.allow_code_execution."
        checks.append(warn("tasks", headline, remedy))
    checks = checks or [Check("tasks", "ok", headline, brief=summary(manifest.catalogue, allowed))]
    details += misnamed(manifest.catalogue, allowed)
    for subject, _, reason in (line.partition(": ") for line in details):
        checks.append(warn("tasks", subject, f"{reason[0].upper()}{reason[1:]}."))
    return checks


def _check_admission(rule: AdmissionRule, config: Config, folder: RunFolder) -> list[Check]:
    """Check what the admission rule costs, and if an allow list has this node."""
    try:
        costs = check_work(rule, config.network.work_seconds)
    except NodeError as error:
        return [failed("admission", error)]
    if not isinstance(rule, AllowList):
        return [ok("admission", message) for message in costs]
    try:
        author = Identity.load(folder.identity).author
    except KeyFileError:  # the check of the key reports it
        return []
    remedy = "Ask the creator for a new swarm that lists it; a bootstrap node needs no entry."
    warnings = [warn("admission", message, remedy) for message in unlisted(rule, author)]
    return warnings or [ok("admission", "the allow list has this node")]
