"""The arguments and options that name an actor and its input; `claude_batch.cli.inputs` reads it.

Apart from the reading, so that help and commands without an input do not import it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from claude_batch.cli.completion import complete_files
from claude_batch.cli.options import require_value, warn_of_unused_settings
from claude_batch.cli.user_messages import say
from claude_batch.core.errors import ProviderNotFoundError
from claude_batch.core.settings import ENVIRONMENT_PREFIX

if TYPE_CHECKING:
    from claude_batch.actor.configuration import ActorConfiguration
    from claude_batch.cli.inputs import Inputs

_F = TypeVar("_F", bound=Callable[..., Any])

_INPUTS: tuple[Callable[[Any], Any], ...] = (
    click.argument("arguments", nargs=-1, required=True, metavar="[ACTOR] INPUT...",
                   shell_complete=complete_files),
    click.option("--model", callback=require_value, help="A model, instead of ACTOR."),
    click.option("--system", help="A system prompt, with --model."),
    click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens of an answer, "
                                                                  "with --model."),
    click.option("--prompt-column", show_default="prompt",
                 help="The column of a CSV that holds the prompts."),
    click.option("--prompt", metavar="TEXT",
                 help="The prompt for each INPUT that is a document (PDF, image, DOCX). By "
                      "default only the actor's system prompt applies."),
    click.option("--document", "documents", multiple=True, metavar="FILE",
                 shell_complete=complete_files,
                 help="A PDF, image or text to add to every request; repeatable; a pattern such "
                      "as 'a/*.pdf' too."),
    click.option("--citations", is_flag=True, help="Ask for citations of the documents."),
    click.option("--documents-root", metavar="DIR", type=click.Path(exists=True, file_okay=False),
                 envvar=f"{ENVIRONMENT_PREFIX}DOCUMENTS_ROOT", show_envvar=True,
                 help="Reject input lines that name documents outside DIR."),
    click.option("--skip-invalid", is_flag=True,
                 help="Leave out invalid requests, and report each."),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The arguments and options that name an actor and its input, as given."""

    arguments: tuple[str, ...]
    model: str | None
    system: str | None
    max_tokens: int | None
    prompt_column: str | None
    prompt: str | None
    documents: tuple[str, ...]
    documents_root: str | None
    citations: bool
    skip_invalid: bool

    def actor_and_inputs(self) -> tuple[ActorConfiguration, Inputs]:
        """Return the actor, and the input, which is not read yet."""
        from claude_batch.cli.inputs import Inputs

        actor, given = self._actor()
        warn_of_unused_settings(actor.batch_processing or True)
        inputs = Inputs(
            given,
            prompt_column=self.prompt_column,
            documents=self.documents,
            documents_root=self.documents_root,
            citations=self.citations,
            prompt=self.prompt,
            instructed=bool(actor.system_prompt or actor.options.get("system")),
            on_invalid=(lambda message: say(f"skipped: {message}")) if self.skip_invalid else None,
        )
        return actor, inputs

    def _actor(self) -> tuple[ActorConfiguration, tuple[str, ...]]:
        from claude_batch.actor.configuration import CLAUDE_PROVIDERS
        from claude_batch.actor.loader import ActorLoader

        if self.model is None:
            if self.system is not None or self.max_tokens is not None:
                raise click.UsageError("--system and --max-tokens need --model, instead of ACTOR")
            if len(self.arguments) < 2:
                raise click.UsageError("give ACTOR and INPUT, or --model and INPUT")
            actor = ActorLoader.load(self.arguments[0])
            actor.require_answerable()
            if actor.resolved_provider not in CLAUDE_PROVIDERS:
                raise ProviderNotFoundError(actor.resolved_provider, CLAUDE_PROVIDERS)
            return actor, self.arguments[1:]
        self._refuse_actor()
        written: dict[str, Any] = {
            "name": "local/command-line", "provider": "anthropic", "model": self.model,
            "batch_processing": True,
        }  # fmt: skip
        if self.system is not None:
            written["system_prompt"] = self.system
        if self.max_tokens is not None:
            written["options"] = {"max_tokens": self.max_tokens}
        return ActorLoader.from_mapping(written), self.arguments

    def _refuse_actor(self) -> None:
        """Raise `click.UsageError` if ACTOR is given besides --model.

        It would be sent, and paid for, as a prompt. A pattern such as ``'*.yaml'`` names prompts.
        """
        first = self.arguments[0]
        if first.lower().endswith((".yaml", ".yml")) and os.path.isfile(first):
            raise click.UsageError(
                f"--model is given instead of ACTOR, but {first} is given too. Leave out --model "
                f"to use this actor, or leave out {first}"
            )


def input_options(command: _F) -> _F:
    """Add these arguments and options to a command, which receives them as one `Asked`."""

    @functools.wraps(command)  # which copies the options that it has already
    def wrapped(*args: Any, **given: Any) -> Any:
        asked = Asked(**{field.name: given.pop(field.name) for field in fields(Asked)})
        return command(*args, asked=asked, **given)

    decorated: Any = wrapped
    for option in reversed(_INPUTS):
        decorated = option(decorated)
    return decorated
