"""The shown plan of a launch has no secrets, for every launcher and every source of a secret."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.cli import main
from autosync.launchers.redaction import HIDDEN, Redaction, is_secret
from autosync.launchers.script_run import TrainingScript, plan_script
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.launch_options import KubernetesOptions
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import save_bundle
from autosync.strategy.presets import build_preset

SECRET = "hunter2-and-more"
NODE = Node(name="n0", host="localhost", bandwidth_out=1e8, bandwidth_in=1e8)
HERE = ClusterSpec(name="here", nodes=(NODE,))
PODS = KubernetesOptions(
    image="train:1",
    container={
        "env": [
            {"name": "WANDB_API_KEY", "value": SECRET},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
            {"name": "STORE", "value": f"https://you:{SECRET}@store.example/"},
            {"name": "MODE", "value": "fast"},
        ]
    },
    pod={
        "initContainers": [{"name": "fetch", "image": "x", "args": ["--token", SECRET]}],
        "imagePullSecrets": [{"name": "pull"}],
    },
)


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "GITHUB_PAT",
        "PGPASSWORD",
        "MYSQL_PWD",
        "AWS_SECRET_ACCESS_KEY",
        "aws_session_token",
        "OPENAI_API_KEY",
        "SLACK_WEBHOOK_URL",
        "SENTRY_DSN",
        "AUTOSYNC_CONTROL_TOKEN",
        "DB_PASS",
        "--api-key",
        "--authToken",
        "Authorization",
        "COOKIE",
        "SSH_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("PWD", "OLDPWD", "PATH", "SSH_AUTH_SOCK", "RANK", "OMP_NUM_THREADS", "--tokenizer", "--num-tokens"),
        *("--pad_token", "AUTHOR", "KEYBOARD", "--monkey", "AUTOSYNC_BUNDLE", "GLOO_SOCKET_IFNAME", "--passes"),
        "TOKENIZERS_PARALLELISM",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret(name)


def test_a_command_line_is_shown_without_what_stands_behind_such_names() -> None:
    words = ["train.py", "--api-key", SECRET, f"--password={SECRET}", f"HF_TOKEN={SECRET}", "--token", "--lr", "0.1"]
    words += [f"--url=https://you:{SECRET}@host/x", "--key=", "a=b"]
    words += [f"--env=WANDB_API_KEY={SECRET}", f"+wandb.api_key={SECRET}", f"++a.token={SECRET}", "--env=MODE=fast"]
    assert Redaction().words(words) == [
        *("train.py", "--api-key", HIDDEN, f"--password={HIDDEN}", f"HF_TOKEN={HIDDEN}", "--token", "--lr", "0.1"),
        *(f"--url=https://you:{HIDDEN}@host/x", "--key=", "a=b"),
        *(f"--env=WANDB_API_KEY={HIDDEN}", f"+wandb.api_key={HIDDEN}", f"++a.token={HIDDEN}", "--env=MODE=fast"),
    ]


def test_the_values_of_the_environment_are_hidden_wherever_they_turn_up() -> None:
    hiding = Redaction.of({"HF_TOKEN": SECRET, "NAME": "world", "A_TOKEN": "abc"}, {"B_KEY": f"{SECRET}-longer"})
    assert hiding.text(f"hello {SECRET}-longer world {SECRET} abc") == f"hello {HIDDEN} world {HIDDEN} abc"
    assert SECRET not in repr(hiding)


def _shown(cluster: ClusterSpec, monkeypatch: pytest.MonkeyPatch) -> str:
    """All that is shown of a training on a cluster, with secrets in all places that there are."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("MY_TOKEN", SECRET)
    monkeypatch.setenv("AUTOSYNC_SSH", f"sshpass -p {SECRET} ssh")
    monkeypatch.setenv("AUTOSYNC_SLURM", "--partition=gpu")
    own = ["autosync", "launch", "b.yaml", "--env", f"WANDB_API_KEY={SECRET}", "--", "train.py", "--password", SECRET]
    monkeypatch.setattr(sys, "argv", own)
    monkeypatch.setattr(sys, "orig_argv", ["python", *own])
    script = TrainingScript(
        command=("python", "train.py", "--api-key", SECRET, "--lr", "0.1"),
        environment={"WANDB_API_KEY": SECRET, "STORE": f"redis://:{SECRET}@host", "MODE": "fast"},
    )
    _, request = plan_script(cluster, script, Path("logs"))
    assert SECRET in str(request.processes), "ranks get it"
    return f"{request}\n{request.batch_script}\n{request.shown}"


@pytest.mark.parametrize("launcher", ["local", "ssh", "slurm", "ray", "kubernetes"])
def test_no_launcher_shows_secrets(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pods = PODS if launcher == "kubernetes" else None
    text = _shown(replace(HERE, launcher=launcher, kubernetes=pods), monkeypatch)
    assert SECRET not in text
    assert f"WANDB_API_KEY={HIDDEN}" in text
    assert "MODE=fast" in text
    assert "--lr 0.1" in text
    if pods is not None:
        assert "key: token" in text, "where a secret is taken from is none"
        assert "- name: pull" in text
        assert "value: fast" in text


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_dry_run_shows_none(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_TOKEN", SECRET)
    model = load_model("ncf_small")
    save_bundle("b.yaml", bundled(build_preset("ddp", model, HERE), model, HERE))
    environment = ("--env", "MY_TOKEN", "--env", f"DB_PASS={SECRET}", "--env", "MODE=fast")
    command = ["launch", "b.yaml", *environment, "--dry-run", *options, "--", "train.py", f"--key={SECRET}"]
    assert main.run(command) == 0
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    if options:
        (process,) = json.loads(out)["processes"]
        found = {name: process["environment"][name] for name in ("MY_TOKEN", "DB_PASS", "MODE")}
        assert found == {"MY_TOKEN": HIDDEN, "DB_PASS": HIDDEN, "MODE": "fast"}
    else:
        assert f"MY_TOKEN={HIDDEN} DB_PASS={HIDDEN} MODE=fast " in out
