"""A deployment as text: shell, docker, compose, Kubernetes, Slurm, SkyPilot."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from importlib import import_module

from k3stack.recipe.deployment import Deployment

__all__ = ["Form", "render"]


class Form(StrEnum):
    """What a deployment can be written as."""

    SHELL = "shell"
    DOCKER = "docker"
    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"
    SKYPILOT = "skypilot"


def render(deployment: Deployment, form: Form) -> str:
    """The deployment as the text of a file."""
    function: Callable[[Deployment], str] = import_module(f"k3stack.recipe.render.{form.value}").render
    return function(deployment)
